"""The draws of a run are repeatable and complete."""

from collections import Counter

from tests.support.faults.plan import ENGINES, MEMBERS, FaultKind, FaultTarget, deck, kinds, plan


def test_a_seed_gives_the_same_faults_again_and_another_seed_others() -> None:
    assert plan(7, 30) == plan(7, 30)
    assert plan(7, 30) != plan(8, 30)


def test_a_longer_run_begins_with_the_shorter_one() -> None:
    assert plan(7, 100)[:30] == plan(7, 30)


def test_each_deck_holds_every_fault_once() -> None:
    size = len(deck(served_database=True))
    assert set(Counter(fault.name for fault in plan(7, 2 * size)).values()) == {2}
    assert len(kinds(plan(7, size))) == size


def test_plan_strikes_every_member_engine_and_link() -> None:
    faults = deck(served_database=True)
    for who in FaultTarget:
        assert (FaultKind.KILL, who, None) in faults
        assert (FaultKind.STOP, who, None) in faults
        assert (FaultKind.RESTART, who, None) in faults
    links = {(member, engine) for member in MEMBERS for engine in ENGINES} - {
        (FaultTarget.WORKER, FaultTarget.DATABASE)
    }
    for kind in (FaultKind.CUT, FaultKind.SILENCE, FaultKind.DELAY):
        assert {(who, engine) for struck, who, engine in faults if struck is kind} == links


def test_deck_holds_every_fault_kind_clock_and_disk() -> None:
    faults = deck(served_database=True)
    assert {kind for kind, _, _ in faults} == set(FaultKind)
    assert {who for kind, who, _ in faults if kind is FaultKind.STEP} == set(MEMBERS)
    for kind in (FaultKind.SLOW, FaultKind.FILL):
        assert {who for struck, who, _ in faults if struck is kind} == {FaultTarget.WORKER, *ENGINES}


def test_plan_for_database_file_has_slow_and_full_disk_but_no_process() -> None:
    of_a_file = [fault for fault in deck(served_database=False) if FaultTarget.DATABASE in fault]
    assert of_a_file == [(FaultKind.SLOW, FaultTarget.DATABASE, None), (FaultKind.FILL, FaultTarget.DATABASE, None)]


def test_some_faults_strike_during_recovery_and_some_outlast_a_lease() -> None:
    faults = plan(7, 200)
    assert any(fault.after_s == 0 for fault in faults)
    assert any(fault.hold_s > 4 for fault in faults)
    assert all(0 <= fault.after_s <= 2 and 0.1 <= fault.hold_s <= 7 for fault in faults)
