"""What is read back of pages that are fetched again: the log of changes, and versions. Times are Unix ms."""

from typing import NamedTuple

from msgspec import Struct

from shared.domain.archive.model import RecordLocation
from shared.domain.frontier.page_history import ChangeKind
from shared.domain.ids import Fingerprint, HostId


class ChangePlace(NamedTuple):
    """A place in the log of changes: the time, partition and number of a row, and the position of an entry in it."""

    at_ms: int
    partition: int = -1
    number: int = -1
    entry: int = -1


class PageChangeView(Struct, frozen=True):
    """A page that was new, had changed or was gone. `version` is its newest version then."""

    place: ChangePlace
    kind: ChangeKind
    host_id: HostId
    fingerprint: Fingerprint
    url: str
    host: str
    version: int


class PageVersion(Struct, frozen=True):
    """A version of a page. `newest`: it is the stored page. `digest` is the payload's SHA-1, or empty."""

    version: int
    fetched_at_ms: int
    status: int
    mime: str | None
    size: int
    digest: bytes
    title: str | None
    truncated: str | None
    location: RecordLocation
    newest: bool = False
