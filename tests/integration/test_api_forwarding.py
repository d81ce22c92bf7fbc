"""What only the leader may do reaches it from any master, once, as whoever asked; or is refused in bounded time."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs

from api.http import forwarding
from api.http.limits import BODY_BYTES
from api.server import serving
from shared.domain.ops.access import Role
from tests.support.api.rest_api import SPEC, Follower, api, problem
from tests.support.web.raw_server import Connection, page, raw_server


def test_a_write_on_a_follower_is_carried_out_by_the_leader_as_whoever_asked(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "crawl.db"
        async with api(path) as leader, api(path, plane=Follower("leader:80"), leader=leader.app) as follower:
            async with follower.as_role(Role.OPERATOR) as client:
                again = {"X-Request-Id": "mine", "Idempotency-Key": "k"}
                with capture_logs() as logs:
                    made = await client.post("/v1/crawls", json={"name": "docs", "spec": SPEC}, headers=again)
                assert made.status_code == 201
                assert made.headers["location"] == "/v1/crawls/docs"
                answered = [line for line in logs if line["event"] == "request.answered"]
                assert [line["status"] for line in answered] == [201, 201], "the follower's and the leader's"
                assert made.headers.get_list("x-request-id") == ["mine"]
                shown = await client.get("/v1/crawls/docs")
                assert shown.json() == made.json(), "reads are the follower's own"
                assert shown.headers["etag"] == made.headers["etag"]
                assert shown.headers["etag"].startswith('"1-1.')
                plan = await client.post("/v1/crawls/docs/plan", json={"spec": SPEC})
                assert plan.json()["action"] == "none"
                stale = await client.put("/v1/crawls/docs", json={"spec": SPEC}, headers={"If-Match": '"1-9"'})
                problem(stale, 412, "lost-update")
                assert stale.headers["etag"] == shown.headers["etag"]
                no_method = await client.delete("/v1/crawls")
                problem(no_method, 405, "method-not-allowed")
                assert no_method.headers["allow"] == "GET, HEAD, POST"
            async with follower.as_role(Role.VIEWER) as viewer:
                problem(await viewer.delete("/v1/crawls/docs"), 403, "forbidden")
            problem(await follower.anonymous.delete("/v1/crawls/docs"), 401, "unauthenticated")

    asyncio.run(story())


def test_followers_that_name_each_other_leader_forward_nothing_in_loops(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "crawl.db"
        async with (
            api(path, plane=Follower("a:80")) as other,
            api(path, plane=Follower("b:80"), leader=other.app) as follower,
            follower.as_role(Role.OPERATOR) as client,
        ):
            with capture_logs() as logs:
                refused = await client.post("/v1/crawls", json={"name": "docs", "spec": SPEC})
            problem(refused, 503, "no-leader")
            assert int(refused.headers["retry-after"]) > 0
            assert len([line for line in logs if line["event"] == "request.answered"]) == 2, "one hop, not more"

    asyncio.run(story())


def test_without_a_leader_writes_are_refused_at_once_and_reads_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            api(tmp_path / "crawl.db", plane=Follower(None)) as served,
            served.as_role(Role.OPERATOR) as client,
        ):
            refused = await client.post("/v1/crawls", json={"name": "docs", "spec": SPEC})
            problem(refused, 503, "no-leader")
            assert int(refused.headers["retry-after"]) > 0
            assert (await client.get("/v1/crawls")).status_code == 200

    asyncio.run(story())


def test_a_leader_that_is_gone_or_silent_is_a_503_in_bounded_time(tmp_path: Path) -> None:
    async def story() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        listening = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        async with (
            api(tmp_path / "crawl.db", plane=Follower(f"127.0.0.1:{port}"), answer_s=2.0) as served,
            served.as_role(Role.OPERATOR) as client,
        ):
            body = {"name": "docs", "spec": SPEC}
            said = problem(await client.post("/v1/crawls", json=body), 503, "no-leader")
            assert "Idempotency-Key" in said["hint"], "the change may have been made"
            listening.close()
            await listening.wait_closed()
            said = problem(await client.post("/v1/crawls", json=body), 503, "no-leader")
            assert "nothing was done" in said["detail"]

    asyncio.run(story())


def test_write_does_not_meet_leaders_closing_of_kept_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader closes what has rested; on a machine that stands still, with a request already in it."""
    assert 2 * forwarding.KEPT_S < serving.RESTS_S
    monkeypatch.setattr("api.http.forwarding.KEPT_S", 0.1)

    async def closing(connection: Connection) -> None:
        await connection.request()
        await connection.send(page(b"{}"))
        await connection.reader.read(1)

    async def story() -> None:
        async with (
            raw_server(closing) as leader,
            api(tmp_path / "crawl.db", plane=Follower(f"127.0.0.1:{leader.port}")) as served,
            served.as_role(Role.OPERATOR) as client,
        ):
            for _ in range(3):
                assert (await client.delete("/v1/crawls/docs")).status_code == 200
                await asyncio.sleep(0.2)

    asyncio.run(story())


@pytest.mark.parametrize(
    "target",
    [b"%2Fv1%2F@elsewhere.test/v1/crawls", b"%2Fv1/crawls", b"/v1/crawls\xc3\xa9", b"/v1/crawls".ljust(70_000, b"x")],
    ids=["a user's name", "a port", "no ASCII", "too long"],
)
def test_no_address_that_a_caller_makes_up_leads_anywhere_but_to_the_leader(tmp_path: Path, target: bytes) -> None:
    """What stands behind `http://leader:80` decides whom a request is sent to, with the caller's key: `@` and all."""
    reached: list[Scope] = []

    async def anybody(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def story() -> None:
        path = tmp_path / "crawl.db"
        async with api(path, plane=Follower("leader:80"), leader=anybody) as follower:
            said: list[Message] = []

            async def body() -> Message:
                return {"type": "http.request", "body": b"{}", "more_body": False}

            async def hear(message: Message) -> None:
                said.append(message)

            key = f"Bearer {follower.keys[Role.VIEWER]}".encode()
            scope = {
                "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "query_string": b"",
                "path": "/v1/crawls", "raw_path": target, "root_path": "", "headers": [(b"authorization", key)],
                "server": ("master", 80), "client": ("127.0.0.1", 1),
            }  # fmt: skip
            await follower.app(scope, body, hear)
            assert said[0]["status"] == 404
            assert reached == []

    asyncio.run(story())


def test_only_uploads_of_seeds_are_read_without_a_bound(tmp_path: Path) -> None:
    """What is passed on is held in memory."""

    async def story() -> None:
        async with (
            api(tmp_path / "crawl.db", plane=Follower("leader:80"), leader=api_of_nobody) as follower,
            follower.as_role(Role.VIEWER) as client,
        ):
            read = 0

            async def endless() -> AsyncIterator[bytes]:
                nonlocal read
                while True:
                    read += 1 << 16
                    assert read < 8 * BODY_BYTES, "it would have been read for ever"
                    yield bytes(1 << 16)

            problem(await client.post("/v1/config/seeds", content=endless()), 413, "too-large")

    asyncio.run(story())


async def api_of_nobody(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("nothing is passed on")
