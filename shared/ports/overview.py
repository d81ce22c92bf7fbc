"""The port to the whole as those see it who watch over it: standings, numbers and lag of crawls, and the audit log.

Reads only, each one snapshot at a cost that is bounded, or grows with the number of crawls. Errors as for the store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.domain.audit import AuditFilter, AuditLine
from shared.domain.declared import DeadLetterView
from shared.domain.frontier import CrawlState
from shared.domain.ids import CrawlId, Revision
from shared.domain.lag import FrontierLag
from shared.domain.ledger import Counters


@dataclass(frozen=True, slots=True)
class CrawlStanding:
    """How a crawl stands, without its spec."""

    crawl_id: CrawlId
    name: str
    revision: Revision
    version: int
    state: CrawlState
    finished_reason: str | None
    created_at_ms: int


class Overview(Protocol):
    """See the module."""

    async def standings(self, *, worked_on: bool = False) -> Sequence[CrawlStanding]:
        """Every crawl that is not deleted; `worked_on`: those in which something may move, at the cost of these."""
        ...

    async def newest_line(self) -> int:
        """The greatest number in the audit log, 0 when it is empty: another one once an operator changed something."""
        ...

    async def counters(self, crawls: Sequence[CrawlId]) -> Mapping[CrawlId, Counters]:
        """The counters of those crawls that have any."""
        ...

    async def lag(self, crawl_id: CrawlId | None, now_ms: int) -> FrontierLag:
        """What waits in a crawl, or in all that are worked on."""
        ...

    async def letters(self, after: int, most: int) -> Sequence[DeadLetterView]:
        """Dead letters with numbers above `after`, oldest first."""
        ...

    async def newest_letter(self) -> int:
        """The greatest number of a dead letter, 0 when there is none."""
        ...

    async def audit(self, which: AuditFilter, *, before: int, most: int) -> tuple[Sequence[AuditLine], int | None]:
        """Up to `most` lines below the number `before`, newest first, and where to go on (None at the end). It looks at
        a bounded number of rows, so a page may be short, or empty, before the end."""
        ...
