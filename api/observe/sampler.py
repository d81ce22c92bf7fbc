"""Read numbers for metrics from SQL and the broker every few seconds, so that a scrape costs no query.

Each master reads the crawls' counters in the partitions it owns, so the sum over masters is the cluster's. A crawl that
ended is read for some more minutes, so that its last numbers are scraped, too.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from api.frontier.dispatch_crawls import DispatchCrawls
from shared.domain.errors import Permanent, Transient
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import Partition
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

    - `counters`: by the crawl's label in metrics, in the partitions owned at that time.
    - `reports`: the number of reports that are stored and not purged, in all partitions.
    - `fullness`: by kind of report, how full the fullest partition's subject is (0: empty, 1: refuses reports).
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
        crawls: DispatchCrawls,
        counts: CrawlCounts,
        owned: Callable[[], Sequence[Partition]],
        *,
        store: Store,
        broker: Broker,
        clock: Clock,
        read_s: float = READ_S,
    ) -> None:
        """Set up the sampler. `counts` gives crawls their labels; `owned` returns the partitions of this master."""
        self._crawls = crawls
        self._counts = counts
        self._owned = owned
        self._store = store
        self._broker = broker
        self._clock = clock
        self._read_s = read_s
        self.stored = StatsSample(clock.elapsed())

    def __repr__(self) -> str:
        return f"<StatsSampler {self.stored!r}>"

    async def run(self) -> None:
        """Read the numbers periodically until cancelled.

        If a read fails, the next one follows after `read_s` seconds.
        """
        while True:
            try:
                await self.once()
            except Transient as error:
                log.warning("stats_refresh.delayed", error=str(error))
            except Permanent as error:
                log.error("stats_refresh.refused", error=str(error))
            await asyncio.sleep(self._read_s)

    async def once(self) -> None:
        """Read all numbers once into `stored`."""
        now = self._clock.elapsed()
        counters = await self._counters(now)
        fullness = {kind: await self._broker.fullness(kind) for kind in KINDS}
        self.stored = StatsSample(now, counters, await self._broker.pending_reports(), fullness)

    async def _counters(self, now: float) -> Mapping[str, Counters]:
        for crawl in sorted(self._crawls, key=lambda crawl: crawl.crawl_id):
            self._counts.of(crawl.crawl_id, crawl.name, now)
        self._counts.forget_idle(now)
        active = {crawl.crawl_id for crawl in self._crawls}
        ended = [crawl_id for crawl_id in self._counts if crawl_id not in active]
        # The rows of a deleted crawl are being collected, so they are not counted.
        crawl_ids = {*active, *(await self._store.living(ended) if ended else ())}
        by_name: dict[str, list[Counters]] = {}
        counted = await self._store.counters_in(crawl_ids, self._owned()) if crawl_ids else {}
        for crawl_id, counters in counted.items():
            by_name.setdefault(self._counts.name(crawl_id), []).append(counters)
        return {name: summed(parts) for name, parts in by_name.items()}


def summed(parts: Iterable[Counters]) -> Counters:
    """Return the sum of the counters, field by field."""
    total = dict.fromkeys(Counters.__dataclass_fields__, 0)
    for part in parts:
        for name in total:
            total[name] += getattr(part, name)
    return Counters(**total)
