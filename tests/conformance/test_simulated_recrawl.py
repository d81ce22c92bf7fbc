"""Recrawl policies on a small simulated web, in virtual time: fresh enough, polite, and within the budget.

docs/benchmarks.md has the table of a large one. Each run is the same in every process, so ratios need no margin for
chance.
"""

import pytest

from tests.benchmarks.simulated import Measured, measured
from tests.support.simulation.changing_web import DAY_S, TUNING_SEEDS, ChangingWeb
from tests.support.simulation.recrawl_policies import POLICIES
from tests.support.simulation.recrawl_run import Run

HOSTS, DAYS, PAGES_PER_REQUEST = 25, 120, 30.0


@pytest.fixture(scope="module")
def rows() -> dict[str, Measured]:
    names = ("fixed", "halving", "adaptive", "with sitemaps", "signs known", "oracle")
    return {
        name: measured(name, TUNING_SEEDS[0], hosts=HOSTS, days=DAYS, pages_per_request=PAGES_PER_REQUEST)
        for name in names
    }


def test_adaptive_is_as_fresh_as_fixed_with_fewer_useless_fetches(rows: dict[str, Measured]) -> None:
    assert rows["adaptive"].freshness >= 0.99 * rows["fixed"].freshness
    assert rows["adaptive"].unchanged <= 0.8 * rows["fixed"].unchanged
    assert rows["adaptive"].yielded > rows["fixed"].yielded


def test_signs_of_sitemaps_make_fresher_with_fewer_useless_fetches(rows: dict[str, Measured]) -> None:
    assert rows["with sitemaps"].freshness >= 1.1 * rows["fixed"].freshness
    assert rows["with sitemaps"].unchanged <= 0.7 * rows["fixed"].unchanged
    assert rows["with sitemaps"].yielded > rows["fixed"].yielded


def test_target_of_freshness_is_beyond_the_bound_of_this_web(rows: dict[str, Measured]) -> None:
    """With all rates and the changes in right sitemaps known at once and for free, 1.3 is not reached."""
    assert rows["with sitemaps"].freshness < rows["signs known"].freshness < 1.3 * rows["fixed"].freshness


def test_no_policy_is_fresher_than_the_oracle(rows: dict[str, Measured]) -> None:
    assert rows["oracle"].freshness == max(row.freshness for row in rows.values())
    assert rows["oracle"].unchanged < 0.02 * rows["fixed"].unchanged


def test_policies_keep_the_budget_and_spend_it(rows: dict[str, Measured]) -> None:
    for row in rows.values():
        budget = row.requests / row.spent
        assert row.busiest_day <= 1.01 + 1 / budget, row.policy
        assert row.spent > 0.85, row.policy


def test_no_request_comes_sooner_than_a_host_permits(rows: dict[str, Measured]) -> None:
    assert {row.policy: row.impolite for row in rows.values() if row.impolite} == {}


@pytest.mark.parametrize("name", ["fixed", "halving", "adaptive", "with sitemaps"])
def test_restart_loses_no_due_time(name: str) -> None:
    web = ChangingWeb(TUNING_SEEDS[1], hosts=15, days=60)
    budget = int(len(web.pages) / PAGES_PER_REQUEST)
    run = Run(web, POLICIES[name](web, budget), budget, 0.0)
    run.until(40 * DAY_S)
    before = run.due()
    assert len(before) > 0.9 * len(web.pages)
    run.restart(40 * DAY_S)
    after = run.due()
    assert before.keys() == after.keys()
    late = [number for number, at in after.items() if at > before[number]]
    assert late == []
    sent = sum(run.sent)
    run.until(50 * DAY_S, start=40 * DAY_S)
    assert sum(run.sent) - sent > 0.8 * 10 * budget, "the owners go on"
