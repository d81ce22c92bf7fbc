"""The finished check: two looks at the counters with everything published in between applied.

All counters zero (noting their version), then every subject's last sequence S, then every partition applied through S,
then the counters still zero at that version. Otherwise something moved: again, later.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from api.frontier.crawls import ActiveCrawl
from api.frontier.owner import Owner
from shared.domain.frontier import Position
from shared.domain.ledger import Counters
from shared.ports.broker import Broker
from shared.ports.store import Store


@dataclass(frozen=True, slots=True)
class Subjects:
    """The last sequence of a partition's two subjects, 0 where nothing stands on it."""

    outcome: int
    discovery: int

    def applied(self, position: Position) -> bool:
        """Whether a position is past both."""
        return position.outcome_seq >= self.outcome and position.discovery_seq >= self.discovery


def at_rest(crawl: ActiveCrawl, counters: Counters) -> bool:
    """Whether nothing is out and nothing more would be sent out."""
    return counters.leased == 0 and (counters.queued == 0 or ended_by(crawl) is not None)


def ended_by(crawl: ActiveCrawl) -> str | None:
    """The budget that ended the crawl, if one did."""
    return crawl.allowance.exhausted() or (None if crawl.dispatching else "max_seconds")


async def finished(crawl: ActiveCrawl, owners: Sequence[Owner], store: Store, broker: Broker) -> str | None:
    """Why the crawl is finished ("complete" or the budget's name); None when it is not, or not provably."""
    before = await store.counters(crawl.crawl_id)
    if not at_rest(crawl, before):
        return None
    for owner in owners:
        last = Subjects(
            await broker.last_report(owner.partition, "outcome"), await broker.last_report(owner.partition, "discovery")
        )
        if owner.ownership is None or not last.applied(owner.ownership.position):
            return None
    after = await store.counters(crawl.crawl_id)
    if after.version != before.version or not at_rest(crawl, after):
        return None
    return "complete" if after.queued == 0 else ended_by(crawl)
