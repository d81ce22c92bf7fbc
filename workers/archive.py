"""The worker's archive: pages appended to WARC segments, made durable in groups.

Appending places a page in memory and tells its location; only `sync` makes it durable, and an outcome may be reported
only after that. Callers of `sync` that arrive while one is running share the next one. When the store has no room,
`sync` raises ArchiveFull to every waiter and nothing is lost: what was appended keeps its location and goes out with
the next attempt; once the buffer is full too, appending is refused.
"""

import asyncio
import os
import re
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from isal import isal_zlib

from shared.domain.archive import Archived, ArchivedCrawl, Exchange, RecordLocation
from shared.domain.ids import CrawlId
from shared.domain.tally import Histogram
from shared.domain.warc import page_records, warcinfo_record
from shared.ports.archive import Segment, SegmentStore
from workers.retrying import persisted

# igzip level 1: 112 us for a 99 KB page of documentation at ratio 5.7, where zlib 1 takes 436 us (5.5), zlib-ng 2
# 304 us (5.8) and igzip 3 218 us (6.0).
_LEVEL: Final = 1
_GZIP: Final = 31
_LARGE: Final = 512 * 1024
_BUFFER_BYTES: Final = 8 << 20
_WORKER_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class RecordIds:
    """Random UUIDs (version 4) in text, from the system's randomness in batches. Not to be carried over a fork.

    Safe in any thread: `pop` and `extend` of a list are single steps, so no two calls return the same id.
    """

    def __init__(self) -> None:
        self._ids: list[str] = []

    def __call__(self) -> str:
        while True:
            try:
                return self._ids.pop()
            except IndexError:  # other threads may have emptied the batch before this call
                self._ids.extend(_random_ids(256))


def _random_ids(n: int) -> list[str]:
    text = os.urandom(16 * n).hex()
    ids = []
    for at in range(0, len(text), 32):
        h = text[at : at + 32]
        variant = "89ab"[int(h[16], 16) & 3]
        ids.append(f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{variant}{h[17:20]}-{h[20:]}")
    return ids


@dataclass(frozen=True, slots=True)
class _Packed:
    """A page's compressed records, the response's first."""

    response: bytes
    beside: bytes
    digest: bytes


@dataclass(slots=True, eq=False)
class _Open:
    """A segment being written: its size with everything placed, and the members not yet handed to a commit."""

    segment: Segment
    size: int = 0
    pages: int = 0
    waiting: list[bytes] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Commit:
    """One attempt to make everything durable that was placed before it began."""

    goal: int
    parts: list[tuple[_Open, list[bytes], bool]]
    stored: int = 0

    def run(self) -> None:
        """In a thread. `stored` counts the parts that are through, whether or not a later one fails."""
        for live, members, finished in self.parts:
            if members:
                live.segment.commit(members)
                members.clear()
            if finished:
                live.segment.finish()
            self.stored += 1


@dataclass(slots=True)
class ArchiveTally:
    """What was archived since the start: pages placed, bytes of their records as stored; how long commits took that
    succeeded, in seconds, and how many did not."""

    pages: int = 0
    bytes: int = 0
    commits: Histogram = field(default_factory=Histogram)
    failures: int = 0


class SegmentWriter:
    """Appends the pages of one crawl. Lives on one event loop; opens its first segment with its first page."""

    def __init__(self, crawl: ArchivedCrawl, archive: "WarcArchive", number: int = 0) -> None:
        """`number`: of the last segment that an earlier writer of the crawl may have used."""
        self._crawl = crawl
        self._archive = archive
        self._live: _Open | None = None
        self._retired: list[_Open] = []
        self._number = number
        self._placed = 0
        self._durable = 0
        self._buffered = 0
        self._commit: asyncio.Future[None] | None = None
        self._closed = False

    def __repr__(self) -> str:
        name = self._live.segment.name if self._live is not None else "no segment"
        return f"<SegmentWriter crawl={self._crawl.crawl_id} {name} buffered={self._buffered}>"

    @property
    def number(self) -> int:
        """Of the newest segment."""
        return self._number

    @property
    def settled(self) -> bool:
        """Whether everything that was placed is durable."""
        return self._durable == self._placed and self._commit is None

    @property
    def buffered(self) -> int:
        """Bytes placed and not durable yet."""
        return self._buffered

    async def append(self, exchange: Exchange, *, page: bool = True) -> Archived:
        """Place a page; durable after the next `sync`. ArchiveFull or ArchiveUnavailable: the page was not placed.

        Waits for a sync when 8 MiB are buffered. Pages above 512 KiB are compressed in a thread. With `page` False it
        is not counted as a page: no URL of the crawl ends with it.
        """
        if self._buffered >= _BUFFER_BYTES:
            await self.sync()
        if len(exchange.answer.body) >= _LARGE:
            loop = asyncio.get_running_loop()
            packed = await loop.run_in_executor(self._archive.threads, self._archive.pack, exchange)
        else:
            packed = self._archive.pack(exchange)
        self._archive.tally.pages += page
        return Archived(self._place(packed), packed.digest)

    async def sync(self) -> None:
        """Return when every page placed before the call is durable.

        ArchiveFull or ArchiveUnavailable: none of the caller's pages may be taken for durable. Cancelling a waiter
        does not stop the write, on which others may wait.
        """
        goal = self._placed
        while self._durable < goal:
            await asyncio.shield(self._commit or self._begin())

    async def close(self) -> None:
        """Sync, and finish every segment. After an error it may be called again; appending is over."""
        self._closed = True
        if self._live is not None:
            self._retired.append(self._live)
            self._live = None
        while self._retired or self._durable < self._placed:
            await asyncio.shield(self._commit or self._begin())

    def abandon(self) -> None:
        """Let go of what `close` could not finish; a repair finishes it. Only when no commit is running."""
        for live in (*self._retired, *([self._live] if self._live is not None else [])):
            live.segment.abandon()
        self._retired.clear()
        self._live = None

    def _place(self, packed: _Packed) -> RecordLocation:
        """Without an await: offsets are handed out in the order of placing."""
        if self._closed:
            raise RuntimeError(f"{self!r} is closed")
        size = len(packed.response) + len(packed.beside)
        live = self._live
        if live is not None and live.pages and live.size + size > self._crawl.segment_bytes:
            self._retired.append(live)
            live = self._live = None
        if live is None:
            live = self._live = self._opened()
        location = RecordLocation(live.segment.name, live.size, len(packed.response))
        live.waiting += (packed.response, packed.beside)
        live.size += size
        live.pages += 1
        self._placed += 1
        self._buffered += size
        self._archive.tally.bytes += size
        return location

    def _opened(self) -> _Open:
        while True:
            self._number += 1
            name = self._archive.segment_name(self._crawl.crawl_id, self._number)
            try:
                segment = self._archive.store.create(name)
            except FileExistsError:
                continue
            info = self._archive.warcinfo(self._crawl, name)
            return _Open(segment, len(info), 0, [info])

    def _begin(self) -> "asyncio.Future[None]":
        """Start the one commit that may run at a time; its completion is booked before its waiters wake."""
        lives = [(live, True) for live in self._retired]
        if self._live is not None:
            lives.append((self._live, False))
        parts = []
        for live, finished in lives:
            parts.append((live, live.waiting, finished))
            live.waiting = []
        commit = _Commit(self._placed, parts)
        bytes_in = self._buffered
        loop = asyncio.get_running_loop()
        begun = loop.time()
        running = loop.run_in_executor(self._archive.threads, commit.run)
        booked = self._commit = loop.create_future()
        running.add_done_callback(lambda done: self._booked(done, commit, bytes_in, loop.time() - begun, booked))
        return booked

    def _booked(
        self,
        running: "asyncio.Future[None]",
        commit: _Commit,
        bytes_in: int,
        took_s: float,
        booked: "asyncio.Future[None]",
    ) -> None:
        """Between the end of a commit and this call others may run. They wait for `booked`, which is done no sooner: to
        wait for what is done and not booked would be a loop without an end, and nobody else on the loop had a turn."""
        self._commit = None
        left = 0
        for live, members, _ in commit.parts:
            live.waiting[:0] = members
            left += sum(map(len, members))
        finished = {id(live) for live, _, last in commit.parts[: commit.stored] if last}
        self._retired = [live for live in self._retired if id(live) not in finished]
        self._buffered -= max(0, bytes_in - left)
        if running.cancelled():
            self._archive.tally.failures += 1
            booked.cancel()
        elif (error := running.exception()) is not None:
            self._archive.tally.failures += 1
            booked.set_exception(error)
            booked.exception()  # a failure whose waiters were all cancelled is not reported as unseen
        else:
            self._durable = commit.goal
            self._archive.tally.commits.observe(took_s)
            booked.set_result(None)


class WarcArchive:
    """A worker process's archive: one `SegmentWriter` per crawl over one store.

    A new process writes new segments, named `<crawl id>-<UTC start time>-<worker id>-<number>.warc.gz`. `software`
    names the program and its version; `wall_ms` is the UTC wall clock in ms since 1970.
    """

    def __init__(self, store: SegmentStore, *, worker_id: str, software: str, wall_ms: Callable[[], int]) -> None:
        if not _WORKER_ID.fullmatch(worker_id):
            raise ValueError(f"a worker id in file names is letters, digits, dots, dashes, underscores: {worker_id!r}")
        self.store = store
        self.threads: Executor = ThreadPoolExecutor(2, thread_name_prefix="archive")
        self.tally = ArchiveTally()
        self._worker_id = worker_id
        self._software = software
        self._wall_ms = wall_ms
        self._started = datetime.fromtimestamp(wall_ms() // 1000, UTC).strftime("%Y%m%d%H%M%S")
        self._next_id = RecordIds()
        self._writers: dict[CrawlId, SegmentWriter] = {}
        self._finishing: list[tuple[CrawlId, SegmentWriter]] = []
        self._numbered = 0

    def __len__(self) -> int:
        """The crawls that have a writer, each with a file open."""
        return len(self._writers)

    def writer(self, crawl: ArchivedCrawl) -> SegmentWriter:
        """The crawl's writer; what is said of the crawl is fixed by the first call until `finish`."""
        found = self._writers.get(crawl.crawl_id)
        if found is None:
            found = self._writers[crawl.crawl_id] = SegmentWriter(crawl, self, self._numbered)
        return found

    def buffered(self) -> int:
        """Bytes placed and not durable yet, of all crawls."""
        return sum(writer.buffered for writer in (*self._writers.values(), *(each for _, each in self._finishing)))

    def settled(self, crawl_id: CrawlId) -> bool:
        """Whether all that was placed of the crawl is durable, so that `finish` takes nothing from anybody."""
        writer = self._writers.get(crawl_id)
        return writer is None or writer.settled

    async def keep(self, crawl: ArchivedCrawl, exchange: Exchange, *, page: bool = True) -> Archived:
        """Append an exchange as `SegmentWriter.append` does, again and again while the store fails."""
        writer = self.writer(crawl)
        return await persisted("visit.archive", lambda: writer.append(exchange, page=page), crawl=crawl.crawl_id)

    async def finish(self, crawl_id: CrawlId) -> None:
        """Sync and finish the crawl's segments; a page that is appended meanwhile by whoever asks for the writer anew
        opens a new one, under a number that was never used. After an error it may be called again."""
        writer = self._writers.pop(crawl_id, None)
        if writer is not None:
            self._numbered = max(self._numbered, writer.number)
            self._finishing.append((crawl_id, writer))
        for each in [each for each in self._finishing if each[0] == crawl_id]:
            await each[1].close()
            if each in self._finishing:
                self._finishing.remove(each)

    async def close(self) -> None:
        """Sync and finish everything. A segment that cannot be finished is left to a repair, and the error raised."""
        writers = [*self._writers.values(), *(writer for _, writer in self._finishing)]
        self._writers, self._finishing = {}, []
        try:
            results = await asyncio.gather(*(writer.close() for writer in writers), return_exceptions=True)
        finally:
            self.threads.shutdown(wait=True)
            for writer in writers:
                writer.abandon()
        if failures := [result for result in results if isinstance(result, BaseException)]:
            raise failures[0]

    def pack(self, exchange: Exchange) -> _Packed:
        """Assemble and compress a page's records, one gzip member each; safe in any thread."""
        records = page_records(exchange, (self._next_id(), self._next_id(), self._next_id()))
        request, metadata = _member(records.request), _member(records.metadata)
        return _Packed(_member(records.response), request + metadata, records.digest)

    def warcinfo(self, crawl: ArchivedCrawl, segment: str) -> bytes:
        return _member(warcinfo_record(crawl, segment, self._software, self._next_id(), self._wall_ms()))

    def segment_name(self, crawl_id: CrawlId, number: int) -> str:
        return f"{crawl_id}-{self._started}-{self._worker_id}-{number:04d}.warc.gz"


def _member(record: bytes) -> bytes:
    return isal_zlib.compress(record, _LEVEL, _GZIP)
