"""What starting costs: `orb --help`, a crawl of one page, `orb show` of it, and `orb up` until it is ready and idle.

    orb bench start_up [--rounds 3] [--idle 60] [--before FOLDER]

Each figure is the median of the rounds, with the bytecode that an installation has. CPU seconds are those of the whole
process tree, engines included (`tests.support.processes.resource_meter`). `orb up` runs with two masters and two
workers: first in an empty folder, then again in the same one. What it uses when idle is read from the processes that
live, over `--idle` seconds.

With `--before`, the code in FOLDER is measured in turn with this one: a clone of another commit, whose `./orb version`
was run once. The ratios of both tell what changed, whatever the speed of the machine.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tests.support.processes import resource_meter
from tests.support.processes.orb_command import ROOT
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import serve

Figure = tuple[float, float]
"""CPU seconds and seconds."""

_SETTLE_S: Final = 15.0
_METER: Final = Path(resource_meter.__file__)


@dataclass(frozen=True)
class Code:
    """A clone whose `orb` is measured, its interpreter, and the folder for what it writes."""

    root: Path
    python: Path
    folder: Path

    def metered(self, *arguments: str | Path) -> Figure:
        """Run `orb` to its end."""
        report = self.folder / "report.json"
        line = [sys.executable, _METER, report, self.python, "-m", "orb", *arguments]
        subprocess.run(line, cwd=self.root, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        measured = json.loads(report.read_text())
        if measured["returncode"] != 0:
            raise RuntimeError(f"{line} ended with {measured['returncode']}")
        return measured["cpu_s"], measured["wall_s"]

    def up(self, name: str, idle_s: float = 0.0) -> tuple[Figure, float]:
        """Start a cluster. Return what it took until ready, and the share of a core when idle (0 if `idle_s` is 0)."""
        started = time.monotonic()
        line: list[str | Path] = [
            self.python,
            "-m",
            "orb",
            "up",
            "--json",
            "--dir",
            self.folder / name,
            "--http",
            "127.0.0.1:0",
        ]
        with subprocess.Popen(line, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            try:
                assert process.stdout is not None
                if not process.stdout.readline():
                    raise RuntimeError(f"{line} ended with {process.wait()}")
                ready_s = time.monotonic() - started
                command = psutil.Process(process.pid)
                ready = used(command), ready_s
                share = 0.0
                if idle_s:
                    time.sleep(_SETTLE_S)  # what a start leaves to do is not idle
                    before, begun = used(command), time.monotonic()
                    time.sleep(idle_s)  # the time that is measured
                    share = (used(command) - before) / (time.monotonic() - begun)
            finally:
                process.terminate()
        return ready, share


def used(command: psutil.Process) -> float:
    """Return the CPU seconds of the processes that live."""
    return sum(sum(process.cpu_times()[:2]) for process in (command, *command.children(recursive=True)))


def compiled(root: Path) -> None:
    """Write the bytecode of a clone's packages as its set-up does, and let commands use it."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for package in ("api", "cli", "shared", "workers"):
        compileall.compile_dir(root / package, quiet=1)


def row(what: str, codes: list[Code], rounds: int, measure: Callable[[Code, int], Figure]) -> None:
    """Print the medians of `rounds` for each code, and the medians of the ratios of the rounds to those before."""
    turns = [[measure(code, turn) for code in codes] for turn in range(rounds)]
    cells = [statistics.median(turn[n][part] for turn in turns) for n in range(len(codes)) for part in (0, 1)]
    if len(codes) > 1:
        cells += [statistics.median(new[part] / old[part] for new, old in turns) for part in (0, 1)]
    print(f"| {what} | {' | '.join(f'{cell:.2f}' for cell in cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=60.0, metavar="S")
    parser.add_argument("--before", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)  # the launcher's, which names this clone
    with tempfile.TemporaryDirectory(prefix="orb-start-") as name:
        codes = [Code(ROOT, Path(sys.executable), Path(name, "now"))]
        if arguments.before is not None:
            before = arguments.before.resolve()
            codes.append(Code(before, before / ".venv" / "bin" / "python", Path(name, "before")))
        for code in codes:
            code.folder.mkdir()
            compiled(code.root)
        more = " CPU s before | s before | ratio of CPU s | ratio of s |" if len(codes) > 1 else ""
        print(f"| what | CPU s | s |{more}\n|---|{'--:|' * (2 if not more else 6)}")

        def measure(what: str, one: Callable[[Code, int], Figure]) -> None:
            row(what, codes, arguments.rounds, one)

        measure("`orb --help`", lambda code, _: code.metered("--help"))
        with serve(Path(name, "web.log"), SyntheticSite(pages=1)) as web:
            crawl = ("crawl", f"{web.origins[0]}/", "--delay", "0", "--allow-net", "127.0.0.0/8", "--out")
            measure("`orb crawl` of one page", lambda code, n: code.metered(*crawl, code.folder / f"{n}.crawl"))
        measure("`orb show`", lambda code, _: code.metered("show", code.folder / "0.crawl"))
        measure("`orb up`, first", lambda code, n: code.up(f"{n}.cluster")[0])
        measure("`orb up`, again", lambda code, n: code.up(f"{n}.cluster")[0])
        shares = [[code.up("0.cluster", arguments.idle)[1] for code in codes] for _ in range(arguments.rounds)]
        idle = [100 * statistics.median(share) for share in zip(*shares, strict=True)]
        print(f"\nidle cluster: {idle[0]:.1f} % of a core")
        if len(codes) > 1:
            ratio = statistics.median(now / old for now, old in shares)
            print(f"idle cluster before: {idle[1]:.1f} %, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
