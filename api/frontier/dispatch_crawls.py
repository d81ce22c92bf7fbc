"""The crawls that this master dispatches: each spec is decoded once per revision, and all partitions share it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
import structlog

from api.frontier.capacity import BudgetReservation
from api.frontier.hosts import Host, HostFacts
from shared.domain.crawl.exclusions import NO_EXCLUSIONS
from shared.domain.crawl.host_specs import HostSpecs, compiled_scope
from shared.domain.crawl.priority_rules import CompiledPriority, compiled_priority
from shared.domain.crawl.recrawl_rules import CompiledRecrawl, compiled
from shared.domain.crawl.requisites_spec import Requisites
from shared.domain.crawl.scope import CompiledScope
from shared.domain.crawl.spec import CrawlSpec, Politeness, Seed, decode_spec, host_slots, user_agent
from shared.domain.crawl.spec_rules import refused_pattern
from shared.domain.frontier.crawl_rows import CrawlRow
from shared.domain.frontier.politeness import host_delay
from shared.domain.frontier.recrawl_pages import AdaptiveSchedule, RecrawlPages
from shared.domain.frontier.states import WORKED_ON, CrawlState
from shared.domain.frontier.store_model import LeasedUrl
from shared.domain.ids import CrawlId, Partition, Revision
from shared.domain.software import VERSION
from shared.domain.web.robots import product_token

log = structlog.get_logger("orb.frontier")


def delay_of(politeness: Politeness, facts: HostFacts) -> float:
    """Return the minimum seconds between two requests to a host, from the spec's politeness and the host's facts."""
    return host_delay(
        politeness,
        crawl_delay_s=facts.crawl_delay_ms / 1000,
        last_fetch_s=facts.latency_ms / 1000 if facts.latency_ms else None,
        operator_delay_s=facts.operator_delay_ms / 1000,
        slowed_s=facts.health.slowed_ms / 1000,
    )


@dataclass(slots=True)
class DispatchCrawl:
    """A crawl as owners need it: its spec, its state and its remaining budget (`allowance`).

    - `dispatching`: False while it is paused, is ending or has spent its time, and while its spec is `refused`.
    - `refresh_ms`: stored pages that become due after this time (Unix ms) are not fetched for now. 0: there is no
      limit.
    - `refused`: why workers cannot use a pattern of its spec, None if they can.
    """

    crawl_id: CrawlId
    name: str
    revision: Revision
    spec: CrawlSpec
    state: CrawlState
    allowance: BudgetReservation
    dispatching: bool = True
    refused: str | None = None
    refresh_ms: int = 0
    compiled_scope: tuple[CrawlSpec, CompiledScope] | None = field(default=None, repr=False)
    by_host: tuple[CrawlSpec, HostSpecs] | None = field(default=None, repr=False)

    @property
    def scope(self) -> CompiledScope:
        """The scope of the present spec, compiled at its first use."""
        if self.compiled_scope is None or self.compiled_scope[0] is not self.spec:
            self.compiled_scope = (self.spec, compiled_scope(self.spec))
        return self.compiled_scope[1]

    @property
    def host_specs(self) -> HostSpecs:
        """The present spec as it applies to each host, prepared at its first use."""
        if self.by_host is None or self.by_host[0] is not self.spec:
            self.by_host = (self.spec, HostSpecs(self.spec))
        return self.by_host[1]

    def spec_of(self, host: str) -> CrawlSpec:
        """Return the spec with the overrides that apply to the URLs of `host`."""
        return self.host_specs.of(host) if self.spec.overrides else self.spec

    @property
    def changing(self) -> bool:
        """True if the spec was changed, and the command that applies its scope may not have reached the owners yet."""
        return self.revision > 1 and self.state is CrawlState.SEEDING

    def delay_s(self, host: str, facts: HostFacts) -> float:
        """Return a host's delay for this crawl in seconds, from the crawl's spec and the host's facts (`delay_of`)."""
        return delay_of(self.spec_of(host).politeness, facts)

    def pace(self, host: str, facts: HostFacts) -> tuple[float, int]:
        """Return a host's delay for this crawl in seconds, and how many shards of the crawl it may have leased at once.

        The second number is 1 until the host was visited.
        """
        delay_s = self.delay_s(host, facts)
        if not facts.visited:
            return delay_s, 1
        slots = host_slots(self.spec.politeness, delay_s)
        return delay_s, min(slots, facts.operator_slots) if facts.operator_slots else slots

    @property
    def max_depth(self) -> int | None:
        """The greatest `scope.max_depth` of the spec and its overrides. None if none of them sets a limit."""
        return self.host_specs.greatest_depth_limit if self.spec.overrides else self.spec.scope.max_depth

    def max_pages_of(self, host: str) -> int | None:
        """Return how many pages of `host` may be fetched at most. None: there is no limit."""
        return self.spec_of(host).budget.max_pages_per_host

    @property
    def requisites_apart(self) -> bool:
        """True if requisites are leased apart from pages, because pages have a budget that requisites do not use."""
        if self.spec.scope.requisites is Requisites.NONE:
            return False
        return self.spec.budget.bounded or self.host_specs.limits_pages_per_host

    @property
    def recrawl(self) -> CompiledRecrawl | None:
        """The rules by which stored pages are fetched again; None if each page is fetched once."""
        return compiled(self.spec.recrawl) if self.spec.recrawl.used else None

    def recrawl_of(self, url: LeasedUrl) -> CompiledRecrawl | None:
        """Return the recrawl rules for an outcome of this leased URL. None if no such rules apply.

        - If the spec fetches pages repeatedly: return the rules of its section `recrawl`.
        - If the spec fetches each page once, and no page of the URL was stored before the lease: return None.
        - If the spec fetches each page once, but a page was stored before the lease (`url.last`): return the rules of
          the section `recrawl`. Its policy is `never`, so the page is not fetched again after this outcome.
        """
        # The third case: the stored page was leased before a new spec revision set the policy to `never`.
        spec = self.spec.recrawl
        return None if url.last is None and not spec.used else compiled(spec)


class DispatchCrawls:
    """The crawls that a master has loaded, and those that its owners looked up, by id.

    The master loads the crawls that are worked on, soon after it starts. An owner may need a crawl before that, or
    after the crawl has ended. Then the owner reads the crawl's row from SQL (`PartitionWriter.look_up`). A crawl that
    was looked up is never dispatched. It is forgotten in the next pass of the crawl controller (`forget_looked_up`).

    `exclusions`: the exclusions in force, which apply to every crawl.
    """

    def __init__(self) -> None:
        self.exclusions = NO_EXCLUSIONS
        self._crawls: dict[CrawlId, DispatchCrawl] = {}
        self._looked_up: dict[CrawlId, DispatchCrawl] = {}
        self._strictest: Politeness | None = None
        self._overriding: list[DispatchCrawl] = []

    def __iter__(self) -> Iterator[DispatchCrawl]:
        return iter(list(self._crawls.values()))

    def get(self, crawl_id: CrawlId) -> DispatchCrawl | None:
        """Return the crawl if this master has loaded it, that is, if it is worked on; otherwise None."""
        return self._crawls.get(crawl_id)

    def find(self, crawl_id: CrawlId) -> DispatchCrawl | None:
        """Return the crawl if it is loaded or was looked up, otherwise None.

        After `PartitionWriter.look_up` None means that the crawl is deleted.
        """
        return self._crawls.get(crawl_id) or self._looked_up.get(crawl_id)

    def going_on(self, crawl_id: CrawlId) -> bool:
        """Return True if the crawl, loaded or looked up, is seeding, running or paused."""
        crawl = self.find(crawl_id)
        return crawl is not None and crawl.state in WORKED_ON

    def is_stopped(self, crawl_id: CrawlId) -> bool:
        """Return True if workers may start no request of the crawl now.

        That is so if the crawl is unknown, paused, or loaded with its dispatch stopped.
        """
        crawl = self.find(crawl_id)
        loaded = crawl_id in self._crawls
        return crawl is None or crawl.state is CrawlState.PAUSED or (loaded and not crawl.dispatching)

    def may_dispatch(self, now: float, crawl_id: CrawlId) -> bool:
        """Return True if the crawl may dispatch at `now` (`Clock.elapsed`). Return False if its dispatch is stopped.

        Most crawls may dispatch only while budget is left. Two kinds may also dispatch without budget left: crawls that
        fetch stored pages again, and crawls whose requisites do not use the page budget.
        """
        crawl = self.get(crawl_id)
        if crawl is None or not crawl.dispatching:
            return False
        if crawl.spec.recrawl.used or crawl.requisites_apart:  # These use up no budget of pages.
            return True
        return not crawl.allowance.paused(now) and crawl.allowance.remaining(1) > 0

    def unknown(self, crawl_ids: Iterable[CrawlId]) -> set[CrawlId]:
        """Return the given ids of crawls that are neither loaded nor looked up."""
        return {crawl_id for crawl_id in crawl_ids if self.find(crawl_id) is None}

    def put(self, crawl: DispatchCrawl) -> None:
        """Add a loaded crawl, or replace it by its new revision."""
        self._crawls[crawl.crawl_id] = crawl
        self._looked_up.pop(crawl.crawl_id, None)
        self._strictest = None

    def looked_up(self, rows: Iterable[CrawlRow]) -> None:
        """Add crawls as looked up, from rows just read from SQL. Ignore crawls that this master has loaded."""
        for row in rows:
            if row.crawl_id not in self._crawls:
                self._looked_up[row.crawl_id] = _looked_up(row)

    def forget_looked_up(self) -> None:
        """Forget the looked-up crawls, so that they are read from SQL again: they may have changed."""
        self._looked_up.clear()

    def remove(self, crawl_id: CrawlId) -> None:
        """Remove a crawl that was deleted or has ended, loaded or looked up."""
        self._crawls.pop(crawl_id, None)
        self._looked_up.pop(crawl_id, None)
        self._strictest = None

    def longest_delay_s(self, host: Host) -> float:
        """Return an upper bound, in seconds, for the delays that the loaded crawls require for a host.

        No loaded crawl requires a longer delay than the returned one. All of them may require a shorter one.
        """
        # The bound combines the strictest value of each setting, and these values may come from different crawls.
        if not self._crawls:
            return 0.0
        if self._strictest is None:
            asked = [crawl.spec.politeness for crawl in self._crawls.values()]
            self._strictest = Politeness(
                delay_s=max(politeness.delay_s for politeness in asked),
                adaptive=any(politeness.adaptive for politeness in asked),
                max_delay_s=max(politeness.max_delay_s for politeness in asked),
                obey_robots=any(politeness.obey_robots for politeness in asked),
            )
            self._overriding = [crawl for crawl in self._crawls.values() if crawl.spec.overrides]
        longest_s = delay_of(self._strictest, host.facts)
        return max([longest_s, *(crawl.delay_s(host.name, host.facts) for crawl in self._overriding)])

    def share_rules(self, crawl_ids: Iterable[CrawlId]) -> bool:
        """Return True if a robots.txt has the same rules for all of these crawls: they have the same product token.

        Ignore crawls that do not obey robots.txt, and crawls that are neither loaded nor looked up.
        """
        specs = [crawl.spec for crawl in map(self.find, crawl_ids) if crawl is not None]
        tokens = {product_token(user_agent(spec, VERSION)).lower() for spec in specs if spec.politeness.obey_robots}
        return len(tokens) <= 1

    def max_depths(self, crawl_ids: Iterable[CrawlId]) -> dict[CrawlId, int | None]:
        """Return a mapping from crawl to its `max_depth`, without crawls that are neither loaded nor looked up."""
        crawls = map(self.find, set(crawl_ids))
        return {crawl.crawl_id: crawl.max_depth for crawl in crawls if crawl is not None}

    def priorities(self, crawl_ids: Iterable[CrawlId]) -> dict[CrawlId, CompiledPriority]:
        """Return a mapping from crawl to its compiled priority rules, without crawls whose spec has none."""
        crawls = [crawl for crawl in map(self.find, set(crawl_ids)) if crawl is not None and crawl.spec.priority]
        return {crawl.crawl_id: compiled_priority(crawl.spec.priority) for crawl in crawls}

    def max_requisites(self, crawl_ids: Iterable[CrawlId]) -> dict[CrawlId, int]:
        """Return a mapping from crawl to its `budget.max_requisites`, without crawls that have no such limit."""
        limits = {
            crawl_id: crawl.spec.budget.max_requisites for crawl_id in crawl_ids if (crawl := self.find(crawl_id))
        }
        return {crawl_id: limit for crawl_id, limit in limits.items() if limit is not None}


def spec_of(row: CrawlRow) -> CrawlSpec | None:
    """Return the decoded spec of a crawl's row. Log an error and return None if this version cannot read it."""
    try:
        return decode_spec(row.spec)
    except msgspec.MsgspecError as error:
        log.error("crawl_spec.rejected", crawl=row.crawl_id, revision=row.revision, error=str(error))
        return None


def _looked_up(row: CrawlRow) -> DispatchCrawl:
    """Make a crawl from its SQL row, so that an owner can apply reports of a crawl that is not loaded.

    The result is not for dispatch: `dispatching` is False, and `allowance` has no limits, because the crawl's spending
    is not read here. If this version cannot read the crawl's spec, the result has a default spec, and `refused` names
    the cause.
    """
    read = spec_of(row)
    spec = read or CrawlSpec(seeds=(Seed(url=""),))
    crawl = DispatchCrawl(
        row.crawl_id, row.name, row.revision, spec, row.state, BudgetReservation(None, None, {}), dispatching=False
    )
    refused = refused_pattern(spec.scope, spec.extract, spec.recrawl, spec.priority, spec.overrides)
    crawl.refused = refused if read is not None else "this version cannot read its spec"
    return crawl


def adaptive_schedule(
    pages: RecrawlPages | None, crawl: DispatchCrawl, partition: Partition, now_ms: int
) -> AdaptiveSchedule | None:
    """Return the schedule that fetches pages of a partition sooner if they change often.

    `pages`: how often the crawl's pages in this partition change. None: the crawl has no such schedule; return None.
    """
    if pages is None:
        return None
    return AdaptiveSchedule(pages, crawl.allowance.page_share(partition).part, now_ms)
