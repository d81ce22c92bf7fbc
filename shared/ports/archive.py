"""The ports through which page archives are stored and read: segments of appended records, and records by location.

All methods block except `PageArchive.aside`. Callers on an event loop use a thread, as `workers/archive.py` does.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from shared.domain.archive.model import RecordLocation
from shared.domain.archive.stored_body import StoredBody
from shared.domain.errors import Permanent, Transient

T = TypeVar("T")


class ArchiveFull(Transient):
    """The store has no space left. Nothing was stored or lost. The same call may be repeated."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_in=30.0)


class ArchiveUnavailable(Transient):
    """The store failed for a reason other than space. Nothing counts as stored. The same call may be repeated."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_in=5.0)


class RecordUnreadable(Permanent):
    """No whole record is at that location."""


class Segment(Protocol):
    """A file that one process appends to until it is finished. Two threads never use it at the same time."""

    @property
    def name(self) -> str:
        """The final name, which locations carry from the first record on."""
        ...

    def commit(self, members: Sequence[bytes]) -> None:
        """Append whole compressed records and make them durable: all of them, or none.

        Raise ArchiveFull or ArchiveUnavailable.
        """
        ...

    def finish(self) -> None:
        """Give the segment its final form and name, durably. No commit follows. May be repeated after an error."""
        ...

    def abandon(self) -> None:
        """Close the segment without finishing it. A repair finishes it later."""
        ...


class SegmentReader(Protocol):
    """Reads what segments hold, finished or not."""

    def read_up_to(self, name: str, offset: int, max_count: int) -> bytes:
        """Return at most `max_count` bytes of a segment from `offset` on, empty at its end. Raise RecordUnreadable."""
        ...


class PageArchive(Protocol):
    """Reads stored pages by location. `body` and `outlinks` block; run them through `aside`."""

    def body(self, location: RecordLocation) -> StoredBody:
        """Return the page, its headers already read. Raise RecordUnreadable or ArchiveUnavailable.

        Iterating over the body may also raise NotARecord.
        """
        ...

    def outlinks(self, location: RecordLocation) -> Sequence[tuple[str, str]]:
        """Return the record's pairs of URL and how it was found. Raise RecordUnreadable or ArchiveUnavailable."""
        ...

    async def aside(self, work: Callable[[], T]) -> T:
        """Run `work`, which blocks on the archive, in one of a few threads kept for that."""
        ...


class SegmentStore(Protocol):
    """Where segments live."""

    def create(self, name: str) -> Segment:
        """Return a new, empty segment. This is quick; the first commit makes the segment durable.

        Raise FileExistsError if the name was ever used.
        """
        ...

    def read(self, location: RecordLocation) -> bytes:
        """Return the compressed record at `location` by one seek, in a finished segment or not.

        Raise RecordUnreadable.
        """
        ...
