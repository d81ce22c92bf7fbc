"""The worker's archive: pages appended to WARC files (segments), made durable in groups.

`append` copies a page's records to memory and returns their location in the file. Only `sync` makes them durable, and
an outcome may be reported only after that. Callers that arrive during a `sync` wait for the next one and share it.

If the archive's disk is full, `sync` raises ArchiveFull in every caller that waits. Nothing is lost: appended pages
keep their locations and are written by the next attempt. Once the buffer is full too, `append` raises.
"""

import asyncio
import os
import re
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec
from isal import isal_zlib

from shared.domain.archive.model import Archived, ArchivedCrawl, Exchange, RecordLocation
from shared.domain.archive.warc import page_records, warcinfo_record
from shared.domain.ids import CrawlId
from shared.domain.ops.counts import Histogram
from shared.ports.archive import Segment, SegmentStore
from workers.retry import persisted

# The level 1 of igzip takes 112 us for a 99 KB page of documentation, at a ratio of 5.7. Slower alternatives: zlib 1
# (436 us, 5.5), zlib-ng 2 (304 us, 5.8), igzip 3 (218 us, 6.0). Level 0 is a fifth faster, which saves 1 % of the time
# of a page. But it needs 8 % more disk.
_LEVEL: Final = 1
_GZIP: Final = 31
_LARGE: Final = 512 * 1024
_BUFFER_BYTES: Final = 8 << 20
_WORKER_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class RecordIds:
    """A source of random UUIDs (version 4) as text, for WARC records. It reads randomness from the system in batches.

    Create a new object after a fork. Otherwise both processes return the same ids. Any thread may use the object.
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


class _Packed(msgspec.Struct, frozen=True):
    """The compressed WARC records of one page.

    - `response`: the response record or revisit record.
    - `beside`: the request record and the metadata record.
    - `digest`: the SHA-1 of the payload.
    """

    response: bytes
    beside: bytes
    digest: bytes


@dataclass(slots=True, eq=False)
class _OpenSegment:
    """A segment that is being written.

    - `size`: the bytes of all records added to it, written or not.
    - `waiting`: the gzip members that the next commit will write.
    """

    segment: Segment
    size: int = 0
    pages: int = 0
    waiting: list[bytes] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Commit:
    """One attempt to make durable every exchange (request and response) that was appended before the attempt began.

    - `goal`: the number of all exchanges that the SegmentWriter has had so far. If the attempt succeeds, all of them
      are durable. Example: 10 exchanges are durable already, and the attempt adds 3. Then `goal` is 13.
    - `parts`: for each open segment, the gzip members to write, and True if the segment is closed afterwards.
    - `stored`: the number of parts that are written.
    """

    goal: int
    parts: list[tuple[_OpenSegment, list[bytes], bool]]
    stored: int = 0

    def run(self) -> None:
        """Write the parts to the store; runs in a thread.

        `stored` counts the parts written, even if a later one fails.
        """
        for live, members, finished in self.parts:
            if members:
                live.segment.commit(members)
                members.clear()
            if finished:
                live.segment.finish()
            self.stored += 1


class ArchiveStats(msgspec.Struct):
    """The counts of an archive since its start: appended pages, compressed bytes of all records, and failed writes.

    `commits`: the durations in seconds of the successful writes to the store. One write makes a group of pages durable.
    """

    pages: int = 0
    bytes: int = 0
    commits: Histogram = msgspec.field(default_factory=Histogram)
    failures: int = 0


class SegmentWriter:
    """Writes the pages of one crawl to WARC files (segments), on one event loop. The first page creates a file."""

    def __init__(self, crawl: ArchivedCrawl, archive: "WarcArchive", number: int = 0) -> None:
        """Create a writer without a file. `number`: the greatest file number that an earlier writer may have used."""
        self._crawl = crawl
        self._archive = archive
        self._live: _OpenSegment | None = None
        self._retired: list[_OpenSegment] = []
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
        """The number in the name of the newest WARC file. Before the first file: the number given at construction."""
        return self._number

    @property
    def settled(self) -> bool:
        """True if every appended page is durable and no write is under way."""
        return self._durable == self._placed and self._commit is None

    @property
    def buffered(self) -> int:
        """The number of bytes that were appended and are not durable yet."""
        return self._buffered

    async def append(self, exchange: Exchange, *, page: bool = True) -> Archived:
        """Append the records of an exchange. Return their location in the file and the digest of the payload.

        The records are durable after the next `sync`. If 8 MiB are buffered already, wait for a sync first, and raise
        ArchiveFull or ArchiveUnavailable if it fails. After an error nothing was appended. Bodies of 512 KiB and more
        are compressed in a thread.

        `page`: False for an exchange that must not be counted as a page, such as a fetch of robots.txt.
        """
        if self._buffered >= _BUFFER_BYTES:
            await self.sync()
        if len(exchange.answer.body) >= _LARGE:
            loop = asyncio.get_running_loop()
            packed = await loop.run_in_executor(self._archive.threads, self._archive.pack, exchange)
        else:
            packed = self._archive.pack(exchange)
        location = self._place(packed)
        self._archive.stats.pages += page
        return Archived(location, packed.digest)

    async def sync(self) -> None:
        """Wait until every page that was appended before the call is durable.

        Raise ArchiveFull or ArchiveUnavailable if the write fails. In that case the caller must treat all
        pages since its last successful `sync` as not durable. If a caller is cancelled, the write continues for the
        other callers.
        """
        goal = self._placed
        while self._durable < goal:
            await asyncio.shield(self._commit or self._begin())

    async def close(self) -> None:
        """Make every appended page durable and complete every WARC file. Nothing may be appended after this call.

        After an error it may be called again.
        """
        self._closed = True
        if self._live is not None:
            self._retired.append(self._live)
            self._live = None
        while self._retired or self._durable < self._placed:
            await asyncio.shield(self._commit or self._begin())

    def abandon(self) -> None:
        """Close the WARC files that `close` could not complete. The repair at a later start completes them.

        No write may be under way.
        """
        for live in (*self._retired, *([self._live] if self._live is not None else [])):
            live.segment.abandon()
        self._retired.clear()
        self._live = None

    def _place(self, packed: _Packed) -> RecordLocation:
        """Add a page's records to the open segment, and return their location. A full segment is replaced by a new one.

        This never awaits, so the offsets follow the order of calls.
        """
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
        self._archive.stats.bytes += size
        return location

    def _opened(self) -> _OpenSegment:
        while True:
            self._number += 1
            name = self._archive.segment_name(self._crawl.crawl_id, self._number)
            try:
                segment = self._archive.store.create(name)
            except FileExistsError:
                continue
            info = self._archive.warcinfo(self._crawl, name)
            return _OpenSegment(segment, len(info), 0, [info])

    def _begin(self) -> "asyncio.Future[None]":
        """Start a commit. Return a future that is done once the commit has ended and its result is recorded.

        No other commit may be running.
        """
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
        running.add_done_callback(lambda done: self._record_result(done, commit, bytes_in, loop.time() - begun, booked))
        return booked

    def _record_result(
        self,
        running: "asyncio.Future[None]",
        commit: _Commit,
        bytes_in: int,
        took_s: float,
        booked: "asyncio.Future[None]",
    ) -> None:
        """Record the result of an ended commit. Then wake the calls of `sync` and `close` that wait for the commit.

        The method copies the result from one future to the other:

        - `running`: the future of the thread that executed `commit.run`. It is done and holds the result or error.
        - `booked`: the future that `sync` and `close` await. It is not done yet, and gets the same result or error.

        Other arguments:

        - `bytes_in`: how many bytes were buffered when the commit began.
        - `took_s`: the seconds that the commit took.
        """
        self._commit = None
        left = 0
        for live, members, _ in commit.parts:
            live.waiting[:0] = members
            left += sum(map(len, members))
        finished = {id(live) for live, _, last in commit.parts[: commit.stored] if last}
        self._retired = [live for live in self._retired if id(live) not in finished]
        self._buffered -= max(0, bytes_in - left)
        if running.cancelled():
            self._archive.stats.failures += 1
            booked.cancel()
        elif (error := running.exception()) is not None:
            self._archive.stats.failures += 1
            booked.set_exception(error)
            booked.exception()  # if all waiters were cancelled, asyncio must not log the failure as never retrieved
        else:
            self._durable = commit.goal
            self._archive.stats.commits.observe(took_s)
            booked.set_result(None)


class WarcArchive:
    """A worker process's archive. It has one `SegmentWriter` per crawl, and writes all their files to one store.

    A new process writes new WARC files, named `<crawl id>-<UTC start time>-<worker id>-<number>.warc.gz`. `software`
    names the program and its version; `wall_ms` returns UTC time in ms since 1970.
    """

    def __init__(self, store: SegmentStore, *, worker_id: str, software: str, wall_ms: Callable[[], int]) -> None:
        if not _WORKER_ID.fullmatch(worker_id):
            raise ValueError(f"a worker id in file names is letters, digits, dots, dashes, underscores: {worker_id!r}")
        self.store = store
        self.threads: Executor = ThreadPoolExecutor(2, thread_name_prefix="archive")
        self.stats = ArchiveStats()
        self._worker_id = worker_id
        self._software = software
        self._wall_ms = wall_ms
        self._started = datetime.fromtimestamp(wall_ms() // 1000, UTC).strftime("%Y%m%d%H%M%S")
        self._next_id = RecordIds()
        self._writers: dict[CrawlId, SegmentWriter] = {}
        self._finishing: list[tuple[CrawlId, SegmentWriter]] = []
        self._numbered = 0

    def __len__(self) -> int:
        """Return the number of crawls that have a writer. A writer has no file open before its first page."""
        return len(self._writers)

    def writer(self, crawl: ArchivedCrawl) -> SegmentWriter:
        """Return the crawl's writer, and create it if there is none.

        Every call with this crawl id returns the same writer until `finish` is called.
        """
        writer = self._writers.get(crawl.crawl_id)
        if writer is None:
            writer = self._writers[crawl.crawl_id] = SegmentWriter(crawl, self, self._numbered)
        return writer

    def buffered(self) -> int:
        """Return the number of bytes, over all crawls, that were appended to the archive and are not durable yet."""
        return sum(writer.buffered for writer in (*self._writers.values(), *(each for _, each in self._finishing)))

    def settled(self, crawl_id: CrawlId) -> bool:
        """Return True if everything appended for the crawl is durable and no write for it is under way."""
        writer = self._writers.get(crawl_id)
        return writer is None or writer.settled

    async def keep(self, crawl: ArchivedCrawl, exchange: Exchange, *, page: bool = True) -> Archived:
        """Append an exchange to the crawl's WARC file, and return its location and digest (SegmentWriter.append).

        If the archive is full or unavailable, try again until it accepts the exchange. `page`: False for an exchange
        that must not be counted as a page, such as a fetch of robots.txt.
        """
        writer = self.writer(crawl)
        return await persisted("archive_append", lambda: writer.append(exchange, page=page), crawl=crawl.crawl_id)

    async def finish(self, crawl_id: CrawlId) -> None:
        """Make the crawl's pages durable and complete its WARC files. After an error this may be called again.

        As soon as this call begins, `writer` returns a new writer for this crawl. So pages can still be appended: the
        new writer puts them into new files, with new numbers.
        """
        writer = self._writers.pop(crawl_id, None)
        if writer is not None:
            self._numbered = max(self._numbered, writer.number)
            self._finishing.append((crawl_id, writer))
        for each in [each for each in self._finishing if each[0] == crawl_id]:
            await each[1].close()
            if each in self._finishing:
                self._finishing.remove(each)

    async def close(self) -> None:
        """Make all pages durable and complete every WARC file. The archive cannot be used afterwards.

        If some files cannot be completed, close them all the same, and raise the first error. The repair at a later
        start completes them.
        """
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
        """Build the WARC records of an exchange, each compressed as one gzip member. May be called in any thread."""
        records = page_records(exchange, (self._next_id(), self._next_id(), self._next_id()))
        request, metadata = _member(records.request), _member(records.metadata)
        return _Packed(_member(records.response), request + metadata, records.digest)

    def warcinfo(self, crawl: ArchivedCrawl, segment: str) -> bytes:
        return _member(warcinfo_record(crawl, segment, self._software, self._next_id(), self._wall_ms()))

    def segment_name(self, crawl_id: CrawlId, number: int) -> str:
        return f"{crawl_id}-{self._started}-{self._worker_id}-{number:04d}.warc.gz"

    def is_own(self, segment: str) -> bool:
        """Return True if this worker wrote the file with this name: this process, or an earlier one of the same id."""
        return segment.split("-", 2)[-1].rpartition("-")[0] == self._worker_id


def _member(record: bytes) -> bytes:
    return isal_zlib.compress(record, _LEVEL, _GZIP)
