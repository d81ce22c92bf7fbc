"""The ports to page archives: writing WARC files (segments) by appending records, and reading records by location.

Every method except `PageArchive.aside` blocks its thread. Code on an event loop must call it in another thread, as
`workers/archive.py` does.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from shared.domain.archive.model import RecordLocation
from shared.domain.archive.stored_body import StoredBody
from shared.domain.errors import Permanent, Transient

T = TypeVar("T")


class ArchiveFull(Transient):
    """The archive's disk has no space left. The call stored nothing, and nothing stored before is lost.

    The call may be retried.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_in=30.0)


class ArchiveUnavailable(Transient):
    """The archive's disk failed, but not for lack of space. Assume that the call stored nothing, and retry it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_in=5.0)


class RecordUnreadable(Permanent):
    """No whole WARC record is at the requested location."""


class Segment(Protocol):
    """A WARC file to which one process appends records until it is finished.

    It must not be used by two threads at once.
    """

    @property
    def name(self) -> str:
        """The final name of the file. Locations of its records use this name even before the segment is finished."""

    def commit(self, members: Sequence[bytes]) -> None:
        """Append `members`, each one whole compressed record, and make them durable. Store all of them or none.

        Raise ArchiveFull or ArchiveUnavailable if none is stored. The call may then be repeated.
        """

    def finish(self) -> None:
        """Rename the file to its final name, durably, and close it. `commit` must not be called afterwards.

        Raise ArchiveFull or ArchiveUnavailable if this fails. The call may then be repeated.
        """

    def abandon(self) -> None:
        """Close the file without finishing the segment. The repair at the next start of the process finishes it."""


class SegmentReader(Protocol):
    """Reads bytes of segments (WARC files), whether they are finished or still written."""

    def read_up_to(self, name: str, offset: int, max_count: int) -> bytes:
        """Return at most `max_count` bytes of the segment `name`, starting at byte `offset`.

        Return no bytes at its end. Raise RecordUnreadable if there is no such segment, and ArchiveUnavailable if the
        disk fails.
        """

    def size(self, name: str) -> int:
        """Return the current size in bytes of the segment `name`.

        Raise RecordUnreadable if there is no such segment, and ArchiveUnavailable if the disk fails.
        """
        ...


class PageArchive(Protocol):
    """Reads stored pages by the location of their records.

    All methods except `aside` block. Code on an event loop passes them to `aside`, which runs them in a thread.
    """

    def body(self, location: RecordLocation) -> StoredBody:
        """Return the stored page at `location` after reading its headers. Iterating over it then reads the body.

        Raise RecordUnreadable or ArchiveUnavailable. The iteration may raise these too, and NotARecord for a damaged
        record.
        """

    def outlinks(self, location: RecordLocation) -> Sequence[tuple[str, str]]:
        """Return the links that were found in the page at `location`: pairs of a URL and how the link was found.

        The second value has the form of Heritrix, such as "L a/@href" for the `href` of an `a` element. Raise
        RecordUnreadable or ArchiveUnavailable.
        """

    def size(self, segment: str) -> int:
        """Return the size in bytes of the WARC file `segment`, finished or not.

        Raise RecordUnreadable or ArchiveUnavailable.
        """
        ...

    def piece(self, segment: str, offset: int, max_count: int) -> bytes:
        """Return at most `max_count` bytes of the WARC file `segment`, starting at byte `offset`.

        Return no bytes at its end. Raise RecordUnreadable or ArchiveUnavailable.
        """
        ...

    async def aside(self, work: Callable[[], T]) -> T:
        """Run `work`, which may block, in one of the archive's few threads.

        Return its result or raise its exception.
        """


class SegmentStore(Protocol):
    """Creates segments (WARC files), and reads records from them."""

    def create(self, name: str) -> Segment:
        """Return a new, empty segment. This is quick. The segment becomes durable with its first commit.

        Raise FileExistsError if a segment of this name exists, ArchiveFull or ArchiveUnavailable if the disk refuses
        the file.
        """

    def read(self, location: RecordLocation) -> bytes:
        """Return the compressed record at `location`. Its segment may be unfinished.

        Raise RecordUnreadable if the segment does not exist or ends before the record does, and ArchiveUnavailable if
        the disk fails.
        """
