"""The crawls as this master last read them from SQL. No I/O.

A crawl is pending while the master must decide what to do for the crawl, such as to publish its seeds (`reconcile`).
A crawl becomes pending in these cases:

- Its row has changed.
- It may have used up its `max_seconds`.
- Its turn has come. Each read of changes makes the next `COMPARED` crawls pending, even if they have not changed.
- This master became the leader, or compares all published specs with SQL. Then all crawls become pending.

So a master usually decides on a few crawls at a time, however many crawls there are.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Final

from api.crawls.reconcile import LoadedCrawl
from shared.domain.frontier.crawl_rows import ChangeMark, CrawlChanges, CrawlRow, CrawlVersion
from shared.domain.frontier.states import WORKED_ON, CrawlState
from shared.domain.ids import CrawlId

COMPARED: Final = 10
"""Number of known crawls that each read of changes compares with SQL, even if they have not changed."""

_MAX_SHORT_READS: Final = 2
"""How many of the reads that `is_current` counts may be short: a short read compares fewer than `COMPARED` crawls.

The reads go through the list of crawls again and again, 10 crawls (`COMPARED`) at a time. The last read of each round
is short if fewer than 10 crawls are left. `is_current` does not rely on 2 of its reads, because they may be short.
Example: 100 crawls need 10 full reads, so `is_current` requires 12 reads."""


class KnownCrawls:
    """The crawls that are seeding, running or paused, as last read from SQL. Some are marked as pending or unchecked.

    Pending crawls need a decision of `reconcile`. Unchecked crawls may be finished: `FinishedCheck` must check them.

    - `mark`: how far the changes were read. Pass it to the next read of changes.
    - `clocks`: by pool, for how many ms at least one crawl of the pool has been worked on. Time in which several crawls
      were worked on counts once.
    - `late`: crawls whose counters changed although they are not seeding, running or paused. The leader examines if
      these crawls must be reopened.
    """

    def __init__(self) -> None:
        self.mark = ChangeMark()
        self.clocks: dict[str, int] = {}
        self.late: set[CrawlId] = set()
        self._rows: dict[CrawlId, CrawlRow] = {}
        self._ended: dict[CrawlId, CrawlRow | None] = {}
        self._pending: set[CrawlId] = set()
        self._unchecked: set[CrawlId] = set()
        self._recent: Mapping[CrawlId, CrawlVersion] = {}
        self._in_pool: Counter[str] = Counter()
        self._due: dict[str, list[tuple[int, CrawlId]]] = {}
        self._due_at: dict[CrawlId, tuple[str, int]] = {}
        self._turns: Iterator[CrawlId] = iter(())
        self._data_version: int | None = None
        self._same_reads = 0

    def __repr__(self) -> str:
        return f"<KnownCrawls {len(self._rows)} pending={len(self._pending)} unchecked={len(self._unchecked)}>"

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, crawl_id: CrawlId) -> bool:
        return crawl_id in self._rows

    def version(self, crawl_id: CrawlId) -> CrawlVersion | None:
        """Return the version of the crawl's row as it was last read from SQL. Return None if none is stored here.

        Versions are stored for crawls that are seeding, running or paused, and for the crawls that changed last
        (`CrawlChanges.recent`).
        """
        row = self._rows.get(crawl_id)
        return self._recent.get(crawl_id) if row is None else row.version

    def next_compared(self) -> Collection[CrawlId]:
        """Return up to `COMPARED` crawls that the next read must compare with SQL.

        Successive calls go through all crawls.
        """
        turn = [crawl_id for crawl_id in islice(self._turns, COMPARED) if crawl_id in self._rows]
        if not turn:
            self._turns = iter(tuple(self._rows))
            turn = list(islice(self._turns, COMPARED))
        return turn

    def is_current(self, data_version: int | None) -> bool:
        """Return True if a read of the changes would find none.

        That is so if all crawls were compared with SQL, and nothing was committed since. `data_version`: the present
        result of Store.data_version. If it is None, return False.
        """
        if data_version is None or data_version != self._data_version:
            return False
        return (self._same_reads - _MAX_SHORT_READS) * COMPARED >= len(self._rows)

    def take(self, changes: CrawlChanges, data_version: int | None = None) -> None:
        """Store the changes that were read from SQL, and mark the crawls that must be examined.

        These crawls are marked as pending and as unchecked:

        - crawls whose row changed,
        - the crawls whose turn it was in this read, changed or not (`CrawlChanges.compared`),
        - crawls that have used up their `max_seconds`.

        If only the counters of a crawl changed, the crawl is marked as unchecked. If this crawl is not seeding, running
        or paused, it is added to `late` instead.

        `data_version`: the result of Store.data_version just before the changes were read. None if it is unknown.
        """
        self._same_reads = self._same_reads + 1 if data_version == self._data_version else 0
        self._data_version = data_version
        for crawl_id, row in changes.rows.items():
            self._put(crawl_id, row)
        self.mark, self._recent = changes.mark, changes.recent
        # This process may have moved a clock after the read began.
        self.clocks = {pool: max(ms, self.clocks.get(pool, 0)) for pool, ms in changes.clocks.items()}
        looked_at = {*changes.rows, *self._come_due(), *(each for each in changes.compared if each in self._rows)}
        self._pending |= looked_at
        self._unchecked |= looked_at | {crawl_id for crawl_id in changes.counted if crawl_id in self._rows}
        self.late |= {crawl_id for crawl_id in changes.counted if crawl_id not in self._rows}

    def look_at_all(self, ended: Mapping[CrawlId, CrawlRow | None]) -> None:
        """Mark all crawls as pending and unchecked, as a new leader must.

        `ended`: crawls that have ended, to be marked as pending also. A deleted crawl has None as its row.
        """
        for crawl_id, row in ended.items():
            if crawl_id not in self._rows:
                self._put(crawl_id, row)
        self._pending.update(self._rows, ended)
        self._unchecked.update(self._rows)

    def pending(self) -> Mapping[CrawlId, CrawlRow | None]:
        """Return the pending crawls, each with its row. The row of a deleted crawl is None."""
        return {crawl_id: self._rows.get(crawl_id) or self._ended.get(crawl_id) for crawl_id in self._pending}

    def keep_pending(self, crawl_ids: Collection[CrawlId], loaded: Mapping[CrawlId, LoadedCrawl]) -> None:
        """Keep only the crawls in `crawl_ids` pending. All other pending crawls are decided, and no longer pending.

        `loaded`: the crawls that this master dispatches, each with its time limit (`max_ms`). A decided crawl with a
        time limit becomes pending again when the crawl reaches the limit.
        """
        for crawl_id in self._pending.difference(crawl_ids):
            self._ended.pop(crawl_id, None)
            if (row := self._rows.get(crawl_id)) is not None and crawl_id in loaded:
                self._await_due(row, loaded[crawl_id].max_ms)
        self._pending.intersection_update(crawl_ids)

    def take_unchecked(self) -> list[CrawlRow]:
        """Return the rows of the unchecked crawls that are running. Then mark all crawls as checked.

        Unchecked crawls that are seeding or paused are marked, too, but not returned: only running crawls are checked.
        `take` marks a crawl as unchecked again when its row changes, for example when it begins to run.
        """
        rows = [row for crawl_id in self._unchecked if (row := self._rows.get(crawl_id)) is not None]
        self._unchecked.clear()
        return [row for row in rows if row.state is CrawlState.RUNNING]

    def skip_checks(self) -> None:
        """Mark all crawls as checked, and empty `late`. Masters that do not lead call this: only the leader checks."""
        self._unchecked.clear()
        self.late.clear()

    def check_again(self, crawl_ids: Collection[CrawlId]) -> None:
        """Mark these crawls as unchecked, so that they are checked again for whether they are finished."""
        self._unchecked.update(crawl_ids)

    def pools(self) -> Mapping[str, int]:
        """Return the pools in which at least one crawl is worked on now, each with its clock's value in ms.

        The caller lets these clocks advance by the time that has passed. Example: `{"default": 60_000}` means that only
        the clock of the pool "default" advances, and that it shows 60 s so far.
        """
        return {pool: ms for pool, ms in self.clocks.items() if self._in_pool[pool]}

    def _put(self, crawl_id: CrawlId, row: CrawlRow | None) -> None:
        if (before := self._rows.pop(crawl_id, None)) is not None and before.active_pool is not None:
            self._in_pool[before.active_pool] -= 1
        if row is None or row.state not in WORKED_ON:
            self._ended[crawl_id] = row
            self._due_at.pop(crawl_id, None)
            return
        self._ended.pop(crawl_id, None)
        self._rows[crawl_id] = row
        if row.active_pool is not None:
            self._in_pool[row.active_pool] += 1

    def _await_due(self, row: CrawlRow, max_ms: int | None) -> None:
        if max_ms is None or row.active_pool is None:
            return
        at = row.active_pool, row.active_zero_ms + max_ms
        if self._due_at.get(row.crawl_id) != at and self.clocks.get(row.active_pool, 0) < at[1]:
            self._due_at[row.crawl_id] = at
            heapq.heappush(self._due.setdefault(row.active_pool, []), (at[1], row.crawl_id))

    def _come_due(self) -> Iterator[CrawlId]:
        """Yield each crawl that has reached its time limit (`max_seconds`) since the last call.

        `keep_pending` stored the limits. The time of a crawl is measured by the clock of its pool.
        """
        # If the spec changed meanwhile, the stored limit may be out of date. `reconcile` decides by the present limit.
        for pool, waiting in self._due.items():
            while waiting and waiting[0][0] <= self.clocks.get(pool, 0):
                at, crawl_id = heapq.heappop(waiting)
                if self._due_at.get(crawl_id) == (pool, at):
                    del self._due_at[crawl_id]
                    yield crawl_id
