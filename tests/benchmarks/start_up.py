"""What starting costs: `orb --help`, a crawl of one page, `orb show` of it, and `orb up` until it is ready and idle.

    orb bench start_up [--rounds 3] [--idle 60]

Each figure is the median of the rounds, with the bytecode that an installation has. CPU seconds are those of the whole
process tree, engines included (`tests.support.processes.resource_meter`). `orb up` runs with two masters and two
workers: first in an empty folder, then again in the same one. What it uses when idle is read from the processes that
live, over `--idle` seconds.
"""

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import psutil

from tests.support.processes.orb_command import ROOT, command_line
from tests.support.processes.up_process import upped
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import serve

Figure = tuple[float, float]
"""CPU seconds and seconds."""

_SETTLE_S: Final = 5.0


def metered(folder: Path, *arguments: str | Path) -> Figure:
    """Run `orb` to its end."""
    report = folder / "report.json"
    line = [
        sys.executable,
        "-m",
        "tests.support.processes.resource_meter",
        os.fspath(report),
        *command_line(*arguments),
    ]
    subprocess.run(line, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    measured = json.loads(report.read_text())
    if measured["returncode"] != 0:
        raise RuntimeError(f"{line} ended with {measured['returncode']}")
    return measured["cpu_s"], measured["wall_s"]


def used(command: psutil.Process) -> float:
    """Return the CPU seconds of the processes that live."""
    return sum(sum(process.cpu_times()[:2]) for process in (command, *command.children(recursive=True)))


def up(folder: Path, idle_s: float) -> tuple[Figure, float]:
    """Start a cluster. Return what it took until ready, and the share of a core when idle (0 if `idle_s` is 0)."""
    started = time.monotonic()
    with upped(folder) as cluster:
        ready_s = time.monotonic() - started
        command = psutil.Process(cluster.process.pid)
        ready = used(command), ready_s
        share = 0.0
        if idle_s:
            time.sleep(_SETTLE_S)
            before, begun = used(command), time.monotonic()
            time.sleep(idle_s)
            share = (used(command) - before) / (time.monotonic() - begun)
        cluster.interrupted()
        return ready, share


def compiled() -> None:
    """Write the bytecode of this clone's packages as its set-up does, and let commands use it."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for package in ("api", "cli", "shared", "workers"):
        compileall.compile_dir(ROOT / package, quiet=1)


def row(what: str, figures: list[Figure]) -> None:
    cpu_s, wall_s = (statistics.median(values) for values in zip(*figures, strict=True))
    print(f"| {what} | {cpu_s:.2f} | {wall_s:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=60.0, metavar="S")
    arguments = parser.parse_args()
    compiled()
    rounds = range(arguments.rounds)
    print("| what | CPU s | s |\n|---|--:|--:|")
    with tempfile.TemporaryDirectory(prefix="orb-start-") as name:
        folder = Path(name)
        row("`orb --help`", [metered(folder, "--help") for _ in rounds])
        with serve(folder / "web.log", SyntheticSite(pages=1)) as web:
            crawl = ("crawl", f"{web.origins[0]}/", "--delay", "0", "--allow-net", "127.0.0.0/8", "--out")
            row("`orb crawl` of one page", [metered(folder, *crawl, folder / f"{n}.crawl") for n in rounds])
        row("`orb show`", [metered(folder, "show", folder / "0.crawl") for _ in rounds])
        row("`orb up`, first", [up(folder / f"{n}.cluster", 0)[0] for n in rounds])
        row("`orb up`, again", [up(folder / f"{n}.cluster", 0)[0] for n in rounds])
        idle = up(folder / "0.cluster", arguments.idle)[1]
        print(f"\nidle cluster: {100 * idle:.1f} % of a core")


if __name__ == "__main__":
    main()
