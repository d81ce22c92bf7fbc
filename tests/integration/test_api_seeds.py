"""Seeds over REST: what is said to be accepted is in the stream, whatever form it came in and however it ended."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import httpx
import pytest

from api.crawls import seed_upload as uploading
from api.routes import seeds
from shared.adapters.nats import NatsBroker
from shared.domain.frontier.seed_contexts import SeedContext, context_at
from shared.domain.ids import Partition
from shared.domain.ops.access import Role
from shared.wire.messages import Discoveries, decode_discoveries
from tests.support.api.rest_api import PARTITIONS, api, problem
from tests.support.engines.nats_server import BrokerServer, stored
from tests.support.engines.nats_server import server as server

SEEDS = "/v1/crawls/docs/seeds"
TEXT = {"Content-Type": "text/plain"}


async def found(broker: NatsBroker) -> list[Discoveries]:
    """Every message of discoveries in the stream."""
    every = [await stored(broker, Partition(partition), "discovery") for partition in range(PARTITIONS)]
    return [decode_discoveries(data) for each in every for data in each]


def urls(messages: Sequence[Discoveries]) -> list[str]:
    return sorted(link.url for message in messages for origin in message.origins for link in origin.links)


def test_seeds_arrive_in_every_form(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as broker, api(tmp_path / "crawl.db", broker) as served:
            await served.created("docs")
            async with served.as_role(Role.OPERATOR) as client:
                answers = [
                    await client.post(
                        SEEDS, json={"seeds": ["http://a.test/", {"url": "http://b.test/", "priority": 3}]}
                    ),
                    await client.post(
                        SEEDS, content=b"http://c.test/\n\n# no\nhttp://c.test/#x\nnonsense", headers=TEXT
                    ),
                    await client.post(
                        SEEDS,
                        content=gzip.compress(b'"http://d.test/"\n')
                        + gzip.compress(b'{"url": "http://e.test/"}\n{"u": 1}'),
                        headers={"Content-Type": "application/jsonl", "Content-Encoding": "gzip"},
                    ),
                ]
            said = [{name: answer.json()[name] for name in ("accepted", "duplicate", "rejected")} for answer in answers]
            assert said == [
                {"accepted": 2, "duplicate": 0, "rejected": 0},
                {"accepted": 1, "duplicate": 1, "rejected": 1},
                {"accepted": 2, "duplicate": 0, "rejected": 1},
            ]
            assert answers[1].json()["first_rejected"][0]["line"] == 5
            assert urls(await found(broker)) == [f"http://{name}.test/" for name in "abcde"]

    asyncio.run(story())


def test_upload_repeated_under_its_key_is_stored_once(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        lines = [f"http://h{n % 7}.test/{n}" for n in range(2_500)]
        again = {**TEXT, "Idempotency-Key": "nightly"}
        async with server.broker() as broker, api(tmp_path / "crawl.db", broker) as served:
            await served.created("docs")
            async with served.as_role(Role.OPERATOR) as client:
                for _ in range(2):
                    answer = (await client.post(SEEDS, content="\n".join(lines), headers=again)).json()
                    assert (answer["accepted"], answer["durable_lines"]) == (2_500, 2_500)
                once = await found(broker)
                assert urls(once) == sorted(lines)
                await client.post(SEEDS, content="http://other.test/", headers=again)
                assert urls(await found(broker)) == sorted([*lines, "http://other.test/"])

    asyncio.run(story())


def test_an_upload_that_breaks_off_says_what_is_durable(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        lines = b"".join(b"http://h%d.test/%d\n" % (n % 5, n) for n in range(uploading.WINDOW + 100))
        cut = gzip.compress(lines)[:-50]
        async with server.broker() as broker, api(tmp_path / "crawl.db", broker) as served:
            await served.created("docs")
            async with served.as_role(Role.OPERATOR) as client:
                response = await client.post(SEEDS, content=cut, headers={**TEXT, "Content-Encoding": "gzip"})
                said = problem(response, 400, "malformed")
                assert said["accepted"] == said["durable_lines"] == uploading.WINDOW
                assert len(urls(await found(broker))) == uploading.WINDOW

    asyncio.run(story())


def test_broken_off_upload_counts_its_durable_lines_alone(
    tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeds, "SeedUpload", partial(uploading.SeedUpload, window=2))
    lines = [
        "http://a.test/",
        "no URL",
        "http://a.test/",
        "http://b.test/",
        "no URL",
        "http://c.test/",
        "http://c.test/",
    ]
    cut = gzip.compress("\n".join(lines).encode() + b"\n")[:-4]

    async def story() -> None:
        async with server.broker() as broker, api(tmp_path / "crawl.db", broker) as served:
            await served.created("docs")
            async with served.as_role(Role.OPERATOR) as client:
                response = await client.post(SEEDS, content=cut, headers={**TEXT, "Content-Encoding": "gzip"})
                said = problem(response, 400, "malformed")
                counts = [said[name] for name in ("durable_lines", "accepted", "duplicate", "rejected")]
                assert counts == [4, 2, 1, 1]
                assert [each["line"] for each in said["first_rejected"]] == [2]

    asyncio.run(story())


def test_seeds_are_refused_while_an_owner_has_half_of_its_bound_waiting(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker(reports_per_subject=4) as broker, api(tmp_path / "crawl.db", broker) as served:
            await served.created("docs")
            async with served.as_role(Role.OPERATOR) as client:

                async def add(n: int) -> httpx.Response:
                    return await client.post(SEEDS, content=f"http://same.test/{n}", headers=TEXT)

                assert [(await add(n)).status_code for n in range(2)] == [200, 200]
                refused = await add(2)
                assert problem(refused, 429, "busy")["accepted"] == 0
                assert int(refused.headers["retry-after"]) > 0
                [partition] = [p for p in range(PARTITIONS) if await broker.last_report(Partition(p), "discovery")]
                last = await broker.last_report(Partition(partition), "discovery")
                await broker.purge_reports(Partition(partition), "discovery", last)
                assert (await add(2)).status_code == 200

    asyncio.run(story())


def test_seeds_under_resource_pressure_are_refused_with_the_reason(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as broker, api(tmp_path / "crawl.db", broker) as served:
            await served.created("docs")
            served.short.append("the database has 1 GiB free of 40 GiB; it goes on when 2 GiB are free")
            async with served.as_role(Role.OPERATOR) as client:
                refused = await client.post(SEEDS, content="http://a.test/", headers=TEXT)
                said = problem(refused, 503, "unavailable")
            assert said["detail"] == f"seeds are refused while a resource is nearly full: {served.short[0]}"
            assert urls(await found(broker)) == []

    asyncio.run(story())


def test_what_is_no_upload_is_refused_before_anything_is_stored(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as broker, api(tmp_path / "crawl.db", broker) as served:
            await served.created("docs")
            async with served.as_role(Role.OPERATOR) as client:
                problem(await client.post("/v1/crawls/none/seeds", json={"seeds": []}), 404, "not-found")
                for headers in ({"Content-Type": "text/csv"}, {**TEXT, "Content-Encoding": "br"}):
                    refused = await client.post(SEEDS, content=b"x", headers=headers)
                    problem(refused, 415, "unsupported-media-type")
                broken = await client.post(SEEDS, content=b"{", headers={"Content-Type": "application/json"})
                problem(broken, 400, "malformed")
                unknown = await client.post(SEEDS, json={"seeds": [{"url": "http://a.test/", "prio": 1}]})
                assert "prio" in json.dumps(problem(unknown, 422, "invalid")["errors"])
                lines = b"http://a.test/" + b"x" * 200_000 + b"\nhttp://b.test/"
                long = await client.post(SEEDS, content=lines, headers=TEXT)
                assert (long.json()["accepted"], long.json()["rejected"]) == (1, 1)
                await client.post("/v1/crawls/docs/cancel")
                problem(await client.post(SEEDS, json={"seeds": ["http://a.test/"]}), 409, "illegal-transition")
            assert urls(await found(broker)) == ["http://b.test/"]

    asyncio.run(story())


def test_a_stream_is_read_as_it_comes(tmp_path: Path, server: BrokerServer) -> None:
    """What was sent is durable before the sender has sent all."""

    async def story() -> None:
        async with server.broker() as broker, api(tmp_path / "crawl.db", broker) as served:
            await served.created("docs")
            seen: list[int] = []

            async def body() -> AsyncIterator[bytes]:
                for start in range(0, 3 * uploading.WINDOW, 1_000):
                    yield b"".join(b"http://h%d.test/%d\n" % (n % 5, n) for n in range(start, start + 1_000))
                    seen.append(await broker.pending_reports())

            async with served.as_role(Role.OPERATOR) as client:
                answer = (await client.post(SEEDS, content=body(), headers=TEXT)).json()
            assert answer["accepted"] == 3 * uploading.WINDOW
            assert len({n for n in seen if n}) >= 2, "windows were published on the way"

    asyncio.run(story())


def test_labels_and_source_arrive_and_wrong_ones_are_told(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        red = {"labels": {"team": "red"}, "source": "list-1"}
        body = {"seeds": [{"url": "http://a.test/", **red}, "http://b.test/"]}
        lines = [
            json.dumps({"url": "http://c.test/", **red}),
            json.dumps({"url": "http://d.test/", "labels": {"Team": "red"}}),
            json.dumps({"url": "http://e.test/", "source": "x" * 513}),
            json.dumps({"url": "http://f.test/", "labels": {f"n{n}": "x" * 255 for n in range(9)}}),
            json.dumps({"url": "http://g.test/", "labels": {"team": 7}}),
        ]
        kind = {"Content-Type": "application/jsonl"}
        async with server.broker() as broker, api(tmp_path / "crawl.db", broker) as served:
            await served.created("docs")
            async with served.as_role(Role.OPERATOR) as client:
                assert (await client.post(SEEDS, json=body)).json()["accepted"] == 2
                answer = (await client.post(SEEDS, content="\n".join(lines), headers=kind)).json()
                wrong = {"seeds": ["http://x.test/", {"url": "http://y.test/", "labels": {"A": "", "b": "\n"}}]}
                refused = problem(await client.post(SEEDS, json=wrong), 422, "invalid")
        assert (answer["accepted"], answer["rejected"]) == (1, 4)
        reasons = [each["reason"] for each in answer["first_rejected"]]
        assert reasons[0].startswith("labels 'Team' is not the name of a label (names are lower-case letters")
        assert reasons[1] == "source is not a line of text (a source is text of at most 512 characters)"
        assert "more than 2048" in reasons[2]
        assert "labels" in reasons[3]
        assert [each["path"] for each in refused["errors"]] == ["seeds[1].labels", "seeds[1].labels.b"]
        async with server.broker() as broker:
            given = {
                link.url: context_at(message.contexts, message.context_of, place)
                for message in await found(broker)
                for place, origin in enumerate(message.origins)
                for link in origin.links
            }
        context = SeedContext((("team", "red"),), "list-1")
        assert given == {"http://a.test/": context, "http://b.test/": None, "http://c.test/": context}

    asyncio.run(story())


def test_upload_repeated_with_other_labels_is_stored_again(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as broker, api(tmp_path / "crawl.db", broker) as served:
            await served.created("docs")
            async with served.as_role(Role.OPERATOR) as client:
                for team in ("red", "red", "blue"):
                    seeds = [{"url": "http://a.test/", "labels": {"team": team}}]
                    await client.post(SEEDS, json={"seeds": seeds}, headers={"Idempotency-Key": "nightly"})
            given = [message.contexts[0].labels for message in await found(broker)]
            assert given == [(("team", "red"),), (("team", "blue"),)]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("member", "count"),
    [
        pytest.param(b"\n" * 50_000, 50_000, id="blank"),
        pytest.param(b"# note\n" * 50_000, 50_000, id="comment"),
        pytest.param(b"\xff\n" * 50_000, 50_000, id="rejected"),
        pytest.param(b"a" * 50_000_000, 50_000, id="long"),
        pytest.param(b"", 1, id="empty"),
    ],
)
def test_upload_of_lines_without_seeds_lets_other_tasks_run(tmp_path: Path, member: bytes, count: int) -> None:
    """A compressed body of 64 KB, which one receive() gives, has 64 MiB of them. They are read without a wait."""
    body = gzip.compress(member) * (50_000 // count)
    turns = 0

    async def turning() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.OPERATOR) as client:
            await served.created("docs")
            others = asyncio.create_task(turning())
            response = await client.post(SEEDS, content=body, headers={**TEXT, "Content-Encoding": "gzip"})
            others.cancel()
            assert response.status_code == 200, response.text
            assert turns >= 100

    asyncio.run(story())
