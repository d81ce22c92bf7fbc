"""A master that is stopped inside a transaction, for longer than others wait for the lock that it holds."""

import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from tests.support.faults.faulted_cluster import START_S, AppliedProgress, FaultedCluster

BUSY_S: Final = 10.0
"""How long the product waits for the lock of a SQLite file."""
STILL_S: Final = BUSY_S + 2.0
"""The least time for which the master stays stopped."""
COMMIT_S: Final = 1.0
"""How long a commit of the master takes until it is stopped in one."""
SURE_S: Final = 0.2
"""A lock that is held for so long is held by a commit that takes `COMMIT_S`."""
_LOOK_S: Final = 0.01


def frozen(
    rig: FaultedCluster, victim: str, whole: Callable[[AppliedProgress, frozenset[int]], int]
) -> tuple[int, int]:
    """Stop the master and wait until `whole`; then let it go on, or start it again if it was killed meanwhile.

    Return when it was stopped and when the cluster was whole without it. Over a SQLite file the master is stopped
    while it holds the file's lock. Over PostgreSQL it is stopped at any moment.
    """
    member = rig.cluster.members[victim]
    before, owned = rig.standing(), rig.owned(victim)
    if rig.served is None:
        _stop_inside_a_commit(rig, victim)
    else:
        member.signal(signal.SIGSTOP)
    stopped_ns = time.monotonic_ns()
    try:
        whole_ns = whole(before, owned)
        time.sleep(max(0.0, STILL_S - (time.monotonic_ns() - stopped_ns) / 1e9))
    finally:
        if member.process.poll() is None:
            member.signal(signal.SIGCONT)
    if member.process.poll() is not None:
        rig.start(victim)
    rig.cluster.wait_until(lambda: rig.back(victim), f"{victim} is back", START_S)
    return stopped_ns, whole_ns


def _stop_inside_a_commit(rig: FaultedCluster, victim: str) -> None:
    """Make the master's commits take long, and stop it when another process finds the file locked.

    A lock that is free after the stop was another one's: then the master goes on, and the next commit is waited for.
    """
    member, until = rig.cluster.members[victim], time.monotonic() + START_S
    rig.dials[victim].turn(commit_s=COMMIT_S)
    try:
        while time.monotonic() < until:
            if not _locked_for(rig, SURE_S):
                time.sleep(_LOOK_S)
                continue
            member.signal(signal.SIGSTOP)
            if _locked_for(rig, COMMIT_S + SURE_S):
                return
            member.signal(signal.SIGCONT)
    finally:
        rig.dials[victim].turn()
    raise AssertionError(f"{victim} made no commit within {START_S} s")


def _locked_for(rig: FaultedCluster, seconds: float) -> bool:
    """Return whether the file's lock is held by others, whenever looked at within so many seconds."""
    until = time.monotonic() + seconds
    with closing(sqlite3.connect(rig.cluster.database, timeout=0, isolation_level=None)) as connection:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
            else:
                connection.execute("ROLLBACK")
                return False
            if time.monotonic() >= until:
                return True
            time.sleep(_LOOK_S)
