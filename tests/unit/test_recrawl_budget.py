"""The requests a day of a crawl: partitions that share it never start more, however they come and go."""

import random
from itertools import accumulate

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.domain.frontier.recrawl_budget import RecrawlBudget, Share, share

DAY_MS = 86_400_000
NOW_MS = 1_790_000_000_000
ALL = share(0, 1, 1)


def shares(pages: list[int]) -> list[Share]:
    ends = list(accumulate(pages))
    return [share(end - count, count, ends[-1]) for end, count in zip(ends, pages, strict=True)]


@given(
    st.integers(1, 3_000),
    st.lists(st.integers(0, 1000), min_size=1, max_size=64).filter(any),
    st.integers(0, 2**32),
    st.floats(0.0, 1.0),
)
@example(50, [1] * 64, 1, 0.2)
@settings(max_examples=30, deadline=None)
def test_partitions_together_keep_the_budget_of_any_day(rpd: int, pages: list[int], seed: int, idle: float) -> None:
    """Each asks at moments of its own, and some have nothing due for long times."""
    drawn = random.Random(seed)
    begin = NOW_MS + drawn.randrange(DAY_MS)
    parts = [(part, RecrawlBudget.starting(rpd, begin)) for part in shares(pages)]
    sent: list[int] = []
    asked = sorted(begin + drawn.randrange(3 * DAY_MS) for _ in range(600))
    for now in asked:
        which = drawn.randrange(len(parts))
        if (now // (DAY_MS // 4) + which) % 7 < 7 * idle:
            continue
        part, budget = parts[which]
        granted, budget = budget.spent(now, part, drawn.choice((1, 10, 10**9)))
        parts[which] = part, budget
        sent += [now] * granted
    oldest = 0
    for index, now in enumerate(sent):
        while sent[oldest] <= now - DAY_MS:
            oldest += 1
        assert index - oldest + 1 <= rpd * 1.01 + 1


@pytest.mark.parametrize(("rpd", "pages"), [(64, [5] * 64), (1_000, [1, 0, 10, 89]), (10, [1]), (100_000, [3, 7])])
def test_partitions_that_always_have_work_spend_the_whole_budget(rpd: int, pages: list[int]) -> None:
    parts = [(part, RecrawlBudget.starting(rpd, NOW_MS)) for part in shares(pages)]
    spent = [0] * len(parts)
    for now in range(NOW_MS, NOW_MS + 4 * DAY_MS + 1, 600_000):
        for which, (part, budget) in enumerate(parts):
            granted, budget = budget.spent(now, part, 10**9)
            parts[which] = part, budget
            spent[which] += granted
    assert 4 * rpd - 1 <= sum(spent) <= 4 * rpd + 1
    for count, each in zip(pages, spent, strict=True):
        assert each == pytest.approx(4 * rpd * count / sum(pages), abs=4)


def test_slots_that_were_not_used_are_lost_after_a_hundredth_of_a_day() -> None:
    budget = RecrawlBudget.starting(10_000, NOW_MS)
    assert budget.available(NOW_MS + DAY_MS // 200, ALL, 10**9) == pytest.approx(50, abs=1)
    assert budget.available(NOW_MS + 5 * DAY_MS, ALL, 10**9) == pytest.approx(100, abs=1)


def test_large_budget_is_counted_by_the_share() -> None:
    rpd = 10**9
    budget = RecrawlBudget.starting(rpd, NOW_MS)
    third = share(1, 1, 3)
    granted, after = budget.spent(NOW_MS + 500_000, third, 10**9)
    assert granted == pytest.approx(rpd * 500 / 86_400 / 3, rel=1e-3)
    assert after.available(NOW_MS + 500_000, third, 10**9) == 0
    some, after = budget.spent(NOW_MS + 500_000, third, 1_000)
    rest, _ = after.spent(NOW_MS + 500_000, third, 10**9)
    assert some == 1_000
    assert some + rest == pytest.approx(granted, abs=10)


def test_partition_without_pages_has_no_slot() -> None:
    for rpd in (10, 10**9):
        budget = RecrawlBudget.starting(rpd, NOW_MS)
        assert budget.spent(NOW_MS + DAY_MS, share(5, 0, 10), 100)[0] == 0


def test_clock_that_is_set_far_back_delays_no_request_for_long() -> None:
    budget = RecrawlBudget.starting(10_000, NOW_MS + 10 * DAY_MS)
    granted, budget = budget.spent(NOW_MS, ALL, 1)
    assert granted == 0
    _, budget = budget.spent(NOW_MS, ALL, 1)
    assert budget.available(NOW_MS + DAY_MS // 100, ALL, 10**9) > 90


def test_clock_that_is_set_back_a_little_grants_no_slot_twice() -> None:
    _, budget = RecrawlBudget.starting(10_000, NOW_MS).spent(NOW_MS + DAY_MS // 200, ALL, 10**9)
    assert budget.available(NOW_MS + DAY_MS // 400, ALL, 10**9) == 0
