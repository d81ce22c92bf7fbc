"""The port for monitoring: reads states, counters and lag of crawls, dead letters and the audit log from the database.

It never writes. Each call is one snapshot. Its cost is bounded or grows with the number of crawls. Errors are those of
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
    """A crawl without its spec: its name, revision, version, state, finish reason and creation time."""

    crawl_id: CrawlId
    name: str
    revision: Revision
    version: int
    state: CrawlState
    finished_reason: str | None
    created_at_ms: int


class Overview(Protocol):
    """Reads the database for monitoring: crawls with their counters and lag, dead letters and the audit log."""

    async def crawl_overviews(self, which: Collection[CrawlId] | None = None) -> Sequence[CrawlOverview]:
        """Return the crawls in `which` (None: all crawls) that are not deleted, ordered by id.

        The cost grows with the number of crawls returned.
        """

    async def counters(self, crawls: Sequence[CrawlId]) -> Mapping[CrawlId, Counters]:
        """Return the counters of each crawl in `crawls`, summed over partitions. Leave out crawls without counters."""

    async def host_states(self, crawl_id: CrawlId, now_ms: int, max_count: int) -> Sequence[HostState]:
        """Return the states of at most `max_count` hosts on which the crawl has URLs to fetch.

        Pass each result to `waits.rested` before you use `rest_s`, the seconds until the host's delay has passed. The
        database does not know the delay, so this method cannot compute `rest_s`. It sets `rest_s` to minus the seconds
        since the last visit. `waits.rested` adds the delay.

        Example: the last visit was 3 seconds ago, so `rest_s` is -3.0. The delay is 5 seconds. `waits.rested` returns
        2.0: the host may be visited in 2 seconds.
        """

    async def lag(self, crawl_id: CrawlId | None, now_ms: int) -> FrontierLag:
        """Return how much work waits at each stage, in one crawl or in all crawls that are seeding, running or paused.

        - `crawl_id`: None means all such crawls.
        - `now_ms`: the time from which ages are computed (Unix ms).
        """

    async def letters(self, after: int, max_count: int) -> Sequence[DeadLetterView]:
        """Return up to `max_count` dead letters with numbers greater than `after`, in the order of their numbers."""

    async def newest_letter(self) -> int:
        """Return the number of the newest dead letter, or 0 if there is none."""

    async def audit(self, which: AuditFilter, *, before: int, max_count: int) -> tuple[Sequence[AuditLine], int | None]:
        """Return up to `max_count` lines of the audit log that match `which` and have numbers below `before`.

        The newest come first. Also return the number to pass as `before` in the next call, or None at the end. A call
        examines a bounded number of rows. So it may return few lines or none before the end.
        """
