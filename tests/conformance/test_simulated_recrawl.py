"""Recrawl policies on a small simulated web, in virtual time: fresh enough, polite, and within the budget.

docs/benchmarks.md has the table of a large one. Each run is the same in every process, so ratios need no margin for
chance.
"""

import pytest

from tests.benchmarks.simulated import BOUND, Measured, measured, row_of
from tests.support.simulation.changing_web import DAY_S, TABLE_SEEDS, TUNING_SEEDS, ChangingWeb
from tests.support.simulation.freshness_bound import fixed_freshness
from tests.support.simulation.recrawl_policies import POLICIES
from tests.support.simulation.recrawl_run import Run

pytestmark = pytest.mark.long

HOSTS, DAYS, PAGES_PER_REQUEST = 25, 120, 30.0


@pytest.fixture(scope="module")
def rows() -> dict[str, Measured]:
    names = ("fixed", "halving", "adaptive", "with sitemaps", "signs known", "oracle")
    return {
        name: measured(name, TUNING_SEEDS[0], hosts=HOSTS, days=DAYS, pages_per_request=PAGES_PER_REQUEST)
        for name in names
    }


@pytest.mark.parametrize("name", ["adaptive", "with sitemaps"])
def test_policy_with_sitemaps_is_fresher_with_fewer_useless_fetches(name: str, rows: dict[str, Measured]) -> None:
    """The first is the product's policy by its own classes, the second its prototype."""
    assert rows[name].freshness >= 1.1 * rows["fixed"].freshness
    assert rows[name].unchanged <= 0.5 * rows["fixed"].unchanged
    assert rows[name].yielded > rows["fixed"].yielded
    assert 0 < rows[name].sitemaps < 0.2 * rows[name].requests, "they count within the budget"


def test_no_policy_without_clairvoyance_exceeds_the_bound(rows: dict[str, Measured]) -> None:
    """The bound is an expectation, and no policy comes near enough to be above it by the chance of 1,600 pages."""
    bound = row_of(BOUND, TUNING_SEEDS[0], hosts=HOSTS, days=DAYS, pages_per_request=PAGES_PER_REQUEST)
    exceeding = [name for name, each in rows.items() if name != "oracle" and each.freshness > bound.freshness]
    assert exceeding == []
    assert rows["adaptive"].freshness < rows["signs known"].freshness < bound.freshness < 1.5 * rows["fixed"].freshness


def test_fixed_interval_is_as_fresh_as_expected(rows: dict[str, Measured]) -> None:
    web = ChangingWeb(TUNING_SEEDS[0], HOSTS, DAYS)
    expected = fixed_freshness(web, PAGES_PER_REQUEST * DAY_S, DAYS // 2 * DAY_S)
    assert rows["fixed"].freshness == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize("seed", TABLE_SEEDS)
def test_target_of_freshness_is_beyond_the_bound_of_the_table(seed: int) -> None:
    """The target is 1.3 times the freshness of the fixed interval. So no policy can reach it on these webs."""
    bound = row_of(BOUND, seed, hosts=1_000, days=360, pages_per_request=PAGES_PER_REQUEST)
    fixed = fixed_freshness(ChangingWeb(seed, 1_000, 360), PAGES_PER_REQUEST * DAY_S, 180 * DAY_S)
    assert 1.25 * fixed < bound.freshness < 1.3 * fixed


def test_no_policy_is_fresher_than_the_oracle(rows: dict[str, Measured]) -> None:
    assert rows["oracle"].freshness == max(row.freshness for row in rows.values())
    assert rows["oracle"].unchanged < 0.02 * rows["fixed"].unchanged


def test_policies_keep_the_budget_and_spend_it(rows: dict[str, Measured]) -> None:
    for row in rows.values():
        budget = row.requests / row.spent
        assert row.busiest_day <= 1.01 + 1 / budget, row.policy
        assert row.spent > (0.93 if row.policy == "adaptive" else 0.85), row.policy


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
    assert any(number < 0 for number in before) == (name in ("adaptive", "with sitemaps")), "sitemaps are due, too"
    run.restart(40 * DAY_S)
    after = run.due()
    assert before.keys() == after.keys()
    late = [number for number, at in after.items() if at > before[number]]
    assert late == []
    sent = sum(run.sent)
    run.until(50 * DAY_S, start=40 * DAY_S)
    assert sum(run.sent) - sent > 0.8 * 10 * budget, "the owners go on"
