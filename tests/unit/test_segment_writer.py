"""The writer's promises, on a store whose failures and pauses are chosen."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import pytest
import uvloop

from shared.domain.archive.model import ArchivedCrawl, RecordLocation
from shared.domain.ids import CrawlId
from shared.ports.archive import ArchiveFull, RecordUnreadable
from tests.support.archive.exchanges import AT_MS, exchange, read_all
from tests.support.whole_records import read_response
from workers.archive import RecordIds, WarcArchive
from workers.runtime import IDLE_S, MAX_OPEN, at_rest

T = TypeVar("T")

CRAWL = ArchivedCrawl(CrawlId(7), "docs")


@dataclass(slots=True)
class MemorySegments:
    """A store in memory. `gate` holds commits; the next `failures` commits find no room."""

    durable: dict[str, bytearray] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    failures: int = 0
    gate: threading.Event = field(default_factory=threading.Event)

    def create(self, name: str) -> "MemorySegment":
        if name in self.durable or name in self.taken:
            raise FileExistsError(name)
        self.durable[name] = bytearray()
        return MemorySegment(name, self)

    def read(self, location: RecordLocation) -> bytes:
        data = bytes(self.durable[location.segment][location.offset : location.offset + location.length])
        if len(data) < location.length:
            raise RecordUnreadable("not there")
        return data


@dataclass(slots=True)
class MemorySegment:
    name: str
    store: MemorySegments

    def commit(self, members: Sequence[bytes]) -> None:
        assert self.name not in self.store.finished
        assert self.store.gate.wait(30)
        if self.store.failures:
            self.store.failures -= 1
            raise ArchiveFull("no room")
        self.store.durable[self.name] += b"".join(members)
        self.store.commits.append(len(members))

    def finish(self) -> None:
        self.store.finished.append(self.name)

    def abandon(self) -> None:
        pass


def opened(store: MemorySegments) -> WarcArchive:
    return WarcArchive(store, worker_id="w-1", software="orb/test", wall_ms=lambda: AT_MS)


@pytest.fixture
def store() -> MemorySegments:
    made = MemorySegments()
    made.gate.set()
    return made


def test_a_location_is_told_before_the_sync_and_holds_after_it(store: MemorySegments) -> None:
    async def body() -> None:
        archive = opened(store)
        writer = archive.writer(CRAWL)
        first = await writer.append(exchange(b"one"))
        with pytest.raises(RecordUnreadable):
            store.read(first.location)
        second = await writer.append(exchange(b"two"))
        await writer.sync()
        assert read_response(store, first.location).body == b"one"
        assert read_response(store, second.location).body == b"two"
        assert first.location.segment == "7-20231114221320-w-1-0001.warc.gz"
        assert store.commits == [5]
        await archive.close()
        assert store.finished == [first.location.segment]

    asyncio.run(body())


def test_callers_that_arrive_during_a_sync_share_the_next_one(store: MemorySegments) -> None:
    async def body() -> None:
        archive = opened(store)
        writer = archive.writer(CRAWL)
        store.gate.clear()
        await writer.append(exchange())
        async with asyncio.TaskGroup() as group:
            group.create_task(writer.sync())
            await asyncio.sleep(0)
            for _ in range(20):
                await writer.append(exchange())
                group.create_task(writer.sync())
            await asyncio.sleep(0)
            store.gate.set()
        assert store.commits == [3, 40]
        await archive.close()

    asyncio.run(body())


def test_page_that_a_closed_writer_refuses_is_not_counted(store: MemorySegments) -> None:
    async def body() -> None:
        archive = opened(store)
        writer = archive.writer(CRAWL)
        await writer.append(exchange())
        await writer.close()
        with pytest.raises(RuntimeError):
            await writer.append(exchange())
        assert archive.stats.pages == 1
        await archive.close()

    asyncio.run(body())


class ByHand(Executor):
    """Does what was submitted when the test says so."""

    def __init__(self) -> None:
        self._submitted: list[tuple[Future[object], Callable[[], object]]] = []

    def submit(self, work: Callable[..., T], /, *args: Any, **keys: Any) -> Future[T]:
        future: Future[Any] = Future()
        self._submitted.append((future, partial(work, *args, **keys)))
        return future

    def work(self) -> None:
        future, work = self._submitted.pop(0)
        future.set_result(work())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_sync_between_commit_end_and_booking_waits_for_booking(
    store: MemorySegments, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    """To ask again and again whether it is booked would never let the loop book it: the worker stood still for good,
    one core busy (seen in 4 of some 80 crawls of 17,417 pages)."""

    async def body() -> None:
        archive = opened(store)
        threads, archive.threads = archive.threads, ByHand()
        writer = archive.writer(CRAWL)
        await writer.append(exchange())
        first = asyncio.create_task(writer.sync())
        await asyncio.sleep(0)
        archive.threads.work()
        await asyncio.gather(first, writer.sync())
        assert writer.settled
        archive.threads = threads
        await archive.close()

    run(body())


def test_a_sync_of_nothing_new_writes_nothing(store: MemorySegments) -> None:
    async def body() -> None:
        archive = opened(store)
        writer = archive.writer(CRAWL)
        await writer.sync()
        await writer.append(exchange())
        await writer.sync()
        await writer.sync()
        assert len(store.commits) == 1
        await archive.close()

    asyncio.run(body())


def test_full_disk_reaches_every_waiter_and_later_sync_keeps_locations(store: MemorySegments) -> None:
    async def body() -> None:
        archive = opened(store)
        writer = archive.writer(CRAWL)
        kept = [await writer.append(exchange(b"durable"))]
        await writer.sync()
        store.failures = 1
        store.gate.clear()
        kept.append(await writer.append(exchange(b"first")))
        waiters = [asyncio.ensure_future(writer.sync()) for _ in range(3)]
        await asyncio.sleep(0)
        kept.append(await writer.append(exchange(b"second")))
        store.gate.set()
        failures = await asyncio.gather(*waiters, return_exceptions=True)
        assert [type(failure) for failure in failures] == [ArchiveFull] * 3
        kept.append(await writer.append(exchange(b"third")))
        await writer.sync()
        bodies = [read_response(store, archived.location).body for archived in kept]
        assert bodies == [b"durable", b"first", b"second", b"third"]
        await archive.close()
        (data,) = store.durable.values()
        assert [record.kind for record in read_all(bytes(data))].count("response") == 4

    asyncio.run(body())


def test_a_full_buffer_without_room_refuses_further_pages(
    store: MemorySegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.archive._BUFFER_BYTES", 1000)

    async def body() -> None:
        archive = opened(store)
        writer = archive.writer(CRAWL)
        store.failures = 10**6
        placed = [await writer.append(exchange(os.urandom(1000)))]
        with pytest.raises(ArchiveFull):
            await writer.append(exchange())
        store.failures = 0
        await writer.append(exchange())
        await archive.close()
        (data,) = store.durable.values()
        assert [record.kind for record in read_all(bytes(data))].count("response") == len(placed) + 1

    asyncio.run(body())


def test_a_cancelled_waiter_neither_stops_the_write_nor_the_other_waiters(store: MemorySegments) -> None:
    async def body() -> None:
        archive = opened(store)
        writer = archive.writer(CRAWL)
        store.gate.clear()
        archived = await writer.append(exchange(b"x"))
        impatient, patient = (asyncio.ensure_future(writer.sync()) for _ in range(2))
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        store.gate.set()
        await patient
        assert read_response(store, archived.location).body == b"x"
        await archive.close()

    asyncio.run(body())


def test_a_failure_that_nobody_waits_for_any_more_is_met_by_the_next_sync(store: MemorySegments) -> None:
    async def body() -> None:
        archive = opened(store)
        writer = archive.writer(CRAWL)
        store.failures = 1
        store.gate.clear()
        archived = await writer.append(exchange(b"x"))
        waiter = asyncio.ensure_future(writer.sync())
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait([waiter])
        store.gate.set()
        with pytest.raises(ArchiveFull):
            await writer.sync()
        await writer.sync()
        assert read_response(store, archived.location).body == b"x"
        await archive.close()

    asyncio.run(body())


def test_segments_rotate_before_they_exceed_their_size(store: MemorySegments) -> None:
    async def body() -> None:
        archive = opened(store)
        writer = archive.writer(ArchivedCrawl(CrawlId(7), "docs", segment_bytes=5000))
        kept = [await writer.append(exchange(b"%d" % number)) for number in range(20)]
        await writer.sync()
        assert len(store.finished) == len(store.durable) - 1
        await archive.close()
        assert sorted(store.finished) == sorted(store.durable)
        assert len(store.finished) > 2
        assert all(len(data) <= 5000 for data in store.durable.values())
        for number, archived in enumerate(kept):
            assert read_response(store, archived.location).body == b"%d" % number
        for data in store.durable.values():
            assert read_all(bytes(data))[0].kind == "warcinfo"

    asyncio.run(body())


def test_a_rotation_that_finds_no_room_is_repeated(store: MemorySegments) -> None:
    async def body() -> None:
        archive = opened(store)
        writer = archive.writer(ArchivedCrawl(CrawlId(7), "docs", segment_bytes=3000))
        kept = [await writer.append(exchange(b"%d" % number)) for number in range(9)]
        store.failures = 1
        with pytest.raises(ArchiveFull):
            await writer.sync()
        kept.append(await writer.append(exchange(b"9")))
        await archive.close()
        assert [int(read_response(store, archived.location).body) for archived in kept] == list(range(10))
        assert sorted(store.finished) == sorted(store.durable)

    asyncio.run(body())


def test_a_name_that_was_used_before_is_passed_over(store: MemorySegments) -> None:
    async def body() -> None:
        store.taken = {"7-20231114221320-w-1-0001.warc.gz", "7-20231114221320-w-1-0002.warc.gz"}
        archive = opened(store)
        archived = await archive.writer(CRAWL).append(exchange())
        assert archived.location.segment == "7-20231114221320-w-1-0003.warc.gz"
        await archive.close()

    asyncio.run(body())


def test_large_pages_packed_in_threads_keep_their_own_places(store: MemorySegments) -> None:
    async def body() -> None:
        archive = opened(store)
        writer = archive.writer(CRAWL)
        bodies = [bytes([number]) * (1 << 20 if number % 2 else 10) for number in range(8)]
        kept = await asyncio.gather(*(writer.append(exchange(body)) for body in bodies))
        await writer.sync()
        assert [read_response(store, archived.location).body for archived in kept] == bodies
        await archive.close()

    asyncio.run(body())


def test_a_crawl_that_is_finished_gets_a_new_segment_when_it_goes_on(store: MemorySegments) -> None:
    async def body() -> None:
        archive = opened(store)
        first = await archive.writer(CRAWL).append(exchange())
        old = archive.writer(CRAWL)
        await archive.finish(CRAWL.crawl_id)
        assert store.finished == [first.location.segment]
        with pytest.raises(RuntimeError, match="closed"):
            await old.append(exchange())
        second = await archive.writer(CRAWL).append(exchange())
        assert second.location.segment != first.location.segment
        await archive.close()

    asyncio.run(body())


def test_record_ids_are_random_uuids_and_do_not_repeat() -> None:
    ids = RecordIds()
    made = [UUID(ids()) for _ in range(3000)]
    assert len(set(made)) == 3000
    assert {one.version for one in made} == {4}


def test_record_ids_are_unique_in_several_threads() -> None:
    ids = RecordIds()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(3) as threads:
            made = list(threads.map(lambda _: [ids() for _ in range(40_000)], range(3)))
    finally:
        sys.setswitchinterval(interval)
    assert len(set().union(*made)) == 120_000


def test_page_arriving_during_segment_finish_opens_an_unused_segment(
    store: MemorySegments,
) -> None:
    async def main() -> None:
        archive = opened(store)
        first = archive.writer(CRAWL)
        await first.append(exchange(b"1"))
        store.gate.clear()
        finishing = asyncio.ensure_future(archive.finish(CRAWL.crawl_id))
        await asyncio.sleep(0)
        second = archive.writer(CRAWL)
        assert second.number == first.number, "while that is renamed, no look at the names is sure"
        placed = await second.append(exchange(b"2"))
        assert (len(archive), archive.settled(CRAWL.crawl_id)) == (1, False)
        store.gate.set()
        await finishing
        await second.sync()
        assert archive.settled(CRAWL.crawl_id)
        assert len(store.finished) == 1
        assert placed.location.segment not in store.finished
        await archive.finish(CRAWL.crawl_id)
        assert (len(archive), len(set(store.finished)), archive.buffered()) == (0, 2, 0)
        await archive.close()

    asyncio.run(main())


def test_unfinished_segments_are_finished_later_or_at_close(store: MemorySegments) -> None:
    async def main() -> None:
        archive = opened(store)
        for number in (1, 2):
            store.failures = 1
            await archive.writer(CRAWL).append(exchange(b"%d" % number))
            with pytest.raises(ArchiveFull):
                await archive.finish(CRAWL.crawl_id)
            assert archive.buffered() > 0
            if number == 1:
                await archive.finish(CRAWL.crawl_id)
                assert (len(store.finished), archive.buffered()) == (1, 0)
        await archive.close()
        assert len(set(store.finished)) == 2

    asyncio.run(main())


def test_idle_crawls_close_and_least_recently_used_beyond_limit() -> None:
    visited = {CrawlId(number): float(number) for number in range(5)}
    assert at_rest(visited, {CrawlId(0)}, IDLE_S + 2.0, max_open=MAX_OPEN) == [1, 2]
    assert at_rest(visited, {CrawlId(0)}, 5.0, max_open=5) == []
    assert at_rest(visited, {CrawlId(1)}, 0.0, max_open=2) == [0, 2, 3]


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("7-20231114221320-w-1-0001.warc.gz.open", True),
        ("7-20231114221320-w-1-12345.warc.gz.open", True),
        ("7-20231114221320-w-0001.warc.gz.open", False),
        ("7-20231114221320-w-1-1-0001.warc.gz.open", False),
        ("7-20231114221320-x-w-1-0001.warc.gz.open", False),
        ("7-20231114221320-W-1-0001.warc.gz.open", False),
        ("w-1.warc.gz.open", False),
    ],
)
def test_segment_of_a_worker_is_told_by_its_whole_id(name: str, own: bool) -> None:
    archive = opened(MemorySegments())
    assert archive.is_own(name) is own
    assert archive.is_own(archive.segment_name(CRAWL.crawl_id, 3))
    archive.threads.shutdown()
