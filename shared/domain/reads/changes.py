"""Values read from the database about pages that are fetched again: the log of changes, and versions.

Times are Unix ms.
"""

from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from shared.domain.archive.model import RecordLocation
from shared.domain.frontier.page_history import ChangeKind
from shared.domain.ids import MAX_PARTITIONS, Fingerprint, HostId


class ChangePlace(NamedTuple):
    """A position in the log of changes, which clients send in cursors.

    - `at_ms`, `partition` and `number`: the row of the log.
    - `entry`: the index of one entry in that row.

    `ChangePlace(at_ms)` is before all entries of that time.
    """

    at_ms: int
    # A client may send any number in a cursor, but the database has no larger partition.
    partition: Annotated[int, Meta(lt=MAX_PARTITIONS)] = -1
    number: int = -1
    entry: int = -1


class PageChangeView(Struct, frozen=True):
    """A change in the log of changes: a page that was new, changed or gone.

    `version` is the number of the page's newest version after the change.
    """

    place: ChangePlace
    kind: ChangeKind
    host_id: HostId
    fingerprint: Fingerprint
    url: str
    host: str
    version: int


class PageVersion(Struct, frozen=True):
    """A version of a page. `digest` is the SHA-1 of its payload, or empty.

    `newest`: it is the version that the crawl now stores as the page.
    """

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
