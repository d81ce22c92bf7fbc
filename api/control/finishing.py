"""The finished check: two looks at the counters with everything published in between applied.

All counters zero (noting their version), then every subject's last sequence S, then every partition applied through S,
then no command of the crawl in progress, then the counters still zero at that version. Otherwise something moved:
again, later.

S is read once and waited for from pass to pass: what other crawls publish meanwhile does not defer the answer.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from api.frontier.crawls import ActiveCrawl
from api.frontier.owner import Owner
from shared.domain.crawl import Budget
from shared.domain.frontier import Position
from shared.domain.ids import CrawlId, Partition, Revision
from shared.domain.ledger import Counters
from shared.ports.broker import Broker, StreamState
from shared.ports.store import Store

MAX_ROUNDS: Final = 128
"""Rounds that wait at once. A crawl that comes to rest beyond them waits until one is over."""

_NOTHING: Final = Counters()

Active = tuple[CrawlId, Revision]
"""A crawl at a revision: with another revision come seeds that no earlier look has seen."""

Applied = Callable[[], Awaitable[Mapping[Partition, Position]]]
"""How far each partition is applied now; those that nobody owns yet may be missing."""


@dataclass(frozen=True, slots=True)
class Subjects:
    """The last sequence of a partition's two subjects, 0 where nothing stands on it."""

    outcome: int
    discovery: int

    def applied(self, position: Position) -> bool:
        """Return True if a position is past both."""
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


@dataclass(frozen=True, slots=True)
class _Round:
    """Crawls seen at rest, by the version of their counters, and what was published by then."""

    stream_created_ns: int
    last: Mapping[Partition, Subjects]
    crawls: Mapping[Active, int]

    def stands(self, state: StreamState) -> bool:
        """Return True if the stream still holds what the round waits for: it is neither another one nor shorter."""
        last = max((max(subjects.outcome, subjects.discovery) for subjects in self.last.values()), default=0)
        return self.stream_created_ns == state.created_ns and last <= state.last_sequence

    def applied(self, positions: Mapping[Partition, Position]) -> bool:
        """Return True if every partition is applied through what was published, in the same stream."""
        return all(
            (position := positions.get(partition)) is not None
            and position.stream_created_ns == self.stream_created_ns
            and subjects.applied(position)
            for partition, subjects in self.last.items()
        )

    def still(self, resting: Mapping[Active, int]) -> "_Round":
        """Return the round with those of its crawls that have been at rest ever since."""
        crawls = {active: version for active, version in self.crawls.items() if resting.get(active) == version}
        return _Round(self.stream_created_ns, self.last, crawls)


class FinishedCheck:
    """Finds the crawls that are finished, and provably so. Kept from pass to pass."""

    def __init__(self, partitions: Iterable[Partition], store: Store, broker: Broker) -> None:
        self._partitions = tuple(partitions)
        self._store = store
        self._broker = broker
        self._rounds: list[_Round] = []

    async def once(
        self, ended: Mapping[Active, Callable[[Counters], str | None]], applied: Applied
    ) -> Mapping[CrawlId, Finished]:
        """Return those of the crawls that are finished. `ended` returns the budget by which one has ended, if any."""
        over = await self._over(applied) if self._rounds else []
        found = await self._resting(ended, {active for each in over for active in each.crawls})
        resting = {active: finished.counted for active, finished in found.items()}
        proven = {active for each in over for active in each.still(resting).crawls}
        rounds = [each.still(resting) for each in self._rounds if each not in over]
        self._rounds = [each for each in rounds if each.crawls]
        waiting = {active for each in self._rounds for active in each.crawls}
        new = {active: version for active, version in resting.items() if active not in proven | waiting}
        if new and len(self._rounds) < MAX_ROUNDS:
            begun = await self._begun(new)
            if begun.applied(await applied()):
                again = await self._resting({active: ended[active] for active in new}, new)
                found.update(again)
                proven |= begun.still({active: finished.counted for active, finished in again.items()}).crawls.keys()
            else:
                self._rounds.append(begun)
        return {active[0]: found[active] for active in proven}

    async def _over(self, applied: Applied) -> list[_Round]:
        """Return the rounds that need wait no longer. Forget those whose stream is another or shorter."""
        state = await self._broker.reports_state()
        self._rounds = [each for each in self._rounds if each.stands(state)]
        positions = await applied()
        return [each for each in self._rounds if each.applied(positions)]

    async def _begun(self, resting: Mapping[Active, int]) -> _Round:
        created_ns = (await self._broker.reports_state()).created_ns
        last = {
            partition: Subjects(
                await self._broker.last_report(partition, "outcome"),
                await self._broker.last_report(partition, "discovery"),
            )
            for partition in self._partitions
        }
        return _Round(created_ns, last, resting)

    async def _resting(
        self, ended: Mapping[Active, Callable[[Counters], str | None]], proving: Collection[Active]
    ) -> dict[Active, Finished]:
        """Return the crawls of which nothing is open, with the reason and the version of what says so.

        Of those in `proving` all is applied that was published, so a command that was published before is a row by now,
        or has changed the counters: no command of theirs may be in progress.
        """
        commands = await self._store.crawls_with_commands([active[0] for active in proving]) if proving else ()
        counted = await self._store.counters_in([active[0] for active in ended], self._partitions) if ended else {}
        found = {}
        for active, ended_by_budget in ended.items():
            counters = counted.get(active[0], _NOTHING)
            if counters.leased or active[0] in commands:
                continue
            reason = "complete" if counters.queued == 0 else ended_by_budget(counters)
            if reason is not None:
                found[active] = Finished(reason, counters.version)
        return found


async def finished(check: FinishedCheck, crawl: ActiveCrawl, owners: Sequence[Owner]) -> str | None:
    """Return why the crawl is finished, or None. `owners` are those of every partition."""

    async def applied() -> Mapping[Partition, Position]:
        return {owner.partition: owner.ownership.position for owner in owners if owner.ownership is not None}

    found = await check.once({(crawl.crawl_id, crawl.revision): lambda _: ended_by(crawl)}, applied)
    return found[crawl.crawl_id].reason if found else None
