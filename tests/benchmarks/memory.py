"""`orb bench memory`: crawls a large synthetic web and prints the resident memory of every process on the way.

What is defended: memory is proportional to hosts in motion, not to URLs, so master, workers and engine are flat from
the first quarter of the crawl to its end. Progress is the web server's own count of pages it has served.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tests.support.crawler_commands import ROOT
from tests.support.web.exchange_log import Exchange
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web, serve

MIB: Final = 1 << 20
MARKS: Final = (25, 50, 75, 100)
STALLED_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Resident bytes by role at a part (per cent) of the pages; several workers are `worker 1`, `worker 2` by age."""

    mark: int
    pages: int
    elapsed_s: float
    resident: dict[str, int]


def role_of(process: psutil.Process) -> str:
    """What a process of the tree is for, by its command line."""
    line = " ".join(process.cmdline())
    if "nats-server" in line:
        return "nats-server"
    if "master" in line:
        return "master"
    if "resource_tracker" in line:
        return "tracker"
    return "worker" if "worker" in line else "command"


def resident(root: psutil.Process) -> dict[str, int]:
    """Resident bytes of `root` and each of its descendants, by role."""
    found: dict[str, int] = {}
    for process in sorted([root, *root.children(recursive=True)], key=psutil.Process.create_time):
        try:
            role, size = role_of(process), process.memory_info().rss
        except psutil.Error:
            continue  # it ended between the two looks
        number = 1 + sum(name == role or name.startswith(f"{role} ") for name in found)
        found[role if number == 1 and role != "worker" else f"{role} {number}"] = size
    return found


def pages_in(log: Sequence[Exchange]) -> int:
    """How many pages were served in `log`."""
    return sum(exchange.status == 200 and exchange.path != "/robots.txt" for exchange in log)


def watch(process: subprocess.Popen[bytes], web: Web, pages: int) -> list[Sample]:
    """Samples at every mark until the process ends or makes no progress for `STALLED_S`."""
    started = moved = time.monotonic()
    root = psutil.Process(process.pid)
    marks = [mark for mark in MARKS if mark < 100]
    samples: list[Sample] = []
    served = 0
    latest: dict[str, int] = {}
    while process.poll() is None:
        fresh = pages_in(web.new())
        now = time.monotonic()
        served += fresh
        moved = now if fresh else moved
        if now - moved > STALLED_S:
            print(f"no page was asked for in {STALLED_S:.0f} s: ending the crawl", file=sys.stderr)
            process.terminate()
            process.wait(60)
            break
        # The last sample with workers alive stands for 100 %: at the very end they are gone.
        seen = resident(root) if psutil.pid_exists(process.pid) else {}
        latest = seen if len(seen) >= len(latest) else latest
        while marks and served >= pages * marks[0] / 100:
            samples.append(Sample(marks.pop(0), served, now - started, seen))
        if served >= pages and not marks and (not samples or samples[-1].mark != 100):
            samples.append(Sample(100, served, now - started, seen))
        time.sleep(0.5)
    served += pages_in(web.new())
    if not samples or samples[-1].mark != 100:
        mark = min(100, served * 100 // pages)
        samples.append(Sample(mark, served, time.monotonic() - started, latest))
    return samples


def markdown(samples: Sequence[Sample]) -> str:
    """A row per process, a column per mark, in MiB."""
    roles = sorted({role for sample in samples for role in sample.resident})
    heads = [f"{sample.mark} % ({sample.pages:,} pages, {sample.elapsed_s:.0f} s)" for sample in samples]
    lines = ["| RSS, MiB | " + " | ".join(heads) + " |", "|---|" + "--:|" * len(samples)]
    for role in roles:
        cells = [f"{sample.resident[role] / MIB:.0f}" if role in sample.resident else "-" for sample in samples]
        lines.append(f"| {role} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the crawl finished with every page, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="memory", description="Memory of a crawl of many synthetic URLs.")
    parser.add_argument("--pages", type=int, default=200_000)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--workers", type=int, help="worker processes (default: orb's own)")
    parser.add_argument("--json", action="store_true", help="print the samples as JSON instead of the table")
    options = parser.parse_args(arguments)
    site = SyntheticSite(pages=options.pages, hosts=options.hosts, body_bytes=4_000)
    with tempfile.TemporaryDirectory(prefix="orb-bench-") as home, serve(Path(home, "web.jsonl"), site) as web:
        spec = {
            "seeds": [f"{web.origins[0]}/"],
            "scope": {"mode": "any"},
            "politeness": {"delay_s": 0},
            "egress": {"allow": ["127.0.0.0/8"]},
        }
        Path(home, "crawl.yaml").write_text(json.dumps(spec))  # JSON is YAML
        command = [
            *(sys.executable, "-m", "orb", "crawl", "--spec", str(Path(home, "crawl.yaml"))),
            *("--out", str(Path(home, "crawl")), "--json", "--no-progress"),
            *(("--workers", str(options.workers)) if options.workers else ()),
        ]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            samples = watch(process, web, options.pages)
        finally:
            if process.poll() is None:
                process.terminate()
            code = process.wait()
    if options.json:
        print(json.dumps([{"mark": s.mark, "pages": s.pages, "s": s.elapsed_s, "rss": s.resident} for s in samples]))
    else:
        print(markdown(samples))
    complete = code == 0 and samples[-1].pages >= options.pages
    if not complete:
        print(f"the crawl ended with {code} after {samples[-1].pages} of {options.pages} pages", file=sys.stderr)
    return 0 if complete else 1


if __name__ == "__main__":
    raise SystemExit(main())
