"""`orb bench polite_hosts`: crawls many small hosts at the default delay, and compares with what delays and CPU allow.

    orb bench polite_hosts [--hosts 1000 5000] [--pages 6] [--delay 1] [--rounds 3] [--workers 2]

Hosts are addresses of 127.0.0.0/8 on one nginx, with pages of 4 kB. The delays need `--delay` seconds for each page of
a host, since robots.txt is a request as well. The CPU needs the CPU seconds of the whole process tree, engines
included, divided by the cores. `ratio` is the time of the crawl divided by the greater of both. Figures are medians of
rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.support.processes.orb_command import ROOT, command_line
from tests.support.processes.resource_meter import Measured
from tests.support.web.corpus_site import small_hosts

MIB: Final = 1 << 20
DEFAULT_DELAY_S: Final = 1.0


def crawl(folder: Path, seeds: list[str], pages: int, delay_s: float, workers: int) -> Measured:
    """Crawl the hosts once; RuntimeError if a page is missing."""
    folder.mkdir()
    spec, report = folder / "spec.json", folder / "report.json"
    fields = {"egress": {"allow": ["127.0.0.0/8"]}, "politeness": {"delay_s": delay_s}}
    spec.write_text(json.dumps({"name": "polite", "seeds": seeds, **fields}))
    words = ("crawl", "--spec", spec, "--out", folder / "out", "--json", "--no-progress", "--workers", str(workers))
    line = [sys.executable, "-m", "tests.support.processes.resource_meter", os.fspath(report), *command_line(*words)]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    measured = Measured(**json.loads(report.read_text()))
    if measured.returncode != 0:
        raise RuntimeError(f"the crawl ended with {measured.returncode}: {ended.stderr[-800:]}")
    summary = json.loads(ended.stdout)
    if summary["pages"] != len(seeds) * pages:
        raise RuntimeError(f"{summary['pages']} pages instead of {len(seeds) * pages}")
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--pages", type=int, default=6)
    parser.add_argument("--delay", type=float, default=DEFAULT_DELAY_S, metavar="S")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print("| hosts | s | CPU s | pages per CPU-s | delays need s | ratio | peak RSS MiB, all processes |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for hosts in arguments.hosts:
        with tempfile.TemporaryDirectory(prefix="orb-polite-") as name:
            folder = Path(name)
            with small_hosts(folder / "web", hosts, arguments.pages) as seeds:
                runs = [
                    crawl(folder / str(n), seeds, arguments.pages, arguments.delay, arguments.workers)
                    for n in range(arguments.rounds)
                ]
        wall_s, cpu_s = (statistics.median(values) for values in zip(*((r.wall_s, r.cpu_s) for r in runs), strict=True))
        delays_s = arguments.pages * arguments.delay
        ratio = statistics.median(run.wall_s / max(delays_s, run.cpu_s / cores) for run in runs)
        rss = max(run.peak_rss for run in runs) / MIB
        rate = hosts * arguments.pages / cpu_s
        print(
            f"| {hosts:,} | {wall_s:.1f} | {cpu_s:.1f} | {rate:.0f} | {delays_s:.0f} | {ratio:.2f} | {rss:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
