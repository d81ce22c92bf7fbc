"""What only the leader may do reaches it from any master, once, as whoever asked; or is refused in bounded time."""

import asyncio
from pathlib import Path

from structlog.testing import capture_logs

from shared.domain.access import Role
from tests.support.api import SPEC, Follower, api, problem


def test_a_write_on_a_follower_is_carried_out_by_the_leader_as_whoever_asked(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "crawl.db"
        async with api(path) as leader, api(path, plane=Follower("leader:80"), leader=leader.app) as follower:
            async with follower.as_role(Role.OPERATOR) as client:
                again = {"X-Request-Id": "mine", "Idempotency-Key": "k"}
                with capture_logs() as logs:
                    made = await client.post("/v1/crawls", json={"name": "docs", "spec": SPEC}, headers=again)
                assert made.status_code == 201
                assert (made.headers["location"], made.headers["etag"]) == ("/v1/crawls/docs", '"1-1"')
                answered = [line for line in logs if line["event"] == "http.answered"]
                assert [line["status"] for line in answered] == [201, 201], "the follower's and the leader's"
                assert made.headers.get_list("x-request-id") == ["mine"]
                assert (await client.get("/v1/crawls/docs")).json() == made.json(), "reads are the follower's own"
                plan = await client.post("/v1/crawls/docs/plan", json={"spec": SPEC})
                assert plan.json()["action"] == "none"
                stale = await client.put("/v1/crawls/docs", json={"spec": SPEC}, headers={"If-Match": '"1-9"'})
                problem(stale, 412, "lost-update")
                assert stale.headers["etag"] == '"1-1"'
            async with follower.as_role(Role.VIEWER) as viewer:
                problem(await viewer.delete("/v1/crawls/docs"), 403, "forbidden")
            problem(await follower.anonymous.delete("/v1/crawls/docs"), 401, "unauthenticated")

    asyncio.run(story())


def test_two_followers_that_take_each_other_for_the_leader_pass_nothing_to_and_fro(tmp_path: Path) -> None:
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
            assert len([line for line in logs if line["event"] == "http.answered"]) == 2, "one hop, not more"

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
            api(tmp_path / "crawl.db", plane=Follower(f"127.0.0.1:{port}"), answer_s=0.5) as served,
            served.as_role(Role.OPERATOR) as client,
        ):
            body = {"name": "docs", "spec": SPEC}
            said = problem(await client.post("/v1/crawls", json=body), 503, "no-leader")
            assert "Idempotency-Key" in said["hint"], "it may have been done"
            listening.close()
            await listening.wait_closed()
            said = problem(await client.post("/v1/crawls", json=body), 503, "no-leader")
            assert "nothing was done" in said["detail"]

    asyncio.run(story())
