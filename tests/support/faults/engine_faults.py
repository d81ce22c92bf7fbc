"""What is done to etcd, the broker and the database: ended and started again, all of it or so much that the rest can do
nothing, and slowed down."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Sequence
from typing import Final

from tests.support.engines.etcd import EtcdServer, start_all
from tests.support.faults.faulted_cluster import FaultedCluster
from tests.support.faults.plan import Fault, FaultKind, FaultTarget

FLUSH_MS: Final = 100
"""So much longer the flush of a slow database takes."""
STILL_S: Final = 0.09
AWAKE_S: Final = 0.01
"""An engine that is slow stands still and goes on, in turns."""


def ended(rig: FaultedCluster, fault: Fault) -> None:
    """End it as the fault says, and start it again after the hold."""
    cluster = rig.cluster
    match fault.who:
        case FaultTarget.ETCD:
            struck = _struck(rig, fault)
            _end_etcd(struck, fault)
            time.sleep(fault.hold_s)
            asyncio.run(start_all(struck))
        case FaultTarget.BROKER:
            if fault.kind is FaultKind.RESTART:
                asyncio.run(cluster.broker.embedded.stop())
            else:
                cluster.broker.kill()
            time.sleep(fault.hold_s)
            asyncio.run(cluster.broker.restart())
        case _:
            assert fault.who is FaultTarget.DATABASE, fault.name
            assert rig.served is not None
            if fault.kind is FaultKind.RESTART:
                rig.served.stop()
            else:
                rig.served.kill()
            time.sleep(fault.hold_s)
            rig.served.start()


def slowed(rig: FaultedCluster, fault: Fault) -> None:
    """Let it be slow for as long as the fault holds."""
    if fault.who is FaultTarget.DATABASE:
        assert rig.served is not None
        rig.served.slow_down(FLUSH_MS)
        try:
            time.sleep(fault.hold_s)
        finally:
            rig.served.slow_down(0)
        return
    pids = rig.pids(fault.who, fault.who)
    until = time.monotonic() + fault.hold_s
    while time.monotonic() < until:
        signalled(pids, signal.SIGSTOP)
        time.sleep(STILL_S)
        signalled(pids, signal.SIGCONT)
        time.sleep(AWAKE_S)


def signalled(pids: Sequence[int], number: int) -> None:
    """A signal to each, in order; one that has ended meanwhile is no matter."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _struck(rig: FaultedCluster, fault: Fault) -> list[EtcdServer]:
    """The servers of etcd that a fault is for."""
    every = list(rig.cluster.etcds)
    match fault.kind:
        case FaultKind.EMPTY:
            return every
        case FaultKind.QUORUM:
            leader = rig.etcd_leader()
            others = [server for server in every if server is not leader]
            return [leader, others[fault.draw % len(others)]]
        case _:
            return [rig.etcd_leader()]


def _end_etcd(servers: Sequence[EtcdServer], fault: Fault) -> None:
    for server in servers:
        if fault.kind is FaultKind.RESTART:
            asyncio.run(server.embedded.stop())
        else:
            server.kill()
    if fault.kind is FaultKind.EMPTY:
        for server in servers:
            shutil.rmtree(server.embedded.folder / "data")
