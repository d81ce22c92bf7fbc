"""Reads stored pages for a process that serves them. It uses threads, so that a slow disk delays only one request."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from shared.adapters.objects.outlinks import read_outlinks
from shared.domain.archive.model import RecordLocation
from shared.domain.archive.stored_body import NotARecord, StoredBody
from shared.ports.archive import RecordUnreadable, SegmentReader

T = TypeVar("T")

_PIECE: Final = 64 << 10


class ServedPages:
    """Reads stored pages from WARC files (`shared.ports.archive.PageArchive`).

    All methods that read block their caller. `aside` does not: it runs a function, such as a read, in one of `threads`
    threads.
    """

    def __init__(self, segments: SegmentReader, *, threads: int = 4) -> None:
        self._segments = segments
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="pages")

    def __repr__(self) -> str:
        return f"<ServedPages {self._segments!r}>"

    def body(self, location: RecordLocation) -> StoredBody:
        try:
            return StoredBody(lambda: self._member(location))
        except NotARecord as failure:
            raise RecordUnreadable(f"{location.segment} at byte {location.offset}: {failure}") from failure

    def outlinks(self, location: RecordLocation) -> Sequence[tuple[str, str]]:
        return read_outlinks(self._segments, location)

    def size(self, segment: str) -> int:
        return self._segments.size(segment)

    def piece(self, segment: str, offset: int, max_count: int) -> bytes:
        return self._segments.read_up_to(segment, offset, max_count)

    async def aside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Cancel the work of `aside` that has not begun. Return at once; running work continues to its end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _member(self, location: RecordLocation) -> Iterator[bytes]:
        place, end = location.offset, location.offset + location.length
        while place < end:
            piece = self._segments.read_up_to(location.segment, place, min(_PIECE, end - place))
            if not piece:
                return
            place += len(piece)
            yield piece
