"""The finished check reads once what was published, and waits for that, whatever other crawls publish meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest

from api.crawls.finished_check import MAX_ROUNDS, Finished, FinishedCheck, refreshed
from api.frontier.capacity import BudgetReservation, spent_in
from api.frontier.dispatch_crawls import DispatchCrawl
from shared.domain.crawl.spec import CrawlSpec, Seed
from shared.domain.frontier.states import CrawlState, Position
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId, Partition, Revision
from shared.ports.broker import Broker, StreamState
from shared.ports.store import Store

P = Partition(0)
DONE, OTHER = CrawlId(1), CrawlId(2)


@dataclass
class Busy:
    """One partition behind a steady backlog: each pass 10 reports come and 10 are applied, `behind` of them late."""

    behind: int = 45
    last: int = 45
    created_ns: int = 1
    counters: dict[CrawlId, Counters] = field(default_factory=dict)
    commands: set[CrawlId] = field(default_factory=set)
    asked: int = 0

    async def positions(self) -> Mapping[Partition, Position]:
        applied = max(0, self.last - self.behind)
        return {P: Position(self.created_ns, applied, applied, applied, applied)}

    async def reports_state(self) -> StreamState:
        return StreamState(self.created_ns, self.last)

    async def last_report(self, partition: Partition, kind: str) -> int:
        self.asked += 1
        return self.last

    async def counted(self, crawl_id: CrawlId) -> Counters:
        return self.counters.get(crawl_id, Counters(version=1))

    def check(self) -> FinishedCheck:
        return FinishedCheck([P], cast(Store, _Tables(self)), cast(Broker, self))

    async def look(
        self, check: FinishedCheck, *crawls: CrawlId, revision: int = 1, verbs: int = 1
    ) -> Mapping[CrawlId, Finished]:
        """One pass over the crawls, by whose end more was published and more applied."""
        ended = {(crawl_id, Revision(revision), verbs): _no_budget for crawl_id in crawls or (DONE,)}
        found = await check.once(ended, self.positions)
        self.last += 10
        return found


@dataclass
class _Tables:
    busy: Busy

    async def counters_in(
        self, crawl_ids: Collection[CrawlId], partitions: Collection[Partition]
    ) -> Mapping[CrawlId, Counters]:
        return {crawl_id: await self.busy.counted(crawl_id) for crawl_id in crawl_ids}

    async def crawls_with_commands(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        return self.busy.commands & set(crawl_ids)


def _no_budget(counters: Counters) -> None:
    return None


def on(story: Callable[[Busy, FinishedCheck], Awaitable[None]]) -> None:
    async def main() -> None:
        busy = Busy()
        await story(busy, busy.check())

    asyncio.run(main())


def test_complete_crawl_is_found_in_first_pass_beside_backlog() -> None:
    async def story(busy: Busy, check: FinishedCheck) -> None:
        found = [bool(await busy.look(check)) for _ in range(6)]
        assert found == [False] * 5 + [True], "45 reports were ahead of it, and each pass applies 10"
        assert busy.asked == 2, "each subject is asked once for its last report"

    on(story)


def test_a_crawl_without_a_backlog_is_found_in_one_pass() -> None:
    async def story(busy: Busy, check: FinishedCheck) -> None:
        busy.behind = 0
        assert await busy.look(check) == {DONE: Finished("complete", 1)}

    on(story)


@pytest.mark.parametrize("behind", [0, 45])
def test_a_crawl_with_a_command_in_progress_is_not_finished(behind: int) -> None:
    async def story(busy: Busy, check: FinishedCheck) -> None:
        busy.behind = behind
        busy.commands.add(DONE)
        for _ in range(8):
            assert await busy.look(check) == {}
        busy.commands.clear()
        found: set[CrawlId] = set()
        for _ in range(6):
            found |= set(await busy.look(check))
        assert found == {DONE}

    on(story)


def test_crawls_finishing_in_turn_wait_for_their_own_reports() -> None:
    async def story(busy: Busy, check: FinishedCheck) -> None:
        busy.counters[OTHER] = Counters(queued=1, version=1)
        found = [set(await busy.look(check, DONE, OTHER)) for _ in range(2)]
        busy.counters[OTHER] = Counters(version=2)
        found += [set(await busy.look(check, DONE, OTHER)) for _ in range(4)]
        assert found == [set()] * 5 + [{DONE}]
        assert [set(await busy.look(check, OTHER)) for _ in range(2)] == [set(), {OTHER}]

    on(story)


@pytest.mark.parametrize("change", ["moved", "leased", "revision", "verb", "paused"])
def test_a_crawl_that_changes_meanwhile_waits_for_what_is_published_by_then(change: str) -> None:
    async def story(busy: Busy, check: FinishedCheck) -> None:
        for _ in range(4):
            assert await busy.look(check) == {}
        if change == "leased":
            busy.counters[DONE] = Counters(leased=1, version=1)
            assert await busy.look(check) == {}
        elif change == "paused":
            assert await busy.look(check, OTHER) == {}
        busy.counters[DONE] = Counters(version=2 if change == "moved" else 1)
        revision = 2 if change == "revision" else 1
        verbs = 2 if change == "verb" else 1
        found = [bool(await busy.look(check, revision=revision, verbs=verbs)) for _ in range(6)]
        assert found == [False] * 5 + [True]

    on(story)


@pytest.mark.parametrize("shorter", [False, True])
def test_a_round_ends_when_its_stream_is_another_or_shorter(shorter: bool) -> None:
    """What it waits for does not come any more: sequences are given anew."""

    async def story(busy: Busy, check: FinishedCheck) -> None:
        busy.last = 1000
        assert await busy.look(check) == {}
        busy.last, busy.behind = 10, 0
        busy.created_ns += not shorter
        assert set(await busy.look(check)) == {DONE}

    on(story)


def test_the_rounds_that_wait_are_bounded_and_none_is_left_out_for_good() -> None:
    async def story(busy: Busy, check: FinishedCheck) -> None:
        crawls = [CrawlId(number) for number in range(1, MAX_ROUNDS + 10)]
        busy.behind = busy.last = 100_000
        for n in range(1, len(crawls) + 1):
            assert await busy.look(check, *crawls[:n]) == {}
        assert busy.asked == 2 * MAX_ROUNDS
        busy.behind = 0
        found: set[CrawlId] = set()
        for _ in range(2):
            found |= set(await busy.look(check, *(each for each in crawls if each not in found)))
        assert found == set(crawls)

    on(story)


RETRY_QUEUED = Counters(version=7, queued=3, revisits=2, retries=1, pages=5)


@dataclass
class _Refreshing:
    """The store of a crawl without leased URLs: it has a retry of a stored page if `retry`, a due page if `due`."""

    counters: Counters
    retry: bool
    due: bool = False
    asked: list[str] = field(default_factory=list)

    async def counters_in(
        self, crawl_ids: Collection[CrawlId], partitions: Collection[Partition]
    ) -> Mapping[CrawlId, Counters]:
        return dict.fromkeys(crawl_ids, self.counters)

    async def due_before(self, crawl_id: CrawlId, before_ms: int) -> bool:
        self.asked.append("due_before")
        return self.due

    async def waits_for_retry(self, crawl_id: CrawlId) -> bool:
        self.asked.append("waits_for_retry")
        return self.retry


@pytest.mark.parametrize(
    ("max_pages", "retry", "over"), [(5, True, False), (5, False, True), (6, True, False), (6, False, False)]
)
def test_refresh_waits_for_the_retry_of_a_stored_page(max_pages: int, retry: bool, over: bool) -> None:
    """A spent budget ends the retries of new pages only: the queued URL may be either."""
    assert _refreshed(_Refreshing(RETRY_QUEUED, retry), max_pages) == ({DONE: 7} if over else {})


def test_refresh_with_a_due_page_does_not_look_for_retries() -> None:
    """The look for retries reads all waiting URLs of the crawl."""
    store = _Refreshing(RETRY_QUEUED, retry=True, due=True)
    assert _refreshed(store, max_pages=5) == {}
    assert store.asked == ["due_before"]


def _refreshed(store: _Refreshing, max_pages: int) -> Mapping[CrawlId, int]:
    spec = CrawlSpec(seeds=(Seed(url="https://example.org/"),))
    allowance = BudgetReservation(max_pages, None, {P: spent_in(store.counters)})
    crawl = DispatchCrawl(DONE, "news", Revision(1), spec, CrawlState.RUNNING, allowance, refresh_ms=1)
    return asyncio.run(refreshed(cast(Store, store), [P], [crawl]))
