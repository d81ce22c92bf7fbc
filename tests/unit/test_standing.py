"""Who stands for election while masters drain: not one that drains if another could lead, and never nobody."""

import asyncio
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from api.leader.candidacy import Candidacy, better_candidates
from shared.wire.keys import Keys, LeaderRecord, MemberRecord, encode_record
from tests.support.api.snapshot_view import Published

KEYS = Keys("test")
LEFT_FOR_S = 0.05


class HandClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def elapsed(self) -> float:
        return self.now

    def unix_ms(self) -> int:
        return int(self.now * 1000)


def members(**draining: bool) -> dict[str, MemberRecord]:
    return {name: MemberRecord(name, "1", 1, draining=drains) for name, drains in draining.items()}


def entries(masters: Mapping[str, MemberRecord], leader: str | None = None) -> dict[str, bytes]:
    shown = {KEYS.master(name): encode_record(record) for name, record in masters.items()}
    return shown if leader is None else {**shown, KEYS.leader: encode_record(LeaderRecord(leader, ""))}


# --- the decision -----------------------------------------------------------------------------------------------------


def test_a_master_that_drains_leaves_the_lead_to_those_that_do_not() -> None:
    masters = members(me=True, other=False, third=True)
    assert better_candidates("me", masters) == {("other", 1)}
    assert better_candidates("other", masters) == frozenset()
    assert better_candidates("me", members(me=True, third=True)) == frozenset(), "while all drain, each may lead"
    assert better_candidates("me", members(me=True)) == frozenset()


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.booleans(), min_size=1))
def test_somebody_always_stands(draining: dict[str, bool]) -> None:
    masters = members(**draining)
    standing = {name for name in masters if not better_candidates(name, masters)}
    assert standing
    assert standing == {name for name, drains in draining.items() if not drains} or all(draining.values())


# --- over time --------------------------------------------------------------------------------------------------------


def test_one_that_drains_waits_until_the_other_is_gone() -> None:
    async def story() -> None:
        view = Published(entries(members(me=True, other=False), leader="other"))
        standing = Candidacy("me", view, KEYS, HandClock())
        due = asyncio.ensure_future(standing.until_due())
        await asyncio.sleep(0)
        assert not due.done()
        view.show(entries(members(me=True)))
        await asyncio.wait_for(due, 30)

    asyncio.run(story())


def test_one_that_leads_and_is_drained_hears_of_it() -> None:
    async def story() -> None:
        view = Published(entries(members(me=False, other=False), leader="me"))
        standing = Candidacy("me", view, KEYS, HandClock())
        better = asyncio.ensure_future(standing.until_better())
        await asyncio.sleep(0)
        assert not better.done()
        view.show(entries(members(me=True, other=False), leader="me"))
        await asyncio.wait_for(better, 30)

    asyncio.run(story())


def test_draining_master_campaigns_when_no_other_candidate_wins() -> None:
    async def story() -> None:
        clock = HandClock()
        masters = members(me=True, sick=False)
        view = Published(entries(masters))
        standing = Candidacy("me", view, KEYS, clock, left_for_s=LEFT_FOR_S)
        due = asyncio.ensure_future(standing.until_due())
        await asyncio.sleep(0)
        clock.now += 10
        await asyncio.wait_for(due, 30)
        view.show(entries(masters, leader="me"))
        better = asyncio.ensure_future(standing.until_better())
        await asyncio.sleep(0)
        assert not better.done(), "it was left the lead once and did not take it"
        view.show(entries({**masters, **members(new=False)}, leader="me"))
        await asyncio.wait_for(better, 30)

    asyncio.run(story())


def test_what_was_passed_over_counts_again_after_the_drain_is_taken_back() -> None:
    async def story() -> None:
        clock = HandClock()
        view = Published(entries(members(me=True, slow=False)))
        standing = Candidacy("me", view, KEYS, clock, left_for_s=LEFT_FOR_S)
        due = asyncio.ensure_future(standing.until_due())
        await asyncio.sleep(0)
        clock.now += 10
        await asyncio.wait_for(due, 30)
        view.show(entries(members(me=False, slow=False), leader="me"))
        better = asyncio.ensure_future(standing.until_better())
        await asyncio.sleep(0)
        view.show(entries(members(me=True, slow=False), leader="me"))
        await asyncio.wait_for(better, 30)

    asyncio.run(story())
