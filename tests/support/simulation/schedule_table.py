"""The table of docs/reliability.md: what became of the due times of schedules after each kind of fault.

    .venv/bin/python -m tests.support.simulation.schedule_table [--runs 20] [--faults 50]

Each run has a seed, its number. The exit code is 1 if any due time fired twice or was left out.
"""

import argparse
import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import structlog

from tests.support.simulation.schedule_faults import FaultRun, ScheduleFault, struck_on_sqlite

_COLUMNS = ("fired", "skipped", "queued", "missed")


def rows(runs: Sequence[FaultRun]) -> Iterator[str]:
    """Yield the rows of the table, one for each kind of fault and one for the sum."""
    drawn = Counter(each.fault for run in runs for each in run.drawn)
    became = Counter((run.fault_of(each), _column(each.became, each.wrong)) for run in runs for each in run.verdicts)
    yield "| fault | drawn | due times | fired once | a run was not over | missed by the rule | wrong |"
    yield "|---|---|---|---|---|---|---|"
    for fault in [None, *ScheduleFault]:
        yield _row(fault or "before the first fault", drawn[fault] if fault else 0, became, [fault])
    yield _row("sum", sum(drawn.values()), became, [None, *ScheduleFault])


def _column(became: str, wrong: str) -> str:
    return "wrong" if wrong else became


def _row(
    name: str,
    drawn: int,
    became: Counter[tuple[ScheduleFault | None, str]],
    faults: Sequence[ScheduleFault | None],
) -> str:
    of = {column: sum(became[fault, column] for fault in faults) for column in (*_COLUMNS, "wrong")}
    cells = [sum(of.values()), of["fired"], of["skipped"] + of["queued"], of["missed"], of["wrong"]]
    return f"| {name} | {drawn:,} | " + " | ".join(f"{cell:,}" for cell in cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--faults", type=int, default=50)
    told = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    runs = [asyncio.run(struck_on_sqlite(seed, told.faults)) for seed in range(1, told.runs + 1)]
    print("\n".join(rows(runs)))
    wrong = [(run.seed, each) for run in runs for each in run.wrong()]
    for seed, each in wrong:
        print(f"seed {seed}: {each}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
