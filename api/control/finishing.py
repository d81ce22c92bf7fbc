"""The finished check: two looks at the counters with everything published in between applied.

All counters zero (noting their version), then every subject's last sequence S, then every partition applied through S,
then no command of the crawl in progress, then the counters still zero at that version. Otherwise something moved:
again, later.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from api.frontier.crawls import ActiveCrawl
from api.frontier.owner import Owner
from shared.domain.crawl import Budget
from shared.domain.frontier import Position
from shared.domain.ids import CrawlId, Partition
from shared.domain.ledger import Counters
from shared.ports.broker import Broker
from shared.ports.store import Store

Applied = Callable[[], Awaitable[Mapping[Partition, Position]]]
"""How far each partition is applied now; those that nobody owns yet may be missing."""


@dataclass(frozen=True, slots=True)
class Subjects:
    """The last sequence of a partition's two subjects, 0 where nothing stands on it."""

    outcome: int
    discovery: int

    def applied(self, position: Position) -> bool:
        """Whether a position is past both."""
        return position.outcome_seq >= self.outcome and position.discovery_seq >= self.discovery


@dataclass(frozen=True, slots=True)
class Finished:
    """A crawl is finished: why ("complete" or the budget's name), and the version of the counters that say so."""

    reason: str
    counted: int


def ended_by(crawl: ActiveCrawl) -> str | None:
    """The budget that ended the crawl, if one did."""
    return crawl.allowance.exhausted() or (None if crawl.dispatching else "max_seconds")


def spent_of(budget: Budget, counters: Counters) -> str | None:
    """The budget that is spent, by what is stored."""
    if budget.max_pages is not None and counters.pages >= budget.max_pages:
        return "max_pages"
    if budget.max_bytes is not None and counters.bytes >= budget.max_bytes:
        return "max_bytes"
    return None


async def finished(crawl: ActiveCrawl, owners: Sequence[Owner], store: Store, broker: Broker) -> str | None:
    """Why the crawl is finished, by one who owns every partition; None when it is not, or not provably."""

    async def applied() -> Mapping[Partition, Position]:
        return {owner.partition: owner.ownership.position for owner in owners if owner.ownership is not None}

    found = await all_finished(
        {crawl.crawl_id: lambda _: ended_by(crawl)}, [owner.partition for owner in owners], applied, store, broker
    )
    return found[crawl.crawl_id].reason if found else None


async def all_finished(
    ended: Mapping[CrawlId, Callable[[Counters], str | None]],
    partitions: Iterable[Partition],
    applied: Applied,
    store: Store,
    broker: Broker,
) -> Mapping[CrawlId, Finished]:
    """Those of the crawls that are finished, and provably so. `ended` says by which budget one has ended."""

    def at_rest(crawl_id: CrawlId, counters: Counters) -> str | None:
        """Why nothing is out and nothing more would be sent out."""
        if counters.leased:
            return None
        return "complete" if counters.queued == 0 else ended[crawl_id](counters)

    before = {crawl_id: await store.counters(crawl_id) for crawl_id in ended}
    resting = [crawl_id for crawl_id, counters in before.items() if at_rest(crawl_id, counters) is not None]
    if not resting or not await _all_applied(partitions, applied, broker):
        return {}
    # A command that was published before is a row by now, or is applied and has changed the counters.
    busy = await store.crawls_with_commands(resting)
    found = {}
    for crawl_id in resting:
        if crawl_id in busy:
            continue
        after = await store.counters(crawl_id)
        reason = at_rest(crawl_id, after)
        if reason is not None and after.version == before[crawl_id].version:
            found[crawl_id] = Finished(reason, after.version)
    return found


async def _all_applied(partitions: Iterable[Partition], applied: Applied, broker: Broker) -> bool:
    """Whether all that was published up to now is applied: by positions that are of the stream as it is."""
    created_ns = (await broker.reports_state()).created_ns
    last = {
        partition: Subjects(
            await broker.last_report(partition, "outcome"), await broker.last_report(partition, "discovery")
        )
        for partition in partitions
    }
    positions = await applied()
    return all(
        (position := positions.get(partition)) is not None
        and position.stream_created_ns == created_ns
        and subjects.applied(position)
        for partition, subjects in last.items()
    )
