"""Two who want different things of one crawl at once, at two masters: what may come of it, and what never does."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.domain.ids import Partition
from shared.domain.ops.access import Role
from shared.wire.messages import Discoveries, decode_discoveries
from tests.support.api.rest_api import PARTITIONS, SPEC, Api, Follower, api, problem
from tests.support.engines.nats_server import BrokerServer, stored
from tests.support.engines.nats_server import server as server

ROUNDS = 12


def by_address(apps: dict[str, ASGIApp]) -> ASGIApp:
    """Whoever asks reaches the master whose address it has."""

    async def reached(scope: Scope, receive: Receive, send: Send) -> None:
        await apps[dict(scope["headers"])[b"host"].decode()](scope, receive, send)

    return reached


async def crawls(served: Api) -> list[dict[str, Any]]:
    async with served.as_role(Role.VIEWER) as viewer:
        items: list[dict[str, Any]] = (await viewer.get("/v1/crawls")).json()["items"]
    return items


def test_a_delete_and_a_start_at_once_leave_no_crawl_whichever_comes_first(
    tmp_path: Path, server: BrokerServer
) -> None:
    async def story() -> None:
        path = tmp_path / "crawl.db"
        async with server.broker() as broker, api(path, broker) as one, api(path, broker) as other:
            seen = set()
            for number in range(ROUNDS):
                name = f"docs-{number}"
                made = (await one.created(name, start=False)).json()
                async with one.as_role(Role.OPERATOR) as starter, other.as_role(Role.OPERATOR) as deleter:
                    first, second = (starter, deleter) if number % 2 else (deleter, starter)
                    start, delete = f"/v1/crawls/{name}/start", f"/v1/crawls/{name}"
                    answers = await asyncio.gather(
                        *(
                            client.post(start) if client is starter else client.delete(delete)
                            for client in (first, second)
                        )
                    )
                    started, deleted = answers if first is starter else answers[::-1]
                    seen.add((started.status_code, deleted.status_code))
                    problem(await starter.get(delete), 404, "not-found")
                    again = (await one.created(name)).json()
                    assert again["id"] > made["id"], "another crawl, which nobody has deleted or started"
                    assert (await deleter.get(delete)).json()["state"] == "seeding"
            assert seen <= {(200, 204), (404, 204)}, seen

    asyncio.run(story())


def test_delete_of_seen_version_is_refused_after_another_start(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        path = tmp_path / "crawl.db"
        async with server.broker() as broker, api(path, broker) as one, api(path, broker) as other:
            tag = (await one.created("docs", start=False)).headers["etag"]
            async with one.as_role(Role.OPERATOR) as starter, other.as_role(Role.OPERATOR) as deleter:
                assert (await starter.post("/v1/crawls/docs/start")).status_code == 200
                refused = await deleter.delete("/v1/crawls/docs", headers={"If-Match": tag})
                problem(refused, 412, "lost-update")
                now = await starter.get("/v1/crawls/docs")
                assert now.json()["state"] == "seeding"
                assert refused.headers["etag"] == now.headers["etag"]

    asyncio.run(story())


def test_upload_to_crawl_deleted_meanwhile_is_404_and_seeds_no_other(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        path = tmp_path / "crawl.db"
        async with server.broker() as broker, api(path, broker) as one, api(path, broker) as other:
            for again in (False, True):
                old = (await one.created("docs")).json()["id"]
                async with one.as_role(Role.OPERATOR) as uploader, other.as_role(Role.OPERATOR) as deleter:

                    async def lines(deleter: httpx.AsyncClient = deleter, again: bool = again) -> AsyncIterator[bytes]:
                        yield b"http://a.test/1\n"
                        assert (await deleter.delete("/v1/crawls/docs")).status_code == 204
                        if again:
                            await other.created("docs")
                        yield b"http://a.test/2\n"

                    text = {"Content-Type": "text/plain"}
                    answer = await uploader.post("/v1/crawls/docs/seeds", content=lines(), headers=text)
                    problem(answer, 404, "not-found")
                    messages: list[Discoveries] = []
                    for partition in range(PARTITIONS):
                        messages += map(decode_discoveries, await stored(broker, Partition(partition), "discovery"))
                    assert {message.crawl for message in messages} <= set(range(1, old + 1)), "never the new one's"
                    if again:
                        assert [crawl["id"] for crawl in await crawls(one)] == [old + 1]

    asyncio.run(story())


def test_create_forwarded_by_two_masters_in_leader_change_runs_once(tmp_path: Path) -> None:
    """One follower still takes the former leader for the leader, which does not know yet that it is none."""

    async def story() -> None:
        path = tmp_path / "crawl.db"
        async with api(path) as former, api(path) as present:
            leaders = by_address({"former": former.app, "present": present.app})
            async with (
                api(path, plane=Follower("former:80"), leader=leaders) as one,
                api(path, plane=Follower("present:80"), leader=leaders) as other,
            ):
                ids = set()
                for number in range(ROUNDS):
                    body = {"name": f"docs-{number}", "spec": SPEC}
                    again = {"Idempotency-Key": f"k-{number}", "Authorization": f"Bearer {one.keys[Role.OPERATOR]}"}
                    answers = await asyncio.gather(
                        *(each.anonymous.post("/v1/crawls", json=body, headers=again) for each in (one, other) * 2)
                    )
                    assert {answer.status_code for answer in answers} == {201}
                    assert len({(answer.json()["id"], answer.headers["etag"]) for answer in answers}) == 1
                    ids.add(answers[0].json()["id"])
                assert len(ids) == len(await crawls(one)) == ROUNDS

    asyncio.run(story())


def test_create_whose_answer_died_with_leader_is_not_repeated(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "crawl.db"
        async with api(path) as dying, api(path) as present:

            async def silenced(scope: Scope, receive: Receive, send: Send) -> None:
                """Does what it was asked, and dies before it says so."""

                async def unheard(message: Message) -> None:
                    pass

                await dying.app(scope, receive, unheard)
                raise httpx.ReadError("the connection broke")

            leaders = by_address({"dying": silenced, "present": present.app})
            async with (
                api(path, plane=Follower("dying:80"), leader=leaders) as one,
                api(path, plane=Follower("present:80"), leader=leaders) as other,
            ):
                key = {"Idempotency-Key": "k", "Authorization": f"Bearer {one.keys[Role.OPERATOR]}"}
                body = {"name": "docs", "spec": SPEC}
                lost = problem(await one.anonymous.post("/v1/crawls", json=body, headers=key), 503, "no-leader")
                assert "Idempotency-Key" in lost["hint"]
                [made] = await crawls(other)
                again = await other.anonymous.post("/v1/crawls", json=body, headers=key)
                assert (again.status_code, again.json()["id"]) == (201, made["id"])
                assert len(await crawls(other)) == 1
                bare = await other.anonymous.post(
                    "/v1/crawls", json=body, headers={"Authorization": key["Authorization"]}
                )
                problem(bare, 409, "exists")

    asyncio.run(story())
