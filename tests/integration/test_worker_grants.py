"""A worker fetches only while its grant lasts, hands back what it may not do, and lets go of what is another's."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from cli.local.supervisor import RoleProcess, logged_error_of
from shared.domain.web.url import Location, fingerprint
from shared.wire.messages import Answer, Begin, Extend, Go, Gone, WorkerStatus, decode_status
from shared.wire.subjects import WORKER_STATUS
from tests.support.api.scripted_owner import (
    ScriptedOwner,
    exit_of,
    owner_of,
    paths,
    settings_for,
    spec_for,
    worker,
    worker_process,
)
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server
from tests.support.web.fetchers import run
from tests.support.web.raw_server import Connection, RawServer, Script, page, raw_server
from workers.main import StopRequest
from workers.main import run as work
from workers.page_reading import read
from workers.runtime import pause_s

NO_ROBOTS = spec_for("http://127.0.0.1/", politeness={"obey_robots": False})


class Slow:
    """Answers at once, but the path `/slow` never; notes when that was asked for and when its connection went."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.gone = asyncio.Event()

    async def __call__(self, connection: Connection) -> None:
        while True:
            request = await connection.request()
            if b" /slow " in request:
                self.asked.set()
                await connection.gone()
                self.gone.set()
                return
            await connection.send(page(b"<title>quick</title>", b"Content-Type: text/html"))


@asynccontextmanager
async def visited(server: BrokerServer, folder: Path, site: Script) -> AsyncIterator[tuple[RawServer, ScriptedOwner]]:
    """A site, an owner and a worker that visits it without robots.txt."""
    async with (
        raw_server(site) as served,
        owner_of(server, folder, NO_ROBOTS) as owner,
        worker(server, folder),
    ):
        yield served, owner


def test_grant_end_cancels_requests_and_sends_nothing_after(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow()
        async with (
            raw_server(slow) as site,
            owner_of(server, tmp_path, NO_ROBOTS, ack_wait_s=3600) as owner,
            worker(server, tmp_path, ack_wait_s=3600),
        ):
            owner.grant_ms = 4_000
            owner.on_extend = lambda _: None
            lease = await owner.send(site.url("/quick"), site.url("/slow"), site.url("/never"))
            await slow.asked.wait()
            await slow.gone.wait()
            await owner.until(lambda: bool(owner.results(lease)))
            assert paths(owner.results(lease), [site.url("/quick")]) == [site.url("/quick")]
            assert not any(outcome.final or outcome.not_attempted for outcome in owner.outcomes)
            assert len(site.requests) == 2

    run(main())


@pytest.mark.long
def test_a_grant_that_is_extended_outlasts_lost_answers(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow()
        lost = 2

        def sometimes(question: Extend) -> Answer | None:
            nonlocal lost
            lost -= 1
            return None if lost >= 0 else Go(question.grant, 6_000)  # a third of which is gone soon

        async with visited(server, tmp_path, slow) as (site, owner):
            owner.grant_ms = 12_000  # the third question comes two seconds before what is in flight is cut
            owner.on_extend = sometimes
            lease = await owner.send(site.url("/slow"))
            await slow.asked.wait()
            extends = 3
            await owner.until(lambda: sum(isinstance(asked, Extend) for asked in owner.questions) >= extends)
            assert not slow.gone.is_set()
            owner.on_extend = lambda _: Gone()
            await slow.gone.wait()
            assert owner.results(lease) == []

    run(main())


@pytest.mark.long
def test_lost_lease_ends_requests_and_leaves_the_message(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow()
        async with (
            raw_server(slow) as site,
            owner_of(server, tmp_path, NO_ROBOTS, ack_wait_s=3) as owner,
            worker(server, tmp_path, ack_wait_s=3),
        ):
            owner.grant_ms = 4_000
            owner.on_extend = lambda _: Gone()
            lease = await owner.send(site.url("/quick"), site.url("/slow"))
            await slow.gone.wait()
            owner.on_begin = lambda _: Gone()
            await owner.slot_free()  # it came again, and was then acknowledged
            deliveries = [asked.delivery for asked in owner.questions if isinstance(asked, Begin)]
            assert deliveries == [1, 2]
            holders = {asked.holder for asked in owner.questions if isinstance(asked, Begin)}
            assert len(holders) == 2
            assert not any(outcome.final for outcome in owner.outcomes)
            assert paths(owner.results(lease), [site.url("/quick")]) == [site.url("/quick")]

    run(main())


@pytest.mark.long
def test_without_an_answer_nothing_is_fetched_and_the_shard_comes_again(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        async with visited(server, tmp_path, Slow()) as (site, owner):
            asked: list[int] = []

            def first_silent(question: Begin) -> Answer | None:
                asked.append(len(site.requests))
                return None if len(asked) == 1 else owner.go(question)

            owner.on_begin = first_silent
            await owner.ended(await owner.send(site.url("/quick")))
            assert asked == [0, 0]

    run(main())


def test_no_request_starts_before_the_rest_that_the_owner_asks_for(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        async with visited(server, tmp_path, Slow()) as (site, owner):
            owner.rest_ms = 400
            loop = asyncio.get_running_loop()
            begun: list[float] = []

            def note(question: Begin) -> Answer:
                begun.append(loop.time())
                return owner.go(question)

            owner.on_begin = note
            await owner.ended(await owner.send(site.url("/quick")))
            assert loop.time() - begun[0] >= 0.4

    run(main())


def test_visit_told_to_stop_sends_nothing_more_and_hands_back_the_rest(server: BrokerServer, tmp_path: Path) -> None:
    """Its host was blocked: the lease ends at once, no grant expires, and nothing in flight is broken off."""

    async def main() -> None:
        async with visited(server, tmp_path, Slow()) as (site, owner):
            owner.grant_ms = 6_000
            owner.on_extend = lambda question: Go(question.grant, owner.grant_ms, stop=True)
            lease = await owner.send(site.url("/quick"), site.url("/late"), delay_ms=4_500)
            ended = await owner.ended(lease)
            assert ended.not_attempted == [fingerprint(site.url("/late"))]
            assert paths(owner.results(lease), [site.url("/quick")]) == [site.url("/quick")]
            assert len(site.requests) == 1
            assert sum(isinstance(asked, Extend) for asked in owner.questions) == 1
            await owner.slot_free()

    run(main())


@pytest.mark.parametrize("when", ["begin", "extend"])
def test_visit_keeps_the_delay_that_its_owner_knows_now(server: BrokerServer, tmp_path: Path, when: str) -> None:
    """A delay of a minute: the next request would start later than a visit may, so the rest is handed back."""

    async def main() -> None:
        async with visited(server, tmp_path, Slow()) as (site, owner):
            owner.grant_ms = 6_000
            delays = {when: 60_000}

            def begin(question: Begin) -> Answer:
                answer = owner.go(question)
                assert isinstance(answer, Go)
                return msgspec.structs.replace(answer, delay_ms=delays.get("begin", 0))

            owner.on_begin = begin
            owner.on_extend = lambda question: Go(question.grant, owner.grant_ms, delay_ms=delays.get("extend", 0))
            lease = await owner.send(site.url("/quick"), site.url("/late"), delay_ms=20_000)
            ended = await owner.ended(lease)
            assert ended.not_attempted == [fingerprint(site.url("/late"))]
            assert len(site.requests) == 1

    run(main())


def test_a_drain_ends_what_is_in_flight_and_hands_back_the_rest(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow()
        statuses: list[WorkerStatus] = []
        async with (
            raw_server(slow) as site,
            owner_of(server, tmp_path, NO_ROBOTS) as owner,
            owner.broker.listen(WORKER_STATUS) as heard,
        ):
            async with worker(server, tmp_path, grace_s=0) as stop:
                lease = await owner.send(site.url("/quick"), site.url("/slow"), site.url("/never"))
                await slow.asked.wait()
                stop.terminate()
                last = await owner.ended(lease)
                await slow.gone.wait()
            assert last.not_attempted == [fingerprint(site.url("/slow")), fingerprint(site.url("/never"))]
            assert paths(owner.results(lease), [site.url("/quick")]) == [site.url("/quick")]
            await owner.slot_free()
            async for status in heard:
                statuses.append(decode_status(status))
                if not statuses[-1].pulling and statuses[-1].busy == 0:
                    break
            assert statuses[0].pulling
            assert statuses[-1].pages == 1

    run(main())


def test_a_visit_under_way_goes_on_within_the_grace(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def held(connection: Connection) -> None:
            while True:
                await connection.request()
                asked.set()
                await go_on.wait()
                await connection.send(page(b"text", b"Content-Type: text/plain"))

        async with (
            raw_server(held) as site,
            owner_of(server, tmp_path, NO_ROBOTS) as owner,
            worker(server, tmp_path, grace_s=3600) as stop,
        ):
            lease = await owner.send(site.url("/1"), site.url("/2"))
            await asked.wait()
            stop.terminate()
            go_on.set()
            last = await owner.ended(lease)
            assert (len(owner.results(lease)), last.not_attempted) == (2, [])

    run(main())


def test_told_twice_to_end_it_hands_its_shards_back_at_once(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow()
        async with raw_server(slow) as site, owner_of(server, tmp_path, NO_ROBOTS, ack_wait_s=3600) as owner:
            async with worker(server, tmp_path, grace_s=3600, ack_wait_s=3600) as stop:
                await owner.send(site.url("/slow"))
                await slow.asked.wait()
                stop.terminate()
                stop.terminate()
            await slow.gone.wait()
            owner.on_begin = lambda _: Gone()
            async with worker(server, tmp_path, id="w2"):
                await owner.slot_free()
            assert [asked.delivery for asked in owner.questions if isinstance(asked, Begin)][1] >= 2

    run(main())


def test_a_deleted_crawl_is_handed_back_unfetched(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        async with raw_server(Slow()) as site, owner_of(server, tmp_path, NO_ROBOTS) as owner:
            await owner.publish_spec(NO_ROBOTS, revision=2, gone=True)
            async with worker(server, tmp_path):
                last = await owner.ended(await owner.send(site.url("/quick")))
            assert last.not_attempted == [fingerprint(site.url("/quick"))]
            assert site.requests == []

    run(main())


def test_sigterm_drains_a_worker_process(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow()
        async with raw_server(slow) as site, owner_of(server, tmp_path, NO_ROBOTS) as owner:
            lease = await owner.send(site.url("/quick"), site.url("/slow"))
            with worker_process(server, tmp_path, ORB_GRACE_S="0") as process:
                await slow.asked.wait()
                process.terminate()
                assert await exit_of(process) == 0
            last = await owner.ended(lease)
            assert last.not_attempted == [fingerprint(site.url("/slow"))]
            assert not list((tmp_path / "archive").glob("*.open")), "the archive was finished"

    run(main())


@pytest.mark.long
def test_without_a_broker_it_says_so_and_ends(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        server.kill()
        with capture_logs() as logs:
            assert await work(settings_for(server, tmp_path), StopRequest()) == 4
        assert [line["event"] for line in logs if line["log_level"] == "error"] == ["worker.disconnected"]

    run(main())


def test_what_no_restart_can_help_is_said_in_the_words_that_end_a_run(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        with capture_logs() as logs:
            assert await work(settings_for(server, tmp_path, metrics="192.0.2.1:9"), StopRequest()) == 4
        last = RoleProcess("worker-1", ["_worker"], tmp_path / "log", {})
        (tmp_path / "log").write_text("\n".join(map(json.dumps, logs)))
        assert "choose another with --metrics" in (logged_error_of(last) or "")

    run(main())


def test_a_visit_that_fails_by_our_error_hands_its_shard_back_at_once(
    server: BrokerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls: list[str] = []
    broken = 1

    def read_once_broken(crawl: Any, at: Location, *rest: Any) -> Any:
        nonlocal broken
        if at.url == urls[1] and broken:
            broken -= 1
            raise ZeroDivisionError("an error of ours")
        return read(crawl, at, *rest)

    async def main() -> None:
        async with (
            raw_server(Slow()) as site,
            owner_of(server, tmp_path, NO_ROBOTS, ack_wait_s=3600) as owner,
            worker(server, tmp_path, ack_wait_s=3600),
        ):
            owner.grant_ms = 3_600_000
            urls.extend(site.url(f"/{n}") for n in range(3))
            lease = await owner.send(*urls)
            with capture_logs() as logs:
                await owner.ended(lease)
            [failed] = [outcome for outcome in owner.outcomes if outcome.failed]
            assert (failed.grant, failed.final, paths(failed.results, urls)) == (1, False, urls[:1])
            assert failed.quiet_ms >= 0
            assert paths(owner.results(lease), urls) == urls
            assert [asked.delivery for asked in owner.questions if isinstance(asked, Begin)] == [1, 2]
            assert [entry["exc_info"] for entry in logs if entry["event"] == "visit.failed"] == [True]

    monkeypatch.setattr("workers.discover.reading.read", read_once_broken)
    run(main())


def test_many_large_pages_at_once_end_within_their_first_grants(server: BrokerServer, tmp_path: Path) -> None:
    large = page(b"<title>large</title>" + bytes(600_000), b"Content-Type: text/html")

    async def answer(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.send(large)

    async def main() -> None:
        async with visited(server, tmp_path, answer) as (site, owner):
            urls = [site.url(f"/{n}") for n in range(30)]
            leases = [await owner.send(*urls, slot=slot) for slot in range(6)]
            for lease in leases:
                await owner.ended(lease)
                assert paths(owner.results(lease), urls) == urls
            assert not any(outcome.failed for outcome in owner.outcomes)
            assert sum(isinstance(asked, Begin) for asked in owner.questions) == len(leases)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        run(main())
    finally:
        sys.setswitchinterval(interval)


def test_pauses_after_errors_grow_to_a_grants_length() -> None:
    assert [pause_s(number) for number in (1, 2, 3, 4, 5, 99)] == [0.0, 5.0, 10.0, 20.0, 30.0, 30.0]
