"""Token buckets: how many requests go on, what is shown of them, and that memory is bounded."""

from hypothesis import given
from hypothesis import strategies as st

from shared.domain.ops.permits import MAX_BUCKETS, Buckets


def test_a_full_bucket_is_used_at_once_and_refills_at_its_rate() -> None:
    buckets = Buckets(2.0, 20)
    taken = [buckets.take("a", 100.0) for _ in range(21)]
    assert [each.allowed for each in taken if each] == [True] * 20 + [False]
    assert taken[0] is not None
    assert (taken[0].quota, taken[0].left, taken[0].full_s) == (20, 19, 1)
    assert taken[-1] is not None
    assert (taken[-1].left, taken[-1].full_s, taken[-1].wait_s) == (0, 10, 1)
    again = [buckets.take("a", 103.0) for _ in range(7)]
    assert [each.allowed for each in again if each] == [True] * 6 + [False]


def test_names_do_not_share_a_bucket_and_looking_takes_nothing() -> None:
    buckets = Buckets(1.0, 1)
    for _ in range(3):
        seen = buckets.look("a", 0.0)
        assert seen is not None
        assert seen.allowed
    first, other, second = (buckets.take(name, 0.0) for name in ("a", "b", "a"))
    assert [each.allowed for each in (first, other, second) if each] == [True, True, False]


def test_without_a_rate_there_is_no_limit_and_no_memory() -> None:
    buckets = Buckets(0, 0)
    assert [buckets.take("a", 0.0) for _ in range(3)] == [None] * 3
    assert len(buckets) == 0


def test_of_more_names_than_fit_the_least_recent_goes() -> None:
    buckets = Buckets(1.0, 1, max_count=3)
    for name in "abcad":
        buckets.take(name, 0.0)
    assert len(buckets) == 3
    kept, dropped = buckets.look("a", 0.0), buckets.look("b", 0.0)
    assert kept is not None
    assert dropped is not None
    assert (kept.allowed, dropped.allowed) == (False, True)
    many = Buckets(1.0, 1)
    for number in range(MAX_BUCKETS + 100):
        many.take(str(number), 0.0)
    assert len(many) == MAX_BUCKETS


@given(st.lists(st.floats(0, 5), max_size=200), st.integers(1, 50), st.integers(1, 50))
def test_no_more_go_on_than_the_quota_and_the_rate_allow(waits: list[float], rate: int, quota: int) -> None:
    buckets, now, allowed = Buckets(rate, quota), 0.0, 0
    for wait in waits:
        now += wait
        permit = buckets.take("a", now)
        assert permit is not None
        assert 0 <= permit.left <= quota
        allowed += permit.allowed
    assert allowed <= quota + now * rate + 1e-6
