"""The crawls as the owners of this master see them: compiled once per revision, shared by all partitions."""

from collections.abc import Iterator
from dataclasses import dataclass

from api.frontier.hosts import HostFacts
from api.frontier.room import Allowance
from shared.domain.crawl import CrawlSpec, host_slots
from shared.domain.frontier import CrawlState
from shared.domain.ids import CrawlId, Revision
from shared.domain.politeness import host_delay


@dataclass(slots=True)
class ActiveCrawl:
    """A crawl that may be worked on. `dispatching` is false while it is paused, ends or has spent its time."""

    crawl_id: CrawlId
    name: str
    revision: Revision
    spec: CrawlSpec
    state: CrawlState
    allowance: Allowance
    dispatching: bool = True

    def delay_s(self, facts: HostFacts) -> float:
        """A host's delay for this crawl: the longest of what the spec, robots.txt, latency and the operator ask."""
        return host_delay(
            self.spec.politeness,
            crawl_delay_s=facts.crawl_delay_ms / 1000,
            last_fetch_s=facts.latency_ms / 1000 if facts.latency_ms else None,
            operator_delay_s=facts.operator_delay_ms / 1000,
        )

    def slots(self, facts: HostFacts) -> int:
        """Shards of the host that may be out at once: one until its robots.txt could say what delay it asks for."""
        return host_slots(self.spec.politeness, self.delay_s(facts)) if facts.visited else 1

    @property
    def max_depth(self) -> int | None:
        return self.spec.scope.max_depth


class Crawls:
    """The crawls by id."""

    def __init__(self) -> None:
        self._crawls: dict[CrawlId, ActiveCrawl] = {}

    def __iter__(self) -> Iterator[ActiveCrawl]:
        return iter(list(self._crawls.values()))

    def get(self, crawl_id: CrawlId) -> ActiveCrawl | None:
        """The crawl, if it is known and not deleted."""
        return self._crawls.get(crawl_id)

    def put(self, crawl: ActiveCrawl) -> None:
        """A crawl appeared or has a new revision."""
        self._crawls[crawl.crawl_id] = crawl

    def remove(self, crawl_id: CrawlId) -> None:
        """A crawl was deleted."""
        self._crawls.pop(crawl_id, None)

    def max_depths(self) -> dict[CrawlId, int | None]:
        """Each crawl's depth limit."""
        return {crawl.crawl_id: crawl.max_depth for crawl in self}
