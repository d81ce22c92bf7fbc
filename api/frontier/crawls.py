"""The crawls as the owners of this master see them: compiled once per revision, shared by all partitions."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import structlog

from api.frontier.hosts import HostFacts
from api.frontier.room import Allowance
from shared.domain.crawl import CrawlSpec, Politeness, Seed, decode_spec, host_slots
from shared.domain.frontier import WORKED_ON, CrawlState
from shared.domain.ids import CrawlId, Revision
from shared.domain.ledger import CrawlRow
from shared.domain.politeness import host_delay

log = structlog.get_logger("orb.frontier")


def delay_of(politeness: Politeness, facts: HostFacts) -> float:
    """Seconds that a crawl of this politeness leaves the host alone between requests."""
    return host_delay(
        politeness,
        crawl_delay_s=facts.crawl_delay_ms / 1000,
        last_fetch_s=facts.latency_ms / 1000 if facts.latency_ms else None,
        operator_delay_s=facts.operator_delay_ms / 1000,
        slowed_s=facts.health.slowed_ms / 1000,
    )


@dataclass(slots=True)
class ActiveCrawl:
    """A crawl that may be worked on. `dispatching` is false while it is paused, ends or has spent its time, and while
    its spec is `refused`: why workers cannot judge its URLs, None if they can."""

    crawl_id: CrawlId
    name: str
    revision: Revision
    spec: CrawlSpec
    state: CrawlState
    allowance: Allowance
    dispatching: bool = True
    refused: str | None = None

    def delay_s(self, facts: HostFacts) -> float:
        """A host's delay for this crawl: the longest of what the spec, robots.txt, latency and the operator ask."""
        return delay_of(self.spec.politeness, facts)

    def slots(self, facts: HostFacts) -> int:
        """Shards of the host that may be out at once: one until its robots.txt could say what delay it asks for."""
        return self.pace(facts)[1]

    def pace(self, facts: HostFacts) -> tuple[float, int]:
        """Return the host's delay and slots for this crawl."""
        delay_s = self.delay_s(facts)
        return delay_s, host_slots(self.spec.politeness, delay_s) if facts.visited else 1

    @property
    def max_depth(self) -> int | None:
        return self.spec.scope.max_depth


class Crawls:
    """The crawls by id.

    The master loads those that are worked on, soon after it starts. An owner may need a crawl before that, or after the
    crawl has ended: it looks the crawl up in SQL (`Ownership.look_up`) and decides by that row. What was looked up is
    never dispatched, and is kept until the master has compared all crawls with SQL again (`forget_looked_up`).
    """

    def __init__(self) -> None:
        self._crawls: dict[CrawlId, ActiveCrawl] = {}
        self._looked_up: dict[CrawlId, ActiveCrawl] = {}
        self._strictest: Politeness | None = None

    def __iter__(self) -> Iterator[ActiveCrawl]:
        return iter(list(self._crawls.values()))

    def get(self, crawl_id: CrawlId) -> ActiveCrawl | None:
        """Return the crawl if this master has loaded it: it is worked on."""
        return self._crawls.get(crawl_id)

    def find(self, crawl_id: CrawlId) -> ActiveCrawl | None:
        """Return the crawl by which to decide, loaded or looked up. None after a look-up: it is deleted."""
        return self._crawls.get(crawl_id) or self._looked_up.get(crawl_id)

    def going_on(self, crawl_id: CrawlId) -> bool:
        """Return True if the crawl, loaded or looked up, has neither ended nor been deleted."""
        crawl = self.find(crawl_id)
        return crawl is not None and crawl.state in WORKED_ON

    def resting(self, crawl_id: CrawlId) -> bool:
        """Return True if no request may start for the crawl. One that was looked up is judged by its state alone."""
        crawl = self.find(crawl_id)
        loaded = crawl_id in self._crawls
        return crawl is None or crawl.state is CrawlState.PAUSED or (loaded and not crawl.dispatching)

    def unknown(self, crawl_ids: Iterable[CrawlId]) -> set[CrawlId]:
        """Return those of the crawls that are neither loaded nor looked up."""
        return {crawl_id for crawl_id in crawl_ids if self.find(crawl_id) is None}

    def put(self, crawl: ActiveCrawl) -> None:
        """A crawl appeared or has a new revision."""
        self._crawls[crawl.crawl_id] = crawl
        self._looked_up.pop(crawl.crawl_id, None)
        self._strictest = None

    def looked_up(self, rows: Iterable[CrawlRow]) -> None:
        """Keep crawls that this master has not loaded, as SQL has them."""
        for row in rows:
            if row.crawl_id not in self._crawls:
                self._looked_up[row.crawl_id] = _looked_up(row)

    def forget_looked_up(self) -> None:
        """Look up anew what is needed from now on: crawls may have changed."""
        self._looked_up.clear()

    def remove(self, crawl_id: CrawlId) -> None:
        """A crawl was deleted, or has ended."""
        self._crawls.pop(crawl_id, None)
        self._looked_up.pop(crawl_id, None)
        self._strictest = None

    def longest_delay_s(self, facts: HostFacts) -> float:
        """The longest delay that a crawl keeps to a host. The crawls are gone over only after a change of them."""
        if not self._crawls:
            return 0.0
        if self._strictest is None:
            asked = [crawl.spec.politeness for crawl in self._crawls.values()]
            adaptive = [politeness.max_delay_s for politeness in asked if politeness.adaptive]
            self._strictest = Politeness(
                delay_s=max(politeness.delay_s for politeness in asked),
                adaptive=bool(adaptive),
                max_delay_s=max(adaptive, default=0.0),
                obey_robots=any(politeness.obey_robots for politeness in asked),
            )
        return delay_of(self._strictest, facts)

    def max_depths(self, crawl_ids: Iterable[CrawlId]) -> dict[CrawlId, int | None]:
        """Return the depth limits of those of the crawls that are loaded or looked up."""
        found = map(self.find, set(crawl_ids))
        return {crawl.crawl_id: crawl.max_depth for crawl in found if crawl is not None}


def spec_of(row: CrawlRow) -> CrawlSpec | None:
    """Return the row's spec. Log an error and return None if this version cannot read it."""
    try:
        return decode_spec(row.spec)
    except msgspec.MsgspecError as error:
        log.error("crawl.unreadable", crawl=row.crawl_id, revision=row.revision, error=str(error))
        return None


def _looked_up(row: CrawlRow) -> ActiveCrawl:
    """Return the crawl without its budget, which counts at dispatch.

    A spec of a later version cannot be read here. Its reports count all the same, under the default rules.
    """
    spec = spec_of(row) or CrawlSpec(seeds=(Seed(url=""),))
    return ActiveCrawl(
        row.crawl_id, row.name, row.revision, spec, row.state, Allowance(None, None, {}), dispatching=False
    )
