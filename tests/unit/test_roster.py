"""How members are loaded, as they were heard of last."""

from api.members.member_stats import RATE_S, STALE_AFTER_S, MemberStats
from shared.wire.messages import MasterStatus, WorkerStatus


def status(pages: int, pid: int = 1) -> WorkerStatus:
    return WorkerStatus("w1", "default", 64, 3, pages=pages, pid=pid)


def rate(roster: MemberStats, now: float) -> float | None:
    load = roster.worker("w1", now)
    assert load is not None
    return load.pages_per_s


def test_a_member_that_is_silent_for_long_is_one_of_which_nothing_is_known() -> None:
    roster = MemberStats()
    assert roster.worker("w1", 0.0) is None
    assert roster.master("m1", 0.0) is None
    roster.worker_reported(status(5), 0.0)
    roster.master_reported(MasterStatus("m1", 4), 0.0)
    assert roster.worker("w1", STALE_AFTER_S) is not None
    assert roster.master("m1", STALE_AFTER_S) == MasterStatus("m1", 4)
    assert roster.worker("w1", STALE_AFTER_S + 0.1) is None
    assert roster.master("m1", STALE_AFTER_S + 0.1) is None


def test_a_rate_is_of_the_last_seconds_and_not_of_all_time() -> None:
    roster = MemberStats()
    roster.worker_reported(status(1000), 0.0)
    assert rate(roster, 0.0) is None, "one status tells of no time"
    for second in range(1, 31):
        roster.worker_reported(status(1000 + 50 * second), float(second))
        assert rate(roster, float(second)) == 50
    for second in range(31, 31 + int(RATE_S) + 1):
        roster.worker_reported(status(2500), float(second))
    assert rate(roster, 31 + RATE_S) == 0


def test_a_process_started_anew_counts_from_its_own_beginning() -> None:
    roster = MemberStats()
    roster.worker_reported(status(900), 0.0)
    roster.worker_reported(status(1000), 1.0)
    roster.worker_reported(status(10, pid=2), 2.0)
    assert rate(roster, 2.0) is None
    roster.worker_reported(status(30, pid=2), 3.0)
    assert rate(roster, 3.0) == 20
    roster.worker_reported(status(5, pid=2), 4.0)  # in a container every process has the same number
    assert rate(roster, 4.0) is None


def test_members_that_are_gone_take_no_room() -> None:
    roster = MemberStats()
    for number in range(100):
        roster.worker_reported(WorkerStatus(f"w{number}", "default", 8, 0), 0.0)
        roster.master_reported(MasterStatus(f"m{number}", 0), 0.0)
    roster.worker_reported(WorkerStatus("late", "default", 8, 0), 1000.0)
    assert repr(roster) == "<MemberStats masters=0 workers=1>"
