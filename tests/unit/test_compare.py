"""The comparison's arithmetic: medians, ratios to the baseline, and a word when the crawls were not the same."""

import pytest

from tests.benchmarks.compare import Run, disagreement, markdown, table
from tests.support.crawler_commands import BASELINE, CONTESTANTS
from tests.support.processes.resource_meter import Measured


def run(key: str, cpu_s: float, pages: int = 1000) -> Run:
    return Run(key, pages, Measured(0, cpu_s, cpu_s, cpu_s, 0.0, 1 << 20, 0), {})


def test_ratios_are_of_medians_to_the_median_of_the_bare_loop() -> None:
    runs = [run(BASELINE, cpu) for cpu in (1.0, 9.0, 2.0)] + [run("orb", cpu) for cpu in (4.0, 1.0, 40.0)]
    rows = {row.contestant.key: row for row in table(runs, CONTESTANTS)}
    assert set(rows) == {"orb", BASELINE}
    assert rows[BASELINE].per_cpu_s == 500
    assert rows["orb"].per_cpu_s == 250
    assert rows["orb"].to_baseline == pytest.approx(0.5)
    assert "| 0.50 |" in markdown(list(rows.values()))


def test_without_the_bare_loop_there_is_no_ratio() -> None:
    (row,) = table([run("orb", 1.0)], CONTESTANTS)
    assert row.to_baseline is None
    assert "| - |" in markdown([row])


def test_different_page_counts_are_said() -> None:
    assert disagreement(table([run("orb", 1, 1000), run(BASELINE, 1, 995)], CONTESTANTS)) is None
    assert "orb" in (disagreement(table([run("orb", 1, 900), run(BASELINE, 1)], CONTESTANTS)) or "")
