"""The check for finished crawls: read the counters twice, and meanwhile wait until all published reports are applied.

The wait is needed because a report that is not applied yet may add URLs to the crawl. The check of a crawl has five
steps:

1. Require that no URL is leased. Also require that no URL is queued, or that the crawl ends in spite of queued URLs,
   for example because a budget is spent. Note the version of the counters. Require that no command of the crawl is in
   progress or waits to be published.
2. Note, for each partition, the sequences of its last published outcome and discovery. Commands count as outcomes.
3. Wait until every partition has applied its reports up to these sequences. This may take several passes. Reports that
   are published later are not awaited.
4. Require that no command of the crawl is in progress.
5. Require that the counters still have the noted version. Then the crawl is finished.

If a requirement fails, the crawl is not finished, and a later pass begins again with step 1.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from api.frontier.dispatch_crawls import DispatchCrawl
from api.frontier.owner import Owner
from shared.domain.crawl.spec import CrawlSpec
from shared.domain.crawl.state import REFRESHED
from shared.domain.frontier.states import Position
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId, Partition, Revision
from shared.ports.broker import Broker, StreamState
from shared.ports.store import Store

MAX_ROUNDS: Final = 128
"""Maximum checks in progress (`_Round`). Further crawls with nothing left to do wait until a check ends."""

_NOTHING: Final = Counters()

Active = tuple[CrawlId, Revision, int]
"""An active (running) crawl to check, at one spec revision and one `CrawlRow.operator_version`.

After a new revision, the check of the crawl starts again. The reason: the new revision may have added seeds. It also
starts again after a verb. The reason: a command may have been published with the verb, such as with `retry-failed`. The
new check waits for it, because commands count as outcomes."""

Applied = Callable[[], Awaitable[Mapping[Partition, Position]]]
"""Returns, by partition, the position up to which reports are applied. Partitions without an owner may be missing."""


class SubjectEnds(Struct, frozen=True):
    """The sequences of a partition's last outcome and last discovery in the stream of reports; 0 if there is none."""

    outcome: int
    discovery: int

    def applied(self, position: Position) -> bool:
        """Return True if the partition's position has reached both sequences."""
        return position.outcome_seq >= self.outcome and position.discovery_seq >= self.discovery


class Finished(Struct, frozen=True):
    """The proof that a crawl is finished: the finish reason, such as "complete", and the version of its counters."""

    reason: str
    counted: int


def ended_by(crawl: DispatchCrawl, counters: Counters, *, out_of_time: bool) -> str | None:
    """Return the name of the budget that ends the crawl; None if no budget does.

    - `crawl`: the crawl with its budgets and what was spent of them.
    - `counters`: the crawl's counters.
    - `out_of_time`: True if the crawl has used up its `max_seconds`.

    Only `max_seconds` can end a crawl that fetches stored pages again. `max_pages` does not end a crawl with queued
    requisites.
    """
    spent = None if crawl.spec.recrawl.used else crawl.allowance.exhausted()
    if spent == "max_pages" and counters.requisites:
        spent = None
    return spent or ("max_seconds" if out_of_time else None)


def spent_of(spec: CrawlSpec, counters: Counters) -> str | None:
    """Return the budget that ends the crawl by its counters in SQL: `max_pages`, `max_bytes` or None.

    Neither budget ends a crawl that fetches stored pages again. `max_pages` does not end a crawl with queued
    requisites.
    """
    budget = spec.budget
    if spec.recrawl.used:
        return None
    if budget.max_pages is not None and counters.pages >= budget.max_pages and not counters.requisites:
        return "max_pages"
    if budget.max_bytes is not None and counters.bytes >= budget.max_bytes:
        return "max_bytes"
    return None


class _Round(Struct, frozen=True):
    """A check in progress: crawls that had nothing left to do, and the reports that must still be applied.

    - `crawls`: each crawl with the version of its counters when the round began.
    - `last`: by partition, the sequences of the last outcome and the last discovery that were published when the round
      began. The round waits until these are applied.
    - `stream_created_ns`: when the stream of these reports was created.
    """

    stream_created_ns: int
    last: Mapping[Partition, SubjectEnds]
    crawls: Mapping[Active, int]

    def stands(self, state: StreamState) -> bool:
        """Return True if the round is still valid: its stream still exists and has all messages that it waits for."""
        last = max((max(subjects.outcome, subjects.discovery) for subjects in self.last.values()), default=0)
        return self.stream_created_ns == state.created_ns and last <= state.last_sequence

    def applied(self, positions: Mapping[Partition, Position]) -> bool:
        """Return True if every partition has applied the reports that the round waits for.

        `positions`: the applied position of each partition. Return False if a partition is missing in it.
        """
        return all(
            (position := positions.get(partition)) is not None
            and position.stream_created_ns == self.stream_created_ns
            and subjects.applied(position)
            for partition, subjects in self.last.items()
        )

    def still(self, resting: Mapping[Active, int]) -> "_Round":
        """Return the round with only the crawls whose counters have not changed since it began.

        `resting`: the crawls that have nothing left to do now, with the present version of their counters.
        """
        crawls = {active: version for active, version in self.crawls.items() if resting.get(active) == version}
        return _Round(self.stream_created_ns, self.last, crawls)


class FinishedCheck:
    """Finds the crawls that are provably finished.

    A crawl seems finished if no URL is leased, and no further URL will be leased. The proof may take several calls of
    `once`, because all published reports must be applied first.

    To each call of `once`, the caller passes these running crawls:

    - crawls whose counters or state have changed since the last call,
    - crawls in `resting`.

    `resting`: the crawls that seemed finished at the last call of `once`. The proof for these crawls may not be
    complete yet.
    """

    def __init__(self, partitions: Iterable[Partition], store: Store, broker: Broker) -> None:
        self._partitions = tuple(partitions)
        self._store = store
        self._broker = broker
        self._rounds: list[_Round] = []
        self.resting: set[Active] = set()

    async def once(
        self, ended: Mapping[Active, Callable[[Counters], str | None]], applied: Applied
    ) -> Mapping[CrawlId, Finished]:
        """Return the crawls that are proven to be finished, each with the reason and the version of its counters.

        A crawl that is missing in the result may be proven by a later call.

        - `ended`: by crawl to check, a function that answers: "has this crawl ended, although URLs are still queued?"
          The argument is the crawl's counters. If the crawl has ended, the function returns the finish reason, such as
          "refreshed" or "max_pages". If the crawl goes on, the function returns None. A crawl without queued URLs ends
          as "complete" without a call of the function.
        - `applied` returns the positions up to which the reports of each partition are applied.
        """
        self.resting = set()
        over = await self._over(applied) if self._rounds else []
        found = await self._resting(ended, {active for each in over for active in each.crawls})
        resting = {active: finished.counted for active, finished in found.items()}
        proven = {active for each in over for active in each.still(resting).crawls}
        rounds = [each.still(resting) for each in self._rounds if each not in over]
        self._rounds = [each for each in rounds if each.crawls]
        waiting = {active for each in self._rounds for active in each.crawls}
        new = {active: version for active, version in resting.items() if active not in proven | waiting}
        if new:
            # Read before the last sequences: a command that a schedule has not published yet has none.
            commands = await self._store.crawls_with_commands([active[0] for active in new])
            new = {active: version for active, version in new.items() if active[0] not in commands}
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
        """Return the checks in progress (`_Round`) whose awaited reports are all applied.

        Forget each check whose awaited reports can no longer be in the stream of reports, because:

        - the stream was replaced by a new one, or
        - the last message of the stream has a lower sequence than an awaited report.
        """
        state = await self._broker.reports_state()
        self._rounds = [each for each in self._rounds if each.stands(state)]
        positions = await applied()
        return [each for each in self._rounds if each.applied(positions)]

    async def _begun(self, resting: Mapping[Active, int]) -> _Round:
        created_ns = (await self._broker.reports_state()).created_ns
        last = {
            partition: SubjectEnds(
                await self._broker.last_report(partition, "outcome"),
                await self._broker.last_report(partition, "discovery"),
            )
            for partition in self._partitions
        }
        return _Round(created_ns, last, resting)

    async def _resting(
        self, ended: Mapping[Active, Callable[[Counters], str | None]], proving: Collection[Active]
    ) -> dict[Active, Finished]:
        """Return the crawls that seem finished, each with the finish reason and the version of its counters.

        A crawl seems finished if no URL is leased, and one of these is true:

        - No URL is queued. The finish reason is "complete".
        - URLs are queued, but the crawl's function in `ended` returns a finish reason, such as "max_pages".

        Every crawl that seems finished is also added to `self.resting`.

        - `ended`: by crawl to check, the function that decides from the crawl's counters if the crawl has ended. The
          function returns None if the crawl goes on.
        - `proving`: the crawls for which this call is the last step of the proof. If a command of such a crawl is in
          progress, the crawl is not in the result. The crawl is only added to `self.resting`.
        """
        # Other crawls are returned in spite of a command: the last step of their proof is a later call.
        commands = await self._store.crawls_with_commands([active[0] for active in proving]) if proving else ()
        counted = await self._store.counters_in([active[0] for active in ended], self._partitions) if ended else {}
        found = {}
        for active, ended_by_budget in ended.items():
            counters = counted.get(active[0], _NOTHING)
            reason = "complete" if counters.queued == 0 else ended_by_budget(counters)
            if counters.leased or reason is None:
                continue
            self.resting.add(active)
            if active[0] not in commands:
                found[active] = Finished(reason, counters.version)
        return found


async def refreshed(
    store: Store, partitions: Collection[Partition], crawls: Iterable[DispatchCrawl]
) -> Mapping[CrawlId, int]:
    """Return the crawls whose refresh is complete, with the version of their counters.

    A refresh is complete if all of this is true:

    - No URL is leased.
    - No new URL is queued, or a budget is spent.
    - No page is left that was due when the refresh began, or that waits for a retry.

    The result is valid as long as the counters have the returned version.
    """
    # The counters are read before the pages, so a change in between gives them another version.
    begun = {crawl.crawl_id: crawl for crawl in crawls if crawl.refresh_ms}
    counted = await store.counters_in(begun.keys(), partitions) if begun else {}
    over = {}
    for crawl_id, counters in counted.items():
        new = counters.queued - counters.revisits
        if counters.leased or (new and begun[crawl_id].allowance.exhausted() is None):
            continue
        if await store.due_before(crawl_id, begun[crawl_id].refresh_ms):
            continue
        if not (counters.retries and await store.waits_for_retry(crawl_id)):
            over[crawl_id] = counters.version
    return over


async def finished(
    check: FinishedCheck,
    crawl: DispatchCrawl,
    owners: Sequence[Owner],
    *,
    out_of_time: bool = False,
    refreshed: int | None = None,
) -> str | None:
    """Return why one crawl is finished: "complete", "refreshed" or a budget's name.

    Return None if it is not proven yet.

    - `check`: pass the same object to each call, because a check may take several calls.
    - `owners`: the owners of all partitions.
    - `out_of_time`: True if the crawl has used up its `max_seconds`.
    - `refreshed`: the version of the counters at which the crawl's refresh was complete. None if it is not complete, or
      if the crawl has no refresh.
    """

    def ended(counters: Counters) -> str | None:
        return REFRESHED if counters.version == refreshed else ended_by(crawl, counters, out_of_time=out_of_time)

    async def applied() -> Mapping[Partition, Position]:
        return {owner.partition: owner.ownership.position for owner in owners if owner.ownership is not None}

    found = await check.once({(crawl.crawl_id, crawl.revision, 1): ended}, applied)  # No verbs are used on it.
    return found[crawl.crawl_id].reason if found else None
