"""The port to the overview for monitoring: states, counters and lag of crawls, dead letters and the audit log.

It only reads. Each call is one snapshot, at a cost that is bounded or grows with the number of crawls. Errors as for
the store.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.domain.explain.waits import HostState
from shared.domain.frontier.lag import FrontierLag
from shared.domain.frontier.states import CrawlState
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId, Revision
from shared.domain.ops.audit import AuditFilter, AuditLine
from shared.domain.reads.declared import DeadLetterView


@dataclass(frozen=True, slots=True)
class CrawlOverview:
    """A crawl without its spec: its name, state and versions."""

    crawl_id: CrawlId
    name: str
    revision: Revision
    version: int
    state: CrawlState
    finished_reason: str | None
    created_at_ms: int


class Overview(Protocol):
    """Reads of the database for monitoring: crawls with their counters and lag, dead letters and the audit log."""

    async def crawl_overviews(self, which: Collection[CrawlId] | None = None) -> Sequence[CrawlOverview]:
        """Return those of the crawls `which` that are not deleted, in the order of their ids. None: of all crawls.

        The cost grows with the number returned.
        """

    async def counters(self, crawls: Sequence[CrawlId]) -> Mapping[CrawlId, Counters]:
        """Return a mapping from crawl to its counters. Crawls that have none are left out."""

    async def host_states(self, crawl_id: CrawlId, now_ms: int, max_count: int) -> Sequence[HostState]:
        """Return at most `max_count` hosts on which the crawl has URLs to send out.

        Their `rest_s` counts from the last visit; `waits.rested` must add the host's delay to it.
        """

    async def lag(self, crawl_id: CrawlId | None, now_ms: int) -> FrontierLag:
        """Return how much work waits at each stage, in one crawl (None: in all crawls that are worked on)."""

    async def letters(self, after: int, max_count: int) -> Sequence[DeadLetterView]:
        """Return up to `max_count` dead letters with numbers above `after`, oldest first."""

    async def newest_letter(self) -> int:
        """Return the number of the newest dead letter, 0 if there is none."""

    async def audit(self, which: AuditFilter, *, before: int, max_count: int) -> tuple[Sequence[AuditLine], int | None]:
        """Return up to `max_count` lines of the audit log that match `which`, with numbers below `before`, newest
        first.

        Also return the number to pass as `before` next (None at the end). A call examines a bounded number of rows, so
        a page may be short or empty before the end.
        """
