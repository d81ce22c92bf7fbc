"""Outcomes conserve URLs and counts: whatever is reported, by whom, how often and in which order."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.frontier.capacity import BudgetReservation, Spent
from api.frontier.dispatch_crawls import DispatchCrawl, DispatchCrawls
from api.frontier.host_queues import HostQueues
from api.frontier.hosts import HostFacts
from api.frontier.leases import SPLIT_BY, Leases, MayGrant
from api.frontier.outcome_batch import OutcomeBatch
from api.frontier.ownership import FrontierSettings
from api.frontier.pool_shares import PoolShares
from shared.domain.crawl.spec import Retry
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.frontier.politeness import HostHealth
from shared.domain.frontier.states import COUNTED_AS_PAGE, LOSSES_COUNTED, CrawlState, UrlEnd, UrlState
from shared.domain.frontier.store_model import LeasedUrl, LeaseRow, QueueRow
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Partition, Revision, numbered
from shared.domain.web.fetch import FailureKind
from shared.wire.messages import HostNote, LeftOut, Outcome, Record, UrlOutcome

P = Partition(2)
CRAWL = CrawlId(7)
HOST = HostId(numbered(1, P))
NOW, NOW_MS = 1000.0, 1_700_000_000_000
WAITED = 3
LIMITS = FrontierSettings()


def lease_id(n: int) -> LeaseId:
    return LeaseId(numbered(n, P))


def fingerprint(lease: int, i: int) -> Fingerprint:
    return Fingerprint(bytes([lease, i]) * 8)


@dataclass
class Desk:
    """An owner's memory of one host with leases out and three more URLs queued, and what SQL would hold."""

    sizes: Sequence[int] = (4, 3)
    max_depth: int | None = None
    slots: int = 2
    leases: Leases = field(default_factory=lambda: Leases(grant_s=30.0))
    states: dict[Fingerprint, UrlState] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        spec = parse_spec({"seeds": ["http://a.test/"], "politeness": {"delay_s": 0}})
        out = sum(self.sizes)
        self.crawls = DispatchCrawls()
        allowance = BudgetReservation(1000, None, {P: Spent(0, 0, out)})
        self.crawl = DispatchCrawl(CRAWL, "a", Revision(1), spec, CrawlState.RUNNING, allowance)
        if self.max_depth is not None:
            scope = parse_spec({"seeds": ["http://a.test/"], "scope": {"max_depth": self.max_depth}})
            self.crawl.spec = scope
        self.crawls.put(self.crawl)
        self.front = HostQueues(PoolShares(), max_hosts=10, rested_from=0.0)
        row = QueueRow(CRAWL, HOST, "a.test", WAITED, 0, 0, 0, out, 0, 0, 0, 0, 0, 0, 0, 0, 1)
        facts = HostFacts(HostHealth(), visited=True)
        self.front.offer(row, facts=facts, delay_s=0.0, slots=self.slots, now=NOW, now_ms=NOW_MS)
        host = self.front.host(HOST)
        assert host is not None
        self.host, self.queue = host, host.queues[CRAWL]
        for i in range(WAITED):
            self.states[fingerprint(255, i)] = UrlState.QUEUED
        for n, size in enumerate(self.sizes, start=1):
            order = tuple(fingerprint(n, i) for i in range(size))
            urls = {print_: LeasedUrl(f"http://a.test/{n}/{i}", 3, 3, 1, 0, 0, 0, i) for i, print_ in enumerate(order)}
            self.states |= dict.fromkeys(order, UrlState.LEASED)
            held = self.leases.add(
                LeaseRow(lease_id(n), CRAWL, Revision(1), HOST, "a.test", n - 1, "default", 0, order, urls), NOW
            )
            self.leases.granted(held, 1, "w", NOW)
            assert self.front.acquire(host, self.queue) == n - 1
        self.counters.update(queued=WAITED, leased=out)

    def draft(self, now: float = NOW) -> OutcomeBatch:
        return OutcomeBatch(
            self.leases, self.front, self.crawls, LIMITS, now, NOW_MS + int((now - NOW) * 1000), lambda: 0.5
        )

    def commit(self, draft: OutcomeBatch) -> None:
        """The transaction: SQL takes the changes, then memory shows them."""
        changes = draft.changes
        for change in changes.urls:
            assert self.states[change.fingerprint] is UrlState.LEASED, "a URL was settled twice"
            self.states[change.fingerprint] = change.state
        for crawl_id, deltas in changes.counters.items():
            assert crawl_id == CRAWL
            self.counters.update(deltas)
        for _, _, state, _ in changes.give_up:
            for print_, before in self.states.items():
                if before in (UrlState.QUEUED, UrlState.WAITING):
                    self.states[print_] = state
                    self.counters.update({"queued": -1, state.name.lower(): 1})
        draft.commit()

    def audit(self) -> None:
        """Every count, in SQL and in memory, is that of the URLs."""
        count = Counter(self.states.values())
        assert len(self.states) == WAITED + sum(self.sizes)
        assert self.counters["queued"] == count[UrlState.QUEUED] + count[UrlState.WAITING]
        for state in (UrlState.LEASED, UrlState.DONE, UrlState.FAILED, UrlState.EXCLUDED):
            assert self.counters[state.name.lower()] == count[state], state
        assert (self.queue.queued, self.queue.waiting, self.queue.leased) == (
            count[UrlState.QUEUED],
            count[UrlState.WAITING],
            count[UrlState.LEASED],
        )
        held = {print_ for lease in self.leases for print_ in lease.row.urls}
        assert held == {print_ for print_, state in self.states.items() if state is UrlState.LEASED}
        assert set(self.host.taken) == {lease.row.slot for lease in self.leases}
        assert self.queue.pages == self.counters["pages"]
        allowance = self.crawl.allowance
        assert allowance.remaining(10**6) == 1000 - self.counters["pages"] - count[UrlState.LEASED]


def page(print_: bytes, size: int = 10, status: int = 200) -> UrlOutcome:
    return UrlOutcome(print_, UrlEnd.ANSWERED, NOW_MS, status, size=size, record=Record("s", 0, 9))


def outcome(lease: int, *results: UrlOutcome, final: bool = True, grant: int = 1, **more: Any) -> Outcome:
    return Outcome(lease_id(lease), CRAWL, grant, HOST, list(results), final=final, **more)


prints = st.builds(fingerprint, st.sampled_from([1, 2, 3, 255]), st.integers(0, 4))
results = st.one_of(
    st.builds(page, prints, st.integers(0, 99), st.sampled_from([200, 204, 301, 304, 404, 429, 500, 503, 999])),
    st.builds(
        lambda print_, kind: UrlOutcome(print_, UrlEnd.FAILED, NOW_MS, reason=kind),
        prints,
        st.sampled_from([*FailureKind, "who knows"]),
    ),
    st.builds(lambda print_: UrlOutcome(print_, UrlEnd.DENIED, NOW_MS, reason="robots"), prints),
)
notes = st.none() | st.builds(
    HostNote,
    st.sampled_from([-1, 0, 500]),
    st.integers(0, 900),
    failure=st.sampled_from(["", "", "dns", "http_503"]),
    retry_after_ms=st.sampled_from([-1, 90_000]),
)
messages = st.builds(
    lambda lease, found, final, grant, back, note, quiet, crawl: Outcome(
        lease_id(lease), crawl, grant, HOST, results=found, not_attempted=back, note=note, final=final, quiet_ms=quiet
    ),
    st.sampled_from([1, 2, 3]),
    st.lists(results, max_size=6),
    st.booleans(),
    st.sampled_from([1, 1, 1, 2]),
    st.lists(prints, max_size=3),
    notes,
    st.sampled_from([-1, 0, 700]),
    st.sampled_from([CRAWL, CRAWL, CRAWL, CrawlId(8)]),
)


@given(st.lists(st.lists(messages, min_size=1, max_size=4), max_size=6), st.sampled_from([None, 9]))
def test_urls_and_counts_are_conserved(batches: list[list[Outcome]], max_depth: int | None) -> None:
    desk = Desk(max_depth=max_depth)
    for batch in batches:
        draft = desk.draft()
        for message in batch:
            draft.outcome(message)
        desk.commit(draft)
        desk.audit()
    for held in list(desk.leases):
        draft = desk.draft(NOW + 60)
        draft.end(held)
        desk.commit(draft)
    desk.audit()
    assert UrlState.LEASED not in desk.states.values()


@given(st.lists(messages, min_size=1, max_size=5))
def test_a_draft_that_is_thrown_away_changed_nothing(batch: list[Outcome]) -> None:
    """A transaction that is refused and tried in halves must decide as if it had never been tried."""
    desk = Desk()
    for message in batch:
        desk.draft().outcome(message)
    desk.audit()
    whole, halves = Desk(), Desk()
    draft = whole.draft()
    for message in batch:
        draft.outcome(message)
        half = halves.draft()
        half.outcome(message)
        halves.commit(half)
    whole.commit(draft)
    whole.audit()
    halves.audit()


def test_the_first_outcome_of_a_url_wins_and_later_ones_are_stale() -> None:
    desk = Desk()
    draft = desk.draft()
    draft.outcome(outcome(1, page(fingerprint(1, 0)), final=False))
    draft.outcome(outcome(1, page(fingerprint(1, 0), status=500), final=True))
    draft.outcome(outcome(1, page(fingerprint(1, 1))))
    desk.commit(draft)
    desk.audit()
    assert desk.states[fingerprint(1, 0)] is UrlState.DONE
    assert desk.states[fingerprint(1, 1)] is UrlState.QUEUED, "the lease was over"
    assert desk.counters["stale"] == 2
    assert desk.counters["fetches"] == 1


def test_an_earlier_grants_last_word_counts_but_frees_no_slot() -> None:
    desk = Desk()
    held = desk.leases.get(lease_id(1))
    assert held is not None
    desk.leases.granted(held, 2, "v", NOW + 40)
    draft = desk.draft(NOW + 41)
    draft.outcome(outcome(1, page(fingerprint(1, 0)), grant=1))
    desk.commit(draft)
    desk.audit()
    assert desk.states[fingerprint(1, 0)] is UrlState.DONE
    assert desk.leases.get(lease_id(1)) is held


def test_what_was_not_attempted_goes_back_without_losing_an_attempt() -> None:
    desk = Desk()
    draft = desk.draft()
    draft.outcome(outcome(1, not_attempted=[fingerprint(1, 0)]))
    changes = {change.fingerprint: change for change in draft.changes.urls}
    assert len(changes) == 4
    assert {change.attempts for change in changes.values()} == {0}
    assert [changes[fingerprint(1, i)].rank for i in range(4)] == [0, 1, 2, 3], "each keeps its place"


def test_a_page_counts_once_in_the_budget_however_often_it_is_fetched() -> None:
    desk = Desk(sizes=(1, 1))
    held = desk.leases.get(lease_id(1))
    assert held is not None
    held.row.urls[fingerprint(1, 0)].flags = COUNTED_AS_PAGE
    draft = desk.draft()
    draft.outcome(outcome(1, page(fingerprint(1, 0), 50)))
    draft.outcome(outcome(2, page(fingerprint(2, 0), 60)))
    desk.commit(draft)
    desk.audit()
    assert (desk.counters["pages"], desk.counters["bytes"], desk.counters["fetches"]) == (1, 60, 2)


def test_a_page_found_nearer_while_it_was_out_is_queued_again() -> None:
    desk = Desk(sizes=(2,), max_depth=5)
    desk.leases.lower(lease_id(1), fingerprint(1, 0), 1)
    draft = desk.draft()
    draft.outcome(outcome(1, page(fingerprint(1, 0)), page(fingerprint(1, 1))))
    desk.commit(draft)
    desk.audit()
    assert desk.states[fingerprint(1, 0)] is UrlState.QUEUED
    assert desk.states[fingerprint(1, 1)] is UrlState.DONE
    (again,) = [change for change in draft.changes.urls if change.state is UrlState.QUEUED]
    assert (again.reason, again.attempts, again.flags) == ("depth", 0, COUNTED_AS_PAGE)


def test_dead_host_ends_queued_urls_and_leased_ones_on_return() -> None:
    desk = Desk(sizes=(2, 2))
    before = HostHealth(
        failures=2, unreachable=Retry().host_attempts - 1, last_failure_ms=NOW_MS - 2, blocked_until_ms=NOW_MS
    )
    desk.host.facts = replace(desk.host.facts, health=before)
    draft = desk.draft()
    lost = [UrlOutcome(fingerprint(1, i), UrlEnd.FAILED, NOW_MS, reason="connect") for i in range(2)]
    draft.outcome(outcome(1, *lost))
    desk.commit(draft)
    desk.audit()
    assert desk.counters["failed"] == WAITED + 2
    assert desk.queue.empty
    draft = desk.draft()
    lost_and_page = (UrlOutcome(fingerprint(2, 0), UrlEnd.FAILED, NOW_MS, reason="dns"), page(fingerprint(2, 1)))
    draft.outcome(outcome(2, *lost_and_page))
    desk.commit(draft)
    desk.audit()
    assert desk.states[fingerprint(2, 0)] is UrlState.FAILED
    assert desk.states[fingerprint(2, 1)] is UrlState.DONE
    assert not desk.host.facts.health.dead(NOW_MS, Retry(host_attempts=1), gave_pages=False), "it answered"


def test_a_shard_that_kills_its_workers_comes_again_in_smaller_ones() -> None:
    desk = Desk(sizes=(40,))
    held = desk.leases.get(lease_id(1))
    assert held is not None
    draft = desk.draft(NOW + 60)
    draft.split_or_give_up(held, "too large")
    desk.commit(draft)
    desk.audit()
    assert desk.queue.cap == 40 // SPLIT_BY
    assert desk.queue.queued == 40 + WAITED


def test_a_url_that_kills_its_workers_is_buried_with_the_evidence() -> None:
    desk = Desk(sizes=(1, 2))
    held = desk.leases.get(lease_id(1))
    assert held is not None
    draft = desk.draft(NOW + 60)
    draft.split_or_give_up(held, "5 grants of this URL ended without an outcome")
    desk.commit(draft)
    desk.audit()
    assert desk.states[fingerprint(1, 0)] is UrlState.FAILED
    (letter,) = draft.changes.dead_letters
    assert (letter.crawl_id, letter.url) == (CRAWL, "http://a.test/1/0")
    assert draft.changes.tallies[CRAWL, "failed", "poison"] == 1


def test_host_waits_from_last_response_or_end_of_expired_grant() -> None:
    desk = Desk()
    draft = desk.draft(NOW + 5)
    draft.outcome(outcome(1, page(fingerprint(1, 0)), quiet_ms=1500))
    desk.commit(draft)
    assert desk.host.rested_from == NOW + 3.5
    held = desk.leases.get(lease_id(2))
    assert held is not None
    draft = desk.draft(NOW + 45)
    draft.end(held)
    desk.commit(draft)
    assert desk.host.rested_from == NOW + 30.0
    desk.audit()


def test_host_waits_from_when_its_outcome_arrived_however_late_applied() -> None:
    desk = Desk()
    draft = desk.draft(NOW + 5)
    draft.outcome(outcome(1, page(fingerprint(1, 0)), quiet_ms=1500), NOW + 4)
    desk.commit(draft)
    assert desk.host.rested_from == NOW + 2.5


def test_outcomes_of_a_crawl_that_is_gone_give_their_urls_back() -> None:
    desk = Desk()
    desk.crawls.remove(CRAWL)
    draft = desk.draft()
    draft.outcome(outcome(1, page(fingerprint(1, 0))))
    assert {change.state for change in draft.changes.urls} == {UrlState.QUEUED}
    assert "stale" not in draft.changes.counters[CRAWL]


def hand_back(desk: Desk, at: float, lease: int = 1, quiet_ms: int = 200, **more: Any) -> None:
    """A visit of the lease's newest grant fails by an error of its worker."""
    draft = desk.draft(at)
    draft.outcome(outcome(lease, final=False, failed=True, quiet_ms=quiet_ms, **more))
    desk.commit(draft)
    desk.audit()


def test_a_failed_visit_hands_its_grant_back_at_once() -> None:
    desk = Desk()
    hand_back(desk, NOW + 1)
    held = desk.leases.get(lease_id(1))
    assert held is not None
    assert (held.row.expired, held.live(NOW + 1)) == (1, False)
    assert desk.host.rested_from == NOW + 0.8
    assert desk.leases.begin(lease_id(1), 2, "v", NOW + 1) == MayGrant(held, expired=True)
    assert held.grant is not None
    assert held.grant.end_recorded
    hand_back(desk, NOW + 2)
    assert held.row.expired == 1, "one grant counts once"


def test_a_failed_visit_of_an_earlier_grant_changes_nothing() -> None:
    desk = Desk()
    held = desk.leases.get(lease_id(1))
    assert held is not None
    desk.leases.granted(held, 2, "v", NOW + 40)
    hand_back(desk, NOW + 41, grant=1)
    assert held.live(NOW + 41)
    assert held.row.expired == 0


def test_visits_that_fail_again_and_again_split_the_shard_and_bury_the_url() -> None:
    desk = Desk(sizes=(16, 1))
    for lease, max_count in ((1, LIMITS.split_after_expiries), (2, LIMITS.dead_letter_after_expiries)):
        for number in range(1, max_count + 1):
            held = desk.leases.get(lease_id(lease))
            assert held is not None, f"over after {number - 1}"
            hand_back(desk, NOW + 10 * number, lease, grant=number)
            desk.leases.granted(held, number + 1, "w", NOW + 10 * number)
        assert desk.leases.get(lease_id(lease)) is None
    assert desk.queue.cap == 16 // SPLIT_BY
    assert desk.states[fingerprint(2, 0)] is UrlState.FAILED
    assert {desk.states[fingerprint(1, i)] for i in range(16)} == {UrlState.QUEUED}


@pytest.mark.parametrize(("attempts", "state"), [(3, UrlState.WAITING), (1, UrlState.DONE)])
def test_cut_page_is_retried_and_finally_stored_as_cut(attempts: int, state: UrlState) -> None:
    """An index page that was cut at its first fetch cost 74 of 101 pages, with exit code 0."""
    desk = Desk(sizes=(1,))
    retry = msgspec.structs.replace(desk.crawl.spec.retry, attempts=attempts)
    desk.crawl.spec = msgspec.structs.replace(desk.crawl.spec, retry=retry)
    draft = desk.draft()
    draft.outcome(outcome(1, msgspec.structs.replace(page(fingerprint(1, 0)), truncated="disconnect")))
    desk.commit(draft)
    desk.audit()
    assert desk.states[fingerprint(1, 0)] is state
    assert draft.changes.tallies.get((CRAWL, "truncated", "disconnect"), 0) == (state is UrlState.DONE)
    assert draft.changes.tallies.get((CRAWL, "retried", "reset"), 0) == (state is UrlState.WAITING)
    assert draft.changes.fetches[0].page == (state is UrlState.DONE)


def test_a_page_cut_at_a_limit_is_done_and_counted_as_cut() -> None:
    desk = Desk(sizes=(1,))
    draft = desk.draft()
    draft.outcome(outcome(1, msgspec.structs.replace(page(fingerprint(1, 0)), truncated="length")))
    desk.commit(draft)
    assert desk.states[fingerprint(1, 0)] is UrlState.DONE
    assert draft.changes.tallies[CRAWL, "truncated", "length"] == 1


def test_what_a_page_left_out_counts_once_with_its_accepted_outcome() -> None:
    desk = Desk(sizes=(2,))
    draft = desk.draft()
    lossy = msgspec.structs.replace(
        page(fingerprint(1, 0)), truncated="length", found=60, left_out=[LeftOut("other_host", 50, ["http://b.test/"])]
    )
    draft.outcome(outcome(1, lossy, lossy, final=False))
    draft.outcome(outcome(1, msgspec.structs.replace(lossy, fingerprint=fingerprint(2, 0))))
    changes = draft.changes
    assert {key[1:]: n for key, n in changes.tallies.items()} == {
        ("status", "200"): 1, ("left_out", "other_host"): 50, ("outlinks", "left_out"): 1,
        ("truncated", "length"): 1,
    }  # fmt: skip
    assert [(link.reason, link.url) for link in changes.left_out] == [("other_host", "http://b.test/")]
    (row,) = changes.fetches
    assert (row.links_found, row.left_out, row.truncated) == (60, "other_host 50", "length")
    settled = next(change for change in changes.urls if change.fingerprint == fingerprint(1, 0))
    assert settled.flags == COUNTED_AS_PAGE | LOSSES_COUNTED
    assert changes.losses_to_replace == []


def test_a_page_fetched_again_replaces_what_it_left_out() -> None:
    desk = Desk(sizes=(1,))
    held = desk.leases.get(lease_id(1))
    assert held is not None
    held.row.urls[fingerprint(1, 0)].flags = COUNTED_AS_PAGE | LOSSES_COUNTED
    draft = desk.draft()
    draft.outcome(outcome(1, msgspec.structs.replace(page(fingerprint(1, 0)), found=60)))
    assert draft.changes.losses_to_replace == draft.changes.fetches
    assert {kind for _, kind, _ in draft.changes.tallies} == {"status"}
