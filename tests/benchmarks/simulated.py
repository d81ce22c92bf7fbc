"""`orb bench simulated`: how fresh recrawl policies keep the pages of a simulated web, in virtual time.

    orb bench simulated [--hosts 1000] [--days 360] [--pages-per-request 30] [--study cho|brewington]
        [--seeds 201 202] [--only NAME ...] [--json]

Each policy crawls a web of its own with the same seed and the same requests a day: one for `--pages-per-request` pages.
The second half of the time is measured. The web is tests/support/simulation/changing_web.py; its rates and seeds were
fixed before the policies were tuned, on other seeds (`TUNING_SEEDS`). At the middle of the measured time every owner is
restarted from what is stored. The row `bound` is no policy: no policy that does not know the future exceeds that
freshness. It is computed from the rates of the web (tests/support/simulation/freshness_bound.py).
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

from tests.support.simulation.changing_web import DAY_S, SECOND_SEEDS, TABLE_SEEDS, ChangingWeb, Study
from tests.support.simulation.freshness_bound import freshness_bound
from tests.support.simulation.recrawl_policies import POLICIES
from tests.support.simulation.recrawl_run import Run, impolite

BOUND: Final = "bound"
"""The row of the freshness that no policy exceeds."""


@dataclass(frozen=True, slots=True)
class Row:
    """The freshness of one web under a policy, or its bound."""

    policy: str
    seed: int
    pages: int
    freshness: float


@dataclass(frozen=True, slots=True)
class Measured(Row):
    """What a policy did with one web. `requests` and `unchanged` are per day; `spent`: requests to the budget."""

    unchanged: float
    requests: float
    spent: float
    busiest_day: float
    sitemaps: float
    failed: float
    yielded: float
    impolite: int


def row_of(name: str, seed: int, *, hosts: int, days: int, pages_per_request: float, study: Study = Study.CHO) -> Row:
    """Return what the policy `name` does with the web of a seed, or the bound of that web."""
    if name != BOUND:
        return measured(name, seed, hosts=hosts, days=days, pages_per_request=pages_per_request, study=study)
    web = ChangingWeb(seed, hosts, days, study)
    freshness = freshness_bound(web, _budget(web, pages_per_request), days // 2 * DAY_S)
    return Row(BOUND, seed, len(web.pages), freshness)


def _budget(web: ChangingWeb, pages_per_request: float) -> int:
    """Return the requests a day that a policy may send."""
    return max(1, int(len(web.pages) / pages_per_request))


def measured(
    name: str, seed: int, *, hosts: int, days: int, pages_per_request: float, study: Study = Study.CHO
) -> Measured:
    """Return what the policy `name` does with the web of a seed."""
    web = ChangingWeb(seed, hosts, days, study)
    budget = _budget(web, pages_per_request)
    half_s, middle_s, end_s = days // 2 * DAY_S, days * 3 // 4 * DAY_S, days * DAY_S
    run = Run(web, POLICIES[name](web, budget), budget, half_s)
    run.until(middle_s)
    run.restart(middle_s)
    run.until(end_s, start=middle_s)
    tally = run.finish()
    time_days = (end_s - half_s) / DAY_S
    return Measured(
        policy=name,
        seed=seed,
        pages=len(web.pages),
        freshness=tally.freshness,
        unchanged=tally.unchanged / time_days,
        requests=tally.requests / time_days,
        spent=tally.requests / time_days / budget,
        busiest_day=tally.busiest_day() / budget,
        sitemaps=tally.sitemaps / time_days,
        failed=tally.failed / time_days,
        yielded=tally.yielded,
        impolite=impolite(web.hosts),
    )


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table, the means of the seeds, with ratios to the fixed interval.

    A row has no number, `-`, where it has not been measured.
    """
    lines = [
        "| policy | freshness | to fixed | useless a day | to fixed | requests a day | of budget | busiest day "
        "| sitemaps a day | yield | impolite |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    fixed = {row.seed: row for row in rows if row.policy == "fixed"}
    for name in dict.fromkeys(row.policy for row in rows):
        own = [row for row in rows if row.policy == name]

        def mean(field: str, form: str, own: list[Row] = own) -> str:
            known = [getattr(row, field) for row in own if hasattr(row, field)]
            return format(statistics.mean(known), form) if known else "-"

        def ratio(field: str, own: list[Row] = own) -> str:
            compared = [row for row in own if hasattr(row, field) and row.seed in fixed]
            known = [getattr(row, field) / getattr(fixed[row.seed], field) for row in compared]
            return f"{statistics.mean(known):.2f}" if known else "-"

        cells = (
            name,
            mean("freshness", ".3f"),
            ratio("freshness"),
            mean("unchanged", ",.0f"),
            ratio("unchanged"),
            mean("requests", ",.0f"),
            mean("spent", ".3f"),
            mean("busiest_day", ".3f"),
            mean("sitemaps", ",.0f"),
            mean("yielded", ".2f"),
            str(sum(row.impolite for row in own if isinstance(row, Measured))) if name != BOUND else "-",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="orb bench simulated", description="Compare recrawl policies.")
    names = [*POLICIES, BOUND]
    parser.add_argument("--hosts", type=int, default=1_000)
    parser.add_argument("--days", type=int, default=360)
    parser.add_argument("--pages-per-request", type=float, default=30.0, help="pages for each request a day")
    parser.add_argument("--study", choices=[study.value for study in Study], default=Study.CHO.value)
    parser.add_argument("--seeds", type=int, nargs="+", help="by default those of the study's table")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--json", action="store_true", help="every run as JSON instead of the table")
    asked = parser.parse_args()
    study = Study(asked.study)
    one = partial(row_of, hosts=asked.hosts, days=asked.days, pages_per_request=asked.pages_per_request, study=study)
    seeds = asked.seeds or (TABLE_SEEDS if study is Study.CHO else SECOND_SEEDS)
    runs = [(name, seed) for name in asked.only for seed in seeds]
    with ProcessPoolExecutor(max_workers=2) as processes:
        rows = list(processes.map(one, *zip(*runs, strict=True)))
    if asked.json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=2)
        print()
    else:
        print(f"{asked.hosts:,} hosts, {statistics.mean(row.pages for row in rows):,.0f} pages on average")
        print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
