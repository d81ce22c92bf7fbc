"""Events over a real socket: whoever was cut off goes on where he was, on any master, and nobody holds up anybody."""

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

import api.http.sse
import api.server.serving
from shared.adapters.nats.jetstream import demand
from shared.domain.ops.access import Role
from shared.domain.reads.declared import Actor
from shared.wire.events import EVENTS, Event, EventKind, encode_event
from tests.support.api.event_streams import consumers, freed, happen, masters, numbers
from tests.support.api.rest_api import problem
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server

ADMIN = Actor("0" * 16, "admin", "r")


def test_what_happens_is_told_from_now_on_as_a_browser_reads_it(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with masters(tmp_path, server) as [master]:
            await happen(master.broker.events, 1)
            async with master.follow() as client:
                last = await happen(master.broker.events, 2, 3)
                assert await client.said(2) == numbers(2, 3)
                assert client.last == last
                assert "content-length" not in client.response.headers
                assert client.response.headers["cache-control"] == "no-store"
                event = Event(EventKind.CRAWL, "1", "paused", 1_893_456_000_000, "m1", "docs", {"n": 4})
                await master.broker.events.publish("events.crawl.1", encode_event(event), "4")
                one = await client.next()
            assert (one.event, one.id) == ("crawl", last + 1)
            assert one.data == {
                "kind": "crawl", "about": "1", "action": "paused", "at": "2030-01-01T00:00:00Z", "member": "m1",
                "crawl": "docs", "data": {"n": 4},
            }  # fmt: skip

    asyncio.run(story())


def test_disconnected_client_resumes_on_another_master_without_gap(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with masters(tmp_path, server, 2) as [one, other]:
            async with one.follow() as client:
                await happen(one.broker.events, *range(10))
                assert await client.said(5) == numbers(*range(5))
                last = client.last
            await happen(other.broker.events, *range(10, 20))
            async with other.follow(last=last) as client:
                assert await client.said(15) == numbers(*range(5, 20))
                await happen(one.broker.events, 20)
                assert await client.said(1) == numbers(20)
            async with one.follow(after=0) as client:
                assert await client.said(21) == numbers(*range(21)), "all that is kept, and no word of a gap"

    asyncio.run(story())


def test_who_began_in_the_past_is_told_once_when_that_is_over(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with masters(tmp_path, server) as [master]:
            events = master.broker.events
            await happen(events, 1, 2)
            last = await happen(events, 3, kind=EventKind.WORKER)
            async with (
                master.follow(after=0, kind="crawl") as both,
                master.follow(after=0, kind="alarm") as none,
                master.follow(last=last, kind="crawl") as behind,
                master.follow() as present,
            ):
                assert await both.said(2) == numbers(1, 2)
                await happen(events, 4)
                await happen(events, 5, kind=EventKind.ALARM)
                assert await both.said(1) == await behind.said(1) == await present.said(1) == numbers(4)
                assert await none.said(1) == numbers(5)
                assert [each.past_stored for each in (both, none, behind, present)] == [[2], [0], [0], []]

    asyncio.run(story())


def test_a_stream_lives_through_the_death_of_the_broker(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with (
            masters(tmp_path, server) as [master],
            server.broker(declare=False) as teller,
            master.follow() as client,
        ):
            await happen(teller.events, 1)
            assert await client.said(1) == numbers(1)
            server.kill()
            await server.restart()
            await happen(teller.events, 2, 3)
            assert await client.said(2) == numbers(2, 3)

    asyncio.run(story())


def test_only_the_kinds_and_the_crawl_asked_for_are_told(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with masters(tmp_path, server) as [master]:
            events = master.broker.events
            made = (await master.served.created("docs")).json()
            crawl = str(made["id"])
            async with (
                master.follow("/v1/crawls/docs/events") as all_of_one,
                master.follow("/v1/crawls/docs/events", kind="progress") as progress_of_one,
                master.follow(kind=["crawl", "worker"]) as some,
            ):
                await happen(events, 1, about=crawl)
                await happen(events, 2, about="4711")
                await happen(events, 3, about=crawl, kind=EventKind.PROGRESS)
                await happen(events, 4, about=crawl, kind=EventKind.WORKER)
                await happen(events, 5, about=crawl, kind=EventKind.DEAD_LETTER)
                assert await all_of_one.said(3) == numbers(1, 3, 5)
                assert await progress_of_one.said(1) == numbers(3)
                assert await some.said(3) == numbers(1, 2, 4)

    asyncio.run(story())


def test_all_kinds_can_be_named_in_one_request(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with masters(tmp_path, server) as [master]:
            async with master.follow(kind=list(EventKind)) as client:
                for n, kind in enumerate(EventKind):
                    await happen(master.broker.events, n, kind=kind)
                assert await client.said(len(EventKind)) == numbers(*range(len(EventKind)))
            problem(await master.get(f"/v1/events?{'&'.join(['kind=crawl'] * (len(EventKind) + 1))}"), 422, "invalid")

    asyncio.run(story())


def test_what_has_aged_out_is_told_as_a_gap_and_the_rest_follows(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with masters(tmp_path, server, events_count=5) as [master]:
            first = await happen(master.broker.events, 0)
            last = await happen(master.broker.events, *range(1, 10))
            async with master.follow(last=first) as client:
                gap = await client.next()
                assert (gap.event, gap.data) == (
                    "gap", {"reason": "expired", "after": first, "resumes_at": last - 4},
                )  # fmt: skip
                assert gap.id == last - 5, "whoever is cut off here goes on behind the gap"
                assert await client.said(5) == numbers(*range(5, 10))
            async with master.follow(last=last - 5) as client:
                assert await client.said(5) == numbers(*range(5, 10)), "nothing is missing between"

    asyncio.run(story())


def test_recreated_stream_is_a_gap_for_open_and_returning_readers(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with masters(tmp_path, server) as [master]:
            events = master.broker.events
            async with master.follow() as client:
                last = await happen(events, 1)
                assert await client.said(1) == numbers(1)
                await demand(master.broker._connection, f"STREAM.DELETE.{EVENTS}", None, 5.0)
                await events.declare()
                await happen(events, 2)
                gap = await client.next()
                assert (gap.event, gap.data["reason"], gap.data["after"]) == ("gap", "replaced", last)
                assert await client.said(1) == numbers(2)
            async with master.follow(last=last) as client:
                gap = await client.next()
                assert (gap.event, gap.data["reason"]) == ("gap", "expired")
                assert await client.said(1) == numbers(2)
            async with master.follow(last=2**62) as client:
                gap = await client.next()
                assert (gap.event, gap.data["reason"]) == ("gap", "replaced"), "a place that was never given"
                assert await client.said(1) == numbers(2)

    asyncio.run(story())


def test_a_client_that_leaves_frees_what_was_kept_for_it(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with masters(tmp_path, server) as [master]:
            async with AsyncExitStack() as stack:
                for _ in range(5):
                    await stack.enter_async_context(master.follow())
                assert master.streams.open == 5
                assert await consumers(master.broker) == 5
            await freed(master)

    asyncio.run(story())


def test_event_streams_are_bounded_and_a_closed_one_frees_its_slot(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with masters(tmp_path, server, max_count=2) as [master]:
            async with master.follow(), master.follow():
                refused = await master.get()
                problem(refused, 429, "busy")
                assert int(refused.headers["retry-after"]) > 0
                problem(await master.get("/v1/crawls/none/events"), 429, "busy")
            await freed(master)
            problem(await master.get("/v1/crawls/none/events"), 404, "not-found")
            problem(await master.get(headers={"Last-Event-ID": "x1"}), 422, "invalid")
            problem(await master.get("/v1/events?kind=weather"), 422, "invalid")
            problem(await master.get("/v1/crawls/docs/events?kind=worker"), 422, "invalid")
            assert master.streams.open == 0, "what was refused holds no place"
            async with master.follow():
                assert master.streams.open == 1

    asyncio.run(story())


def test_silence_is_broken_by_pings_that_move_the_place_to_resume_from(
    tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.http.sse, "PING_S", 0.05)

    async def story() -> None:
        async with masters(tmp_path, server) as [master], master.follow(kind="worker") as client:
            last = await happen(master.broker.events, 1, 2, 3)
            async with asyncio.timeout(30):
                while client.last != last:
                    ping = await client.next()
                    assert (ping.event, ping.data) == ("", {})
            await happen(master.broker.events, 4, kind=EventKind.WORKER)
            while not (one := await client.next()).event:
                pass
            assert one.said == "4"

    asyncio.run(story())


def test_a_revoked_key_ends_its_streams(tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.http.sse, "CHECK_S", 0.05)

    async def story() -> None:
        async with masters(tmp_path, server) as [master]:
            async with master.follow() as client:
                await master.served.catalog.revoke_key("viewer", actor=ADMIN, now_ms=1)
                while not (end := await client.next()).event:
                    pass
                assert (end.event, end.data) == ("end", {"reason": "revoked"})
            await freed(master)

    asyncio.run(story())


def test_the_stream_of_a_crawl_ends_with_it(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with masters(tmp_path, server) as [master]:
            crawl = str((await master.served.created("docs")).json()["id"])
            async with master.follow("/v1/crawls/docs/events") as client:
                await happen(master.broker.events, 1, about=crawl)
                await happen(master.broker.events, 2, about=crawl, action="deleted")
                assert await client.said(2) == numbers(1, 2)
                end = await client.next()
                assert (end.event, end.data) == ("end", {"reason": "deleted"})
            await freed(master)

    asyncio.run(story())


@pytest.mark.parametrize("kind", [EventKind.PROGRESS, EventKind.DEAD_LETTER])
def test_stream_of_other_kinds_ends_with_its_crawl(tmp_path: Path, server: BrokerServer, kind: EventKind) -> None:
    async def story() -> None:
        async with masters(tmp_path, server) as [master]:
            crawl = str((await master.served.created("docs")).json()["id"])
            async with master.follow("/v1/crawls/docs/events", kind=kind) as client:
                await happen(master.broker.events, 1, about=crawl, action="paused")
                await happen(master.broker.events, 2, about=crawl, kind=kind)
                await happen(master.broker.events, 3, about=crawl, action="deleted")
                assert await client.said(1) == numbers(2)
                end = await client.next()
                assert (end.event, end.data) == ("end", {"reason": "deleted"})
            await freed(master)

    asyncio.run(story())


def test_a_master_that_stops_says_so_and_does_not_wait_for_its_listeners(
    tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.server.serving, "GRACE_S", 3600)

    async def story() -> None:
        async with AsyncExitStack() as stack:
            async with masters(tmp_path, server) as [master]:
                clients = [await stack.enter_async_context(master.follow()) for _ in range(3)]
                await happen(master.broker.events, 1)
                for client in clients:
                    assert await client.said(1) == numbers(1)
            for client in clients:
                end = await client.next()
                assert (end.event, end.data) == ("end", {"reason": "shutdown"})

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_client_that_reads_nothing_is_cut_off_and_holds_up_nobody(
    tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other takes each event before the next is told: so little never waits in the server for who reads it, and
    no stall of this process makes him slow, too."""
    monkeypatch.setattr(api.http.sse, "SLOW_S", 0.2)

    async def story() -> None:
        async with masters(tmp_path, server) as [master]:
            host, _, port = master.url.removeprefix("http://").partition(":")
            narrow = socket.socket()
            narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            narrow.connect((host, int(port)))
            reader, writer = await asyncio.open_connection(sock=narrow, limit=1024)
            key = master.served.keys[Role.VIEWER]
            writer.write(f"GET /v1/events HTTP/1.1\r\nHost: m\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
            await reader.readuntil(b"retry:")
            with capture_logs() as logs:
                async with master.follow() as client:
                    large = encode_event(Event(EventKind.ALARM, "1", "told", 0, data={"n": 0, "text": "x" * 30_000}))
                    sent = 0
                    async with asyncio.timeout(60):
                        while not any(line["event"] == "event_client.disconnected" for line in logs):
                            await master.broker.events.publish("events.alarm.1", large, f"large {sent}")
                            sent += 1
                            await client.next()
                await freed(master)
            writer.close()

    asyncio.run(story())


def test_without_a_broker_a_stream_is_refused_and_can_be_asked_for_again(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with masters(tmp_path, server) as [master]:
            server.kill()
            refused = await master.get()
            problem(refused, 503, "unavailable")
            assert int(refused.headers["retry-after"]) > 0
            assert master.streams.open == 0
            await server.restart()

    asyncio.run(story())


def test_events_need_a_key(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with masters(tmp_path, server) as [master], httpx.AsyncClient(base_url=master.url) as nobody:
            problem(await nobody.get("/v1/events"), 401, "unauthenticated")

    asyncio.run(story())
