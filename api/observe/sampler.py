"""Read numbers for metrics from SQL and the broker every few seconds, so that a scrape costs no query.

Each master reads the crawls' counters in its own partitions, so the sum over all masters is the cluster's value. The
crawl controller reports which crawls changed, and only their counters are read again. If the master's partitions
change, the counters of all crawls are read.

The counters of a finished crawl are still exported for some minutes, so that Prometheus can scrape the last values.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from api.observe.crawl_sums import CrawlSums
from shared.domain.errors import Permanent, Transient
from shared.domain.frontier.crawl_rows import CrawlChanges
from shared.domain.frontier.states import WORKED_ON
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId, Partition
from shared.domain.ops.counts import CrawlCounts
from shared.ports.broker import Broker, ReportKind
from shared.ports.clock import Clock
from shared.ports.store import Store

log = structlog.get_logger("orb.control")

READ_S: Final = 5.0
KINDS: Final[tuple[ReportKind, ...]] = ("outcome", "discovery")


@dataclass(frozen=True, slots=True)
class StatsSample:
    """The numbers for metrics that were read at the time `at` (Clock.elapsed).

    - `counters`: the counters of crawls in the partitions of this master. The key is the name of a crawl. The crawls
      that metrics do not show under their own names are summed under the key OTHER.
    - `reports`: the number of reports that the broker stores, in all partitions. Applied reports are included until
      they are deleted.
    - `fullness`: for each kind of report, the used part of the broker's limit in the fullest partition, such as 0.5. At
      1 the broker refuses further reports.
    """

    at: float
    counters: Mapping[str, Counters] = field(default_factory=dict)
    reports: int = 0
    fullness: Mapping[ReportKind, float] = field(default_factory=dict)


class StatsSampler:
    """Reads the numbers for metrics from SQL and the broker into `stored`, every `read_s` seconds.

    If a read fails, `stored` keeps the earlier numbers.
    """

    def __init__(
        self,
        counts: CrawlCounts,
        owned: Callable[[], Sequence[Partition]],
        *,
        store: Store,
        broker: Broker,
        clock: Clock,
        read_s: float = READ_S,
    ) -> None:
        """Set up the sampler.

        - `counts` decides which crawls metrics show under their own names. The other crawls are shown as one sum.
        - `owned` returns the partitions of this master.
        - `read_s`: the seconds between two reads.
        """
        self._active: dict[CrawlId, str] = {}
        self._changed: set[CrawlId] = set()
        self._sums = CrawlSums()
        self._summed_in: Sequence[Partition] | None = None
        self._counts = counts
        self._owned = owned
        self._store = store
        self._broker = broker
        self._clock = clock
        self._read_s = read_s
        self.stored = StatsSample(clock.elapsed())

    def __repr__(self) -> str:
        return f"<StatsSampler {self.stored!r}>"

    def take(self, changes: CrawlChanges) -> None:
        """Note which crawls changed, so that the next read includes their counters."""
        for crawl_id, row in changes.rows.items():
            if row is not None and row.state in WORKED_ON:
                self._active[crawl_id] = row.name
            else:
                self._active.pop(crawl_id, None)
        self._changed.update(changes.rows, changes.counted, changes.compared)

    async def run(self) -> None:
        """Call `once` every `read_s` seconds until cancelled. Log a read that fails, and continue."""
        while True:
            try:
                await self.once()
            except Transient as error:
                log.warning("stats_refresh.delayed", error=str(error))
            except Permanent as error:
                log.error("stats_refresh.refused", error=str(error))
            await asyncio.sleep(self._read_s)

    async def once(self) -> None:
        """Read all numbers and store them as `stored`. Raise Transient if SQL or the broker does not answer."""
        now = self._clock.elapsed()
        await self._update_sums(now)
        fullness = {kind: await self._broker.fullness(kind) for kind in KINDS}
        self.stored = StatsSample(now, self._sums.by_label(), await self._broker.pending_reports(), fullness)

    async def _update_sums(self, now: float) -> None:
        """Read the counters of the crawls that changed since the last read, and update the sums.

        Read the counters of all crawls if the master owns other partitions than at the last read.
        """
        owned = tuple(self._owned())
        changed, self._changed = self._changed, set()
        self._assign_labels(now)
        if owned != self._summed_in:
            self._sums, self._summed_in = CrawlSums(), None
            changed.update(self._active, self._counts)
        try:
            counters = await self._read(changed, owned)
        except BaseException:
            self._changed |= changed  # The next read looks at them.
            raise
        self._summed_in = owned
        for crawl_id in changed:
            self._sums.put(crawl_id, self._counts.name(crawl_id), counters.get(crawl_id))
        labelled = set(self._counts)
        for crawl_id in labelled | self._sums.apart:
            kept = crawl_id in labelled or crawl_id in self._active
            self._sums.relabel(crawl_id, self._counts.name(crawl_id) if kept else None)

    async def _read(self, changed: Collection[CrawlId], owned: Sequence[Partition]) -> Mapping[CrawlId, Counters]:
        """Return the counters of crawls in `changed`, summed over the partitions `owned`.

        Only these crawls are included:

        - Crawls that are seeding, running or paused.
        - Finished crawls whose names are still labels in metrics.
        """
        active = self._active.keys() & changed
        ended = [crawl_id for crawl_id in self._counts if crawl_id in changed and crawl_id not in active]
        # The rows of a deleted crawl are being collected, so they are not counted.
        crawl_ids = {*active, *(await self._store.living(ended) if ended else ())}
        return await self._store.counters_in(crawl_ids, owned) if crawl_ids else {}

    def _assign_labels(self, now: float) -> None:
        """Choose which crawls metrics show under their own names. The number of these crawls is limited.

        Crawls that are seeding, running or paused are shown under their own names, as far as the limit allows. A
        finished crawl is still shown under its own name for some minutes.
        """
        labelled = [crawl_id for crawl_id in self._counts if crawl_id in self._active]
        for crawl_id in labelled:
            self._counts.of(crawl_id, self._active[crawl_id], now)
        self._counts.forget_idle(now)
        if len(labelled) < len(self._active) and not self._counts.is_full():
            for crawl_id in sorted(self._active.keys() - set(labelled)):
                self._counts.of(crawl_id, self._active[crawl_id], now)
                if self._counts.is_full():
                    break
