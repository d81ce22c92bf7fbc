"""A broker that comes back with an older store: a disk that was put back, a snapshot of a machine.

What the broker acknowledged after the copy is gone from it. What owners had applied by then is in SQL. So the fault
waits, while workers are stopped and clients send nothing, until owners have applied everything that was acknowledged:
then nothing may be lost at all. Afterwards the owners of one master reach the broker later than workers and the other
master do, so that new messages overtake the positions from before.
"""

import asyncio
import shutil
import signal
import time
from collections.abc import Callable
from typing import Final

from tests.support.faults.engine_faults import signalled
from tests.support.faults.faulted_cluster import START_S, WORKERS, FaultedCluster
from tests.support.faults.history_collector import left_in_streams
from tests.support.faults.plan import Fault, FaultTarget

MESSAGES: Final = (5, 120)
"""How many reports are gone from the stream."""
PATIENCE_S: Final = 10.0
"""For so many reports; a cluster that publishes fewer meanwhile loses those."""
LATE_S: Final = 2.0
"""How much longer than the hold the leader is kept from the broker."""
_LOOK_S: Final = 0.05


def put_back(rig: FaultedCluster, fault: Fault) -> None:
    """Kill the broker after some further messages, and start it with the store from before them."""
    least, max_count = MESSAGES
    wanted, broker = least + fault.draw % (max_count - least), rig.cluster.broker
    store, copy = broker.embedded.folder / "store", broker.embedded.folder / "store.before"
    before = _last(rig)
    with broker.stopped():  # what a server that stands still has written is what a kill would leave
        shutil.copytree(store, copy)
    _until(lambda: _last(rig) >= before + wanted, PATIENCE_S)
    while not _killed_when_all_is_applied(rig):
        asyncio.run(broker.restart())
    shutil.rmtree(store)
    copy.rename(store)
    leader = rig.named(FaultTarget.LEADER, fault.draw)
    rig.links.cut(leader, FaultTarget.BROKER)
    try:
        asyncio.run(broker.restart())
        time.sleep(fault.hold_s + LATE_S)
    finally:
        rig.links.heal(leader, FaultTarget.BROKER)


def _killed_when_all_is_applied(rig: FaultedCluster) -> bool:
    """Kill the broker; return whether owners had applied everything that was published by then."""
    workers = [rig.cluster.members[name].process for name in WORKERS]
    pids = [worker.pid for worker in workers if worker.poll() is None]
    with rig.quiet:
        signalled(pids, signal.SIGSTOP)
        try:
            heard = -1
            while heard != rig.post.heard:
                heard = rig.post.heard
                if not _until(lambda: not _unapplied(rig), START_S):
                    raise AssertionError(f"reports were not applied within {START_S} s: {_unapplied(rig)}")
            rig.cluster.broker.kill()
            time.sleep(_LOOK_S)  # what the broker passed on before it died arrives
            return heard == rig.post.heard
        finally:
            signalled(pids, signal.SIGCONT)
            rig.went_on_ns.append(time.monotonic_ns())


def _last(rig: FaultedCluster) -> int:
    """The last sequence of the stream of reports."""

    async def read() -> int:
        async with rig.cluster.broker.broker(declare=False) as broker:
            return (await broker.reports_state()).last_sequence

    return asyncio.run(read())


def _unapplied(rig: FaultedCluster) -> list[str]:
    return [left for left in asyncio.run(left_in_streams(rig.cluster)) if " reports of " in left]


def _until(true: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_S)
    return True
