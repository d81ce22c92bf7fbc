"""The ports to page archives: writing WARC files (segments) by appending records, and reading records by location.

All methods block except `PageArchive.aside`. Callers on an event loop use a thread, as `workers/archive.py` does.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from shared.domain.archive.model import RecordLocation
from shared.domain.archive.stored_body import StoredBody
from shared.domain.errors import Permanent, Transient

T = TypeVar("T")


class ArchiveFull(Transient):
    """The archive's disk has no space left. Nothing was stored or lost. The same call may be repeated."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_in=30.0)


class ArchiveUnavailable(Transient):
    """The archive's disk failed, but not for lack of space. Nothing counts as stored. The same call may be repeated."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_in=5.0)


class RecordUnreadable(Permanent):
    """No whole WARC record is at the requested location."""


class Segment(Protocol):
    """A WARC file that one process appends to until it is finished. Two threads never use it at the same time."""

    @property
    def name(self) -> str:
        """The final file name. The locations of its records carry it from the first record on."""

    def commit(self, members: Sequence[bytes]) -> None:
        """Append whole compressed records (`members`) and make them durable: all of them, or none.

        Raise ArchiveFull or ArchiveUnavailable.
        """

    def finish(self) -> None:
        """Give the segment its final form and name, durably. No `commit` may follow. May be repeated after an error."""

    def abandon(self) -> None:
        """Close the file without finishing the segment. A repair at a later start finishes it."""


class SegmentReader(Protocol):
    """Reads bytes of segments (WARC files), finished or not."""

    def read_up_to(self, name: str, offset: int, max_count: int) -> bytes:
        """Return at most `max_count` bytes of the segment `name` from `offset` on. Empty bytes mean its end.

        Raise RecordUnreadable if it cannot be read.
        """

    def size(self, name: str) -> int:
        """Return the present size of the segment `name` in bytes. Raise RecordUnreadable if there is none."""
        ...


class PageArchive(Protocol):
    """Reads stored pages by the location of their records. All methods but `aside` block: run them through it."""

    def body(self, location: RecordLocation) -> StoredBody:
        """Return the stored page at `location`, with its headers read. Iterate over it for the body.

        Raise RecordUnreadable or ArchiveUnavailable. The iteration may also raise NotARecord.
        """

    def outlinks(self, location: RecordLocation) -> Sequence[tuple[str, str]]:
        """Return the links stored with the page at `location`: pairs of a URL and how it was found.

        Raise RecordUnreadable or ArchiveUnavailable.
        """

    def size(self, segment: str) -> int:
        """Return the bytes of the WARC file `segment`, finished or not.

        Raise RecordUnreadable or ArchiveUnavailable.
        """
        ...

    def piece(self, segment: str, offset: int, max_count: int) -> bytes:
        """Return at most `max_count` bytes of the WARC file `segment` from `offset` on. Empty bytes mean its end.

        Raise RecordUnreadable or ArchiveUnavailable.
        """
        ...

    async def aside(self, work: Callable[[], T]) -> T:
        """Run `work`, which may block, in one of a few threads kept for that. Return its result."""


class SegmentStore(Protocol):
    """Creates segments (WARC files), and reads the records in them."""

    def create(self, name: str) -> Segment:
        """Return a new, empty segment. This is quick; the first commit makes the segment durable.

        Raise FileExistsError if the name was ever used.
        """

    def read(self, location: RecordLocation) -> bytes:
        """Return the compressed record at `location` by one seek. Its segment may be unfinished. Raise
        RecordUnreadable.
        """
