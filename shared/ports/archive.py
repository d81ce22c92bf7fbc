"""The ports through which page archives are stored and read: segments of appended records, and records by location.

All of these block but `PageArchive.aside`; callers on an event loop go through a thread (`workers/archive.py` does).
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from shared.domain.archive import RecordLocation
from shared.domain.errors import Permanent, Transient
from shared.domain.stored_body import StoredBody

T = TypeVar("T")


class ArchiveFull(Transient):
    """The store has no room left. Nothing was stored, nothing was lost; the same call may be repeated."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_in=30.0)


class ArchiveUnavailable(Transient):
    """The store failed for another reason than room. Nothing counts as stored; the same call may be repeated."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_in=5.0)


class RecordUnreadable(Permanent):
    """No whole record is at that location."""


class Segment(Protocol):
    """A file that one process appends to until it is finished; never used by two threads at a time."""

    @property
    def name(self) -> str:
        """The final name, which locations carry from the first record on."""
        ...

    def commit(self, members: Sequence[bytes]) -> None:
        """Append whole compressed records and make them durable.

        All of them, or none: ArchiveFull, ArchiveUnavailable.
        """
        ...

    def finish(self) -> None:
        """Give the segment its final form and name, durably; no commit follows. May be repeated after an error."""
        ...

    def abandon(self) -> None:
        """Let go without finishing; a repair finishes it later."""
        ...


class SegmentReader(Protocol):
    """Reads what segments hold, finished or not."""

    def read_up_to(self, name: str, offset: int, most: int) -> bytes:
        """What a segment holds from `offset` on, at most `most` bytes; empty at its end (RecordUnreadable)."""
        ...


class PageArchive(Protocol):
    """Stored pages by their places, for whoever serves them. `body` and `outlinks` block; `aside` is for that."""

    def body(self, location: RecordLocation) -> StoredBody:
        """The page, its heads read. RecordUnreadable, ArchiveUnavailable; out of its iteration NotARecord, too."""
        ...

    def outlinks(self, location: RecordLocation) -> Sequence[tuple[str, str]]:
        """Pairs of URL and how it was found, as the record says. RecordUnreadable, ArchiveUnavailable."""
        ...

    async def aside(self, work: Callable[[], T]) -> T:
        """Run what blocks on the archive in one of a few threads kept for it."""
        ...


class SegmentStore(Protocol):
    """Where segments live."""

    def create(self, name: str) -> Segment:
        """A new, empty segment; quick, and durable with its first commit. FileExistsError if the name was ever used."""
        ...

    def read(self, location: RecordLocation) -> bytes:
        """The compressed record at `location`, by one seek, in a finished segment or not (RecordUnreadable)."""
        ...
