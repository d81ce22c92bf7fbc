"""`orb bench compare`: crawls the same corpus with orb and with other crawlers, and prints what each costs.

Every contestant follows the links of one host from the same start page, with robots.txt ignored and no delay (for orb,
`--delay 0`; the corpus has no robots.txt to obey). Runs are interleaved, so that a change of the machine's mood meets
all alike. What is compared is pages per CPU-second over the whole process tree, engines included; the server's time
counts for nobody.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.support.crawler_commands import BASELINE, CONTESTANTS, ROOT, Contestant
from tests.support.peer_environment import peers_python
from tests.support.processes.resource_meter import Measured
from tests.support.web.corpus_site import CannotServe, nginx

MIB: Final = 1 << 20
PAGES_TOLERANCE: Final = 0.01


class RunFailed(RuntimeError):
    """A contestant did not finish, or said nothing that can be read."""


@dataclass(frozen=True, slots=True)
class Run:
    """One crawl by one contestant."""

    key: str
    pages: int
    measured: Measured
    versions: Mapping[str, str]

    @property
    def per_cpu_s(self) -> float:
        return self.pages / self.measured.cpu_s


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of a contestant's runs. Ratios are of pages per CPU-second."""

    contestant: Contestant
    runs: int
    pages: int
    wall_s: float
    cpu_s: float
    per_cpu_s: float
    spread: float
    peak_rss: int
    to_baseline: float | None


def run_once(contestant: Contestant, python: Path, start: str) -> Run:
    """One measured crawl; its output is kept from the terminal unless it fails."""
    with tempfile.TemporaryDirectory(prefix="orb-bench-") as folder:
        report = Path(folder, "report.json")
        command = contestant.command(python, start, Path(folder))
        metered = [sys.executable, "-m", "tests.support.processes.resource_meter", str(report), *command]
        ended = subprocess.run(metered, cwd=ROOT, capture_output=True, text=True, check=False)
        measured = Measured(**json.loads(report.read_text())) if report.exists() else None
    if measured is None or measured.returncode != 0:
        code = ended.returncode if measured is None else measured.returncode
        raise RunFailed(f"{contestant.key} ended with {code}: {ended.stderr.strip()[-800:]}")
    try:
        said = json.loads(ended.stdout)
        pages = int(said["pages"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunFailed(f"{contestant.key} printed no page count: {ended.stdout[-300:]!r}") from error
    if measured.left_behind:
        raise RunFailed(f"{contestant.key} left {measured.left_behind} processes running")
    return Run(contestant.key, pages, measured, said.get("versions", {}))


def table(runs: Sequence[Run], contestants: Sequence[Contestant]) -> list[Row]:
    """The medians of each contestant that has runs, in the order of `contestants`."""
    per_cpu = {
        contestant.key: statistics.median(run.per_cpu_s for run in runs if run.key == contestant.key)
        for contestant in contestants
        if any(run.key == contestant.key for run in runs)
    }
    rows = []
    for contestant in contestants:
        own = [run for run in runs if run.key == contestant.key]
        if not own:
            continue
        rates = sorted(run.per_cpu_s for run in own)
        rows.append(
            Row(
                contestant,
                len(own),
                int(statistics.median(run.pages for run in own)),
                statistics.median(run.measured.wall_s for run in own),
                statistics.median(run.measured.cpu_s for run in own),
                per_cpu[contestant.key],
                (rates[-1] - rates[0]) / per_cpu[contestant.key],
                int(statistics.median(run.measured.peak_rss for run in own)),
                per_cpu[contestant.key] / per_cpu[BASELINE] if BASELINE in per_cpu else None,
            )
        )
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table."""
    lines = [
        "| crawler | pages | wall s | CPU s | pages per CPU-s | spread | to the bare loop | peak RSS MiB | keeps |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        ratio = f"{row.to_baseline:.2f}" if row.to_baseline is not None else "-"
        lines.append(
            f"| {row.contestant.title} | {row.pages:,} | {row.wall_s:.1f} | {row.cpu_s:.1f} | {row.per_cpu_s:,.0f} | "
            f"{row.spread:.0%} | {ratio} | {row.peak_rss / MIB:,.0f} | {row.contestant.keeps} |"
        )
    return "\n".join(lines)


def disagreement(rows: Sequence[Row]) -> str | None:
    """One line when the contestants did not fetch the same number of pages, so that their ratios mean less."""
    counts = {row.contestant.key: row.pages for row in rows}
    if counts and min(counts.values()) < max(counts.values()) * (1 - PAGES_TOLERANCE):
        return f"The contestants did not fetch the same pages: {counts}."
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every contestant finished every run, 1 when one did not, 2 when the comparison cannot be made here."""
    keys = [contestant.key for contestant in CONTESTANTS]
    parser = argparse.ArgumentParser(prog="compare", description="Compares orb with other crawlers, per CPU-second.")
    parser.add_argument("--runs", type=int, default=3, help="crawls by each contestant (default 3)")
    parser.add_argument("--only", action="append", choices=keys, help="a contestant to run (may be repeated)")
    parser.add_argument("--peers-dir", type=Path, default=ROOT / ".benchmarks" / "peers", help="the peers' environment")
    parser.add_argument("--copies", type=int, default=1, help="how often the corpus stands on the host (default 1)")
    parser.add_argument("--nginx-workers", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the runs as JSON instead of the table")
    options = parser.parse_args(arguments)
    chosen = [contestant for contestant in CONTESTANTS if not options.only or contestant.key in options.only]
    runs: list[Run] = []
    failures: dict[str, str] = {}
    try:
        needs_peers = any(contestant.key != "orb" for contestant in chosen)
        python = peers_python(options.peers_dir) if needs_peers else Path(sys.executable)
        with (
            tempfile.TemporaryDirectory(prefix="orb-bench-") as home,
            nginx(Path(home) / "nginx", options.nginx_workers, options.copies) as start,
        ):
            for turn in range(1, options.runs + 1):
                for contestant in chosen:
                    if contestant.key in failures:
                        continue
                    try:
                        run = run_once(contestant, python, start)
                    except RunFailed as failure:
                        failures[contestant.key] = str(failure)
                        print(failure, file=sys.stderr)
                        continue
                    runs.append(run)
                    print(
                        f"{turn}/{options.runs} {run.key}: {run.pages} pages, {run.measured.cpu_s:.1f} CPU-seconds, "
                        f"{run.per_cpu_s:,.0f} pages each",
                        file=sys.stderr,
                    )
    except (CannotServe, subprocess.CalledProcessError) as reason:
        print(f"The comparison cannot be made: {reason}", file=sys.stderr)
        return 2
    rows = table(runs, chosen)
    versions = {run.key: dict(run.versions) for run in runs}
    machine = f"{os.cpu_count()} CPUs, {platform.system()}, Python {platform.python_version()}"
    command = " ".join(["orb bench compare", *(sys.argv[1:] if arguments is None else arguments)])
    if options.json:
        said = {
            "machine": machine,
            "command": command,
            "runs": [asdict(run) for run in runs],
            "medians": {row.contestant.key: row.per_cpu_s for row in rows},
            "failures": failures,
        }
        print(json.dumps(said, indent=2))
    else:
        print(markdown(rows))
        print(f"\nMedians of {options.runs}, interleaved; spread = (best - worst) / median. {machine}. `{command}`\n")
        for key, names in versions.items():
            if names:
                print(f"- {key}: {', '.join(f'{name} {number}' for name, number in names.items())}")
        if odd := disagreement(rows):
            print(f"\n{odd}")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
