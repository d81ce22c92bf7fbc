"""`orb bench pauses`: garbage collections and event-loop lag of masters and workers under load.

    orb bench pauses [--seconds 600] [--plain]

Two masters and two workers run three crawls of documentation without a delay, each on a host of its own, on SQLite.
Pauses are CPU milliseconds of the loop's thread (`tests.support.pause_meter`). With `--plain` Python decides on full
collections by itself. `full` are full collections: their number and the longest one.
"""

import argparse
import json
import signal
import tempfile
import time
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from tests.support import pause_meter
from tests.support.processes.cluster import cluster
from tests.support.web.corpus_site import nginx

CRAWLS = 3


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that is not below `share` of all."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def loaded(folder: Path, seconds: float, *, plain: bool) -> dict[str, list[dict[str, Any]]]:
    """Run the cluster for so long. Return what each member measured, by role."""
    measured = folder / "pauses"
    measured.mkdir()
    settings = {pause_meter.FOLDER: str(measured)} | ({pause_meter.PLAIN: "1"} if plain else {})
    with ExitStack() as stack:
        starts = [stack.enter_context(nginx(folder / f"web-{n}", copies=40)) for n in range(CRAWLS)]
        members = stack.enter_context(cluster(folder))
        members.entry = pause_meter.ENTRY
        for number, start in enumerate(starts):
            spec = {"name": f"crawl-{number}", "seeds": [start], "politeness": {"delay_s": 0}}
            members.declare(spec | {"budget": {"max_pages_per_host": None}})
        for number in range(2):
            members.master(f"m{number}", **settings)
            members.worker(f"w{number}", **settings)
        members.wait_working("w0", "w1")
        time.sleep(seconds)
        print(f"{len(members.pages()):,} pages in {seconds:.0f} s\n")
        for name in ("w0", "w1", "m0", "m1"):
            members.members[name].signal(signal.SIGTERM)
            members.members[name].process.wait(120)
    found: dict[str, list[dict[str, Any]]] = {"master": [], "worker": []}
    for path in measured.iterdir():
        found[path.name.partition("-")[0]].append(json.loads(path.read_text()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--plain", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="orb-pauses-") as name:
        found = loaded(Path(name), arguments.seconds, plain=arguments.plain)
    print("| role | collections | p99 ms | full | longest ms | loop lag p50 ms | p99 ms | longest ms |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for role, members in sorted(found.items()):
        for member in members:
            full, lags = member["collections"]["2"], member["lags"]
            every: list[float] = list(chain.from_iterable(member["collections"].values()))
            print(
                f"| {role} | {len(every):,} | {percentile(every, 0.99):.1f} | {len(full)} | {max(full, default=0):.0f} "
                f"| {percentile(lags, 0.5):.1f} | {percentile(lags, 0.99):.1f} | {max(lags, default=0):.0f} |"
            )


if __name__ == "__main__":
    main()
