"""A run: faults drawn from a seed, done to a cluster under traffic, and the verdict. `./orb faults --seed N --rounds R`
is `python -m tests.support.faults.exploration`.
"""

import argparse
import asyncio
import logging
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import structlog

from tests.support.engines.postgres import PostgresServer, postgres, server_programs
from tests.support.faults import fairness
from tests.support.faults.fault_injection import struck
from tests.support.faults.faulted_cluster import rig
from tests.support.faults.history import History, Round
from tests.support.faults.history_collector import gathered, left_in_streams
from tests.support.faults.plan import Fault, plan
from tests.support.faults.report import report
from tests.support.faults.traffic import traffic
from tests.support.faults.validation import Violation, validate
from tests.support.processes.cluster import LOOK_S, Cluster
from tests.support.web.log_judge import TooLittleTraffic
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web, serve

SITES: Final = (
    SyntheticSite(pages=400, hosts=8, missing=20, flaky=20, redirects=20, latency_s=(0.0, 0.05)),
    SyntheticSite(pages=250, hosts=6, seed=2, missing=10, redirects=30, loops=10, private=20),
)
FINISH_S: Final = 180.0
"""How long crawls may take to finish after the last fault; one that has not is lost, which the validator says."""
FIRST: Final = 40
"""Requests before the first fault."""


def explored(
    folder: Path, seed: int, faults: Sequence[Fault], server: PostgresServer | None, *, fair: bool = False
) -> History:
    """The history of a run in `folder`, the faults of which were drawn from `seed`; on a SQLite file without a
    server. `fair`: crawls share hosts and a pool for a while before the first fault."""
    begun = time.monotonic()
    with ExitStack() as stack:
        web = stack.enter_context(serve(folder / "web.jsonl", *SITES, *(fairness.SITES if fair else ())))
        cluster = stack.enter_context(rig(folder, server))
        done: list[Round] = []
        shared = fairness.shared(cluster, web, len(SITES)) if fair else ()
        with traffic(cluster, web, len(SITES)) as clients:
            web.wait_served(_served(web) + FIRST)
            for number, fault in enumerate(faults, start=1):
                time.sleep(fault.after_s)
                then_at_once = number < len(faults) and faults[number].after_s == 0.0
                done.append(struck(cluster, number, fault, then_at_once=then_at_once))
                _say(done[-1], begun)
            web.wait_served(_served(web) + FIRST)
        _finish(cluster.cluster)
        return gathered(seed, done, cluster, clients, web, begun, shared)


def _served(web: Web) -> int:
    return sum(exchange.complete and exchange.path != "/robots.txt" for exchange in web.log())


def _finish(cluster: Cluster) -> None:
    """Wait for all crawls to be finished or collected and for the streams to be empty; what does not come is the
    validator's to say."""
    until = time.monotonic() + FINISH_S
    waiting = "SELECT count(*) FROM crawls WHERE state <> 'finished' AND collected_at_ms IS NULL"
    while time.monotonic() < until:
        if cluster.query(waiting) == [(0,)] and not asyncio.run(left_in_streams(cluster)):
            return
        time.sleep(LOOK_S)


def _say(round: Round, begun: float) -> None:
    """Print a line as it happens."""
    recovery = "" if round.recovery_s is None else f", whole after {round.recovery_s:.1f} s"
    skipped = "" if round.skipped is None else f", not done: {round.skipped}"
    at_s = round.begun_ns / 1e9 - begun
    print(f"{at_s:6.1f} s  {round.number:3}  {round.fault.name} ({round.victim}, {round.fault.hold_s:.1f} s)"
          f"{recovery}{skipped}", file=sys.stderr, flush=True)  # fmt: skip


def command(seed: int, rounds: int, *, sqlite: bool) -> str:
    """What repeats the draws of a run."""
    return f"./orb faults --seed {seed} --rounds {rounds}" + (" --sqlite" if sqlite else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every promise was kept; 1: one was broken, or too little went on to say so."""
    parser = argparse.ArgumentParser(prog="orb faults", description=__doc__.partition(".")[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=None, help="of the draws (default: a new one)")
    parser.add_argument("--rounds", type=int, default=20, help="faults, one after another (default: %(default)s)")
    parser.add_argument("--sqlite", action="store_true", help="over a SQLite file instead of PostgreSQL")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave logs and databases there")
    given = parser.parse_args(arguments)
    seed = secrets.randbelow(1 << 31) if given.seed is None else given.seed
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    print(command(seed, given.rounds, sqlite=given.sqlite), file=sys.stderr, flush=True)
    folder = Path(tempfile.mkdtemp(prefix="orb-f-"))
    try:
        with ExitStack() as stack:
            server = None if given.sqlite else stack.enter_context(postgres(_programs()))
            history = explored(
                folder, seed, plan(seed, given.rounds, served_database=server is not None), server, fair=True
            )
    finally:
        if given.keep is not None:
            shutil.copytree(folder, given.keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock*", "ports"))
        shutil.rmtree(folder, ignore_errors=True)
    try:
        violations = validate(history)
    except TooLittleTraffic as little:
        print(f"too little traffic: {little}", file=sys.stderr)
        return 1
    print(report([history], violations))
    return told(violations)


def told(violations: Sequence[Violation]) -> int:
    """Say each of them; 1 if there are any."""
    for violation in violations:
        print(f"{violation.promise.value}: {violation.evidence}", file=sys.stderr)
    return 1 if violations else 0


def _programs() -> Path:
    found = server_programs()
    if found is None:
        raise SystemExit("PostgreSQL's programs are not installed; --sqlite does without")
    return found


if __name__ == "__main__":
    sys.exit(main())
