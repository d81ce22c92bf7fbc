"""Bounds of the API that no other test meets: at each the answer says so, and what is within goes through."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from api.http.deps import LARGEST_PAGE
from api.routes.seeds import LINE_BYTES
from api.schemas.crawls import MAX_LABELS
from shared.adapters.local.clock import SystemClock
from shared.adapters.sql.catalog.access import REMEMBERED_MS
from shared.domain.crawl.spec import CrawlSpec, Scope, ScopeMode, Seed, encode_spec
from shared.domain.ops.access import Role
from shared.domain.ops.config import MAX_POOLS, MasterTuning
from shared.domain.ops.published_specs import MAX_SPEC_BYTES
from shared.domain.reads.declared import Declaration
from tests.support.api.rest_api import SOMEONE, SPEC, api, problem
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server


def test_count_beyond_limit_of_page_crawl_or_config_names_its_path(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.OPERATOR) as client:
            for more, status in ((0, 200), (1, 422)):
                page = await client.get("/v1/crawls", params={"limit": LARGEST_PAGE + more})
                assert page.status_code == status, page.text
                labels = {f"l{number}": "x" for number in range(MAX_LABELS + more)}
                put = await client.put("/v1/crawls/docs", json={"spec": SPEC, "labels": labels, "start": False})
                assert put.status_code == (201 if status == 200 else status), put.text
                pools = {f"p{number}": {"max_visits": 1} for number in range(MAX_POOLS + more)}
                config = await client.put("/v1/config", json={"pools": pools})
                assert config.status_code == status, config.text
            assert [error["path"] for error in problem(put, 422, "invalid")["errors"]] == ["labels"]
            assert [error["path"] for error in problem(config, 422, "invalid")["errors"]] == ["pools"]

    asyncio.run(story())


def test_a_line_of_seeds_that_is_too_long_is_rejected_and_the_next_is_taken(
    tmp_path: Path, server: BrokerServer
) -> None:
    async def story() -> None:
        async with server.broker() as broker, api(tmp_path / "crawl.db", broker) as served:
            await served.created("docs")
            async with served.as_role(Role.OPERATOR) as client:
                lines = f"http://a.test/{'x' * LINE_BYTES}\nhttp://b.test/\n".encode()
                answer = await client.post(
                    "/v1/crawls/docs/seeds", content=lines, headers={"Content-Type": "text/plain"}
                )
            assert answer.status_code == 200, answer.text
            said = answer.json()
            assert (said["lines"], said["accepted"], said["rejected"]) == (2, 1, 1)

    asyncio.run(story())


def test_long_line_with_spaces_is_rejected_wherever_its_pieces_end(tmp_path: Path, server: BrokerServer) -> None:
    spaces = b" " * (LINE_BYTES + 100)
    lines = [b"http://a.test/x" + spaces + b"junk", spaces + b"junk", b"http://b.test/y" + spaces, b"#" + spaces]
    whole = b"\n".join(lines) + b"\nhttp://c.test/\n"

    async def story() -> None:
        async with server.broker() as broker, api(tmp_path / "crawl.db", broker) as served:
            await served.created("docs")
            async with served.as_role(Role.OPERATOR) as client:
                for step in (len(whole), 1_000, LINE_BYTES + 50):

                    async def body(step: int = step) -> AsyncIterator[bytes]:
                        for start in range(0, len(whole), step):
                            yield whole[start : start + step]

                    answer = await client.post(
                        "/v1/crawls/docs/seeds", content=body(), headers={"Content-Type": "text/plain"}
                    )
                    assert answer.status_code == 200, answer.text
                    said = answer.json()
                    assert (said["lines"], said["accepted"], said["rejected"]) == (5, 1, 3), step
                    assert [each["line"] for each in said["first_rejected"]] == [1, 2, 3]

    asyncio.run(story())


class LateClock(SystemClock):
    """The system's clock, `ahead_ms` later."""

    ahead_ms = 0

    def unix_ms(self) -> int:
        return super().unix_ms() + self.ahead_ms


@pytest.mark.parametrize(
    ("path", "body", "known"),
    [
        ("/v1/crawls", {"name": "news", "spec": SPEC, "start": False}, 201),
        ("/v1/schedules", {"name": "nightly", "crawl": "docs", "verb": "pause", "every_s": 3600}, 201),
        ("/v1/exclusions", {"target": "example.net", "reason": "asked for"}, 201),
        ("/v1/api-keys", {"name": "ci", "role": "viewer"}, 409),
    ],
)
def test_a_repeat_is_known_for_a_day_and_is_a_request_of_its_own_afterwards(
    tmp_path: Path, server: BrokerServer, path: str, body: dict[str, object], known: int
) -> None:
    """No other request may be needed to forget the first answer: it was given for something that was long deleted."""

    async def story() -> None:
        async with (
            server.broker() as broker,
            api(tmp_path / "crawl.db", broker) as served,
            served.as_role(Role.ADMIN) as client,
        ):
            await served.created("docs", start=False)
            clock, keyed = LateClock(), {"Idempotency-Key": "k"}
            served.app.state.services = replace(served.app.state.services, clock=clock)
            made = await client.post(path, json=body, headers=keyed)
            assert made.status_code == 201, made.text
            place = made.headers["location"]
            assert (await client.delete(place)).is_success
            clock.ahead_ms = REMEMBERED_MS - 60_000
            assert (await client.post(path, json=body, headers=keyed)).status_code == known
            assert (await client.get(place)).status_code == 404, "it was not made again"
            clock.ahead_ms = REMEMBERED_MS + 60_000
            again = await client.post(path, json=body, headers=keyed)
            assert again.status_code == 201, again.text
            assert (await client.get(again.headers["location"])).status_code == 200
            repeated = await client.post(path, json=body, headers=keyed)
            assert repeated.status_code == known
            assert known == 409 or repeated.json() == again.json()

    asyncio.run(story())


def test_create_at_crawl_limit_is_refused_until_one_is_deleted(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        tuned = MasterTuning(max_crawls=2)
        async with (
            server.broker() as broker,
            api(tmp_path / "crawl.db", broker, tuning=lambda: tuned) as served,
            served.as_role(Role.OPERATOR) as client,
        ):
            keyed = {"Idempotency-Key": "a"}
            body = {"name": "a", "spec": SPEC, "start": False}
            assert (await client.post("/v1/crawls", json=body, headers=keyed)).status_code == 201
            wanted = {"spec": SPEC, "start": False}
            assert (await client.put("/v1/crawls/b", json=wanted)).status_code == 201
            refused = [
                await client.post("/v1/crawls", json={**wanted, "name": "c"}),
                await client.put("/v1/crawls/c", json=wanted),
                await client.put("/v1/crawls/c", json=wanted, headers={"If-None-Match": "*"}),
            ]
            for answer in refused:
                said = problem(answer, 409, "full")
                assert said["detail"] == "there are 2 crawls already, as many as there may be"
                assert "raise master.max_crawls" in said["hint"]
            assert (await client.post("/v1/crawls", json=body, headers=keyed)).status_code == 201, "the same again"
            assert (await client.put("/v1/crawls/b", json={**wanted, "labels": {"a": "b"}})).status_code == 200
            assert (await client.delete("/v1/crawls/a")).status_code == 204
            assert (await client.put("/v1/crawls/c", json=wanted)).status_code == 201

    asyncio.run(story())


def test_a_master_that_was_told_so_takes_larger_bodies_or_only_smaller_ones(tmp_path: Path) -> None:
    async def story() -> None:
        for max_count in (1 << 16, 1 << 23):
            told = api(tmp_path / f"{max_count}.db", body_bytes=max_count)
            async with told as served, served.as_role(Role.OPERATOR) as client:
                for size, status in ((max_count, 422), (max_count + 1, 413)):
                    body = b'{"x": "' + b"x" * (size - 9) + b'"}'
                    answer = await client.post("/v1/crawls", content=body, headers={"Content-Type": "application/json"})
                    assert answer.status_code == status, answer.text

    asyncio.run(story())


def test_root_redirects_to_docs_and_problem_holds_only_set_fields(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served:
            root = await served.anonymous.get("/")
            assert (root.status_code, root.headers["location"]) == (307, "/docs")
            assert (await served.anonymous.get("/", follow_redirects=True)).status_code == 200
            async with served.as_role(Role.OPERATOR) as client:
                missing = problem(await client.get("/v1/crawls/none"), 404, "not-found")
                wrong = problem(await client.put("/v1/config", json={"worker": {"max_visits": 0}}), 422, "invalid")
            assert set(missing) == {"type", "title", "status", "detail", "instance", "request_id"}
            assert set(wrong) == {*missing, "errors"}
            assert [set(error) for error in wrong["errors"]] == [{"path", "message"}]

    asyncio.run(story())


def test_spec_that_workers_could_not_get_is_refused_with_its_size(tmp_path: Path) -> None:
    """One value of etcd has at most 1.5 MiB. A spec beyond that was stored, and stopped the leader."""
    seeds = [f"https://example.org/{number:06}/{'x' * 40}" for number in range(20_000)]
    prefix, plain = {"seeds": seeds, "scope": {"mode": "prefix"}}, {"seeds": seeds}
    override = {"hosts": ["example.org"], "mode": "prefix"}
    long = {"seeds": seeds[:1], "fetch": {"headers": {"x-long": "x" * MAX_SPEC_BYTES}}}

    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.OPERATOR) as client:
            made = await client.post("/v1/crawls", json={"name": "docs", "spec": plain})
            assert (made.status_code, made.json()["blocking_reason"]) == (201, None), "workers do not need these seeds"
            for answer in (
                await client.post("/v1/crawls", json={"name": "other", "spec": prefix}),
                await client.put("/v1/crawls/docs", json={"spec": prefix}),
                await client.post("/v1/crawls/docs/plan", json={"spec": prefix}),
                await client.patch("/v1/crawls/docs", json={"spec": {"scope": {"mode": "prefix"}}}),
                await client.patch("/v1/crawls/docs", json={"spec": {"scope": {"extra_hops": 1}}}),
                await client.patch("/v1/crawls/docs", json={"spec": {"overrides": [override]}}),
            ):
                (error,) = problem(answer, 422, "invalid")["errors"]
                assert error["path"] == "spec.seeds"
                assert f"the limit is {MAX_SPEC_BYTES}" in error["message"]
                assert "POST /v1/crawls/{name}/seeds" in error["hint"]
            assert (await client.get("/v1/crawls/docs")).json()["revision"] == 1
            (error,) = problem(await client.put("/v1/crawls/docs", json={"spec": long}), 422, "invalid")["errors"]
            assert (error["path"], error["hint"]) == ("spec", "shorten its patterns, rules and overrides")

    asyncio.run(story())


def test_stored_spec_that_is_too_large_says_what_stops_the_crawl(tmp_path: Path) -> None:
    """An earlier version stored it."""
    seeds = tuple(Seed(url=f"https://example.org/{number:06}/{'x' * 40}") for number in range(20_000))
    spec = encode_spec(CrawlSpec(name="docs", seeds=seeds, scope=Scope(mode=ScopeMode.PREFIX))).decode()

    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.OPERATOR) as client:
            await served.catalog.create(Declaration("docs", spec, {}), start=True, actor=SOMEONE, now_ms=0)
            crawl = (await client.get("/v1/crawls/docs")).json()
            assert "the spec is too large: seeds: workers would get" in crawl["blocking_reason"]

    asyncio.run(story())
