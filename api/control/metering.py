"""The numbers of metrics that only SQL and the broker know: read at an interval, so that a scrape costs no query.

Each master reads of crawls what lies in the partitions it owns: the sum over masters is the cluster's, whoever owns
what. A crawl that ended is read for some minutes more, so that its last numbers are seen, too.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from api.frontier.crawls import Crawls
from shared.domain.errors import Permanent, Transient
from shared.domain.ids import Partition
from shared.domain.ledger import Counters
from shared.domain.tally import CrawlCounts
from shared.ports.broker import Broker, ReportKind
from shared.ports.clock import Clock
from shared.ports.store import Store

log = structlog.get_logger("orb.control")

READ_S: Final = 5.0
KINDS: Final[tuple[ReportKind, ...]] = ("outcome", "discovery")


@dataclass(frozen=True, slots=True)
class Stored:
    """What was read at `at` (Clock.elapsed). `counters` by the names that crawls are counted under, in the partitions
    owned then; `reports`: stored and not purged, of all partitions; `fullness` of the fullest subject of a kind."""

    at: float
    counters: Mapping[str, Counters] = field(default_factory=dict)
    reports: int = 0
    fullness: Mapping[ReportKind, float] = field(default_factory=dict)


class Metering:
    """Keeps `stored` no older than the interval, while database and broker answer."""

    def __init__(
        self,
        crawls: Crawls,
        counts: CrawlCounts,
        owned: Callable[[], Sequence[Partition]],
        *,
        store: Store,
        broker: Broker,
        clock: Clock,
        read_s: float = READ_S,
    ) -> None:
        """`counts` gives crawls their names; `owned` the partitions of this master."""
        self._crawls = crawls
        self._counts = counts
        self._owned = owned
        self._store = store
        self._broker = broker
        self._clock = clock
        self._read_s = read_s
        self.stored = Stored(clock.elapsed())

    def __repr__(self) -> str:
        return f"<Metering {self.stored!r}>"

    async def run(self) -> None:
        """Until cancelled. What cannot be read now is read later; how old it is can be seen."""
        while True:
            try:
                await self.once()
            except Transient as error:
                log.warning("metering.waits", error=str(error))
            except Permanent as error:
                log.error("metering.refused", error=str(error))
            await asyncio.sleep(self._read_s)

    async def once(self) -> None:
        """Read everything."""
        now = self._clock.elapsed()
        counters = await self._counters(now)
        fullness = {kind: await self._broker.fullness(kind) for kind in KINDS}
        self.stored = Stored(now, counters, await self._broker.pending_reports(), fullness)

    async def _counters(self, now: float) -> Mapping[str, Counters]:
        for crawl in sorted(self._crawls, key=lambda crawl: crawl.crawl_id):
            self._counts.of(crawl.crawl_id, crawl.name, now)
        self._counts.forget_idle(now)
        active = {crawl.crawl_id for crawl in self._crawls}
        ended = [crawl_id for crawl_id in self._counts if crawl_id not in active]
        # The rows of a deleted crawl are being collected, so they are not counted.
        wanted = {*active, *(await self._store.living(ended) if ended else ())}
        found: dict[str, list[Counters]] = {}
        counted = await self._store.counters_in(wanted, self._owned()) if wanted else {}
        for crawl_id, counters in counted.items():
            found.setdefault(self._counts.name(crawl_id), []).append(counters)
        return {name: added(parts) for name, parts in found.items()}


def added(parts: Iterable[Counters]) -> Counters:
    """Counters together."""
    total = dict.fromkeys(Counters.__dataclass_fields__, 0)
    for part in parts:
        for name in total:
            total[name] += getattr(part, name)
    return Counters(**total)
