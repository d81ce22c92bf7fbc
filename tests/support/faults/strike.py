"""One round: a fault is done to whoever it is for, holds, and is over; then the cluster is awaited whole."""

import asyncio
import errno
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, assert_never

from tests.support.faults.history import Round
from tests.support.faults.plan import ENGINES, MEMBERS, Fault, Kind, Who
from tests.support.faults.rig import SMALL_DISK, Rig, Standing

WHOLE_S: Final = 90.0
"""How long a cluster may take to be whole again before a run is over; the figures of a report are far below."""

LATE_S: Final = (0.05, 0.4)
BALLAST: Final = "ballast"


def struck(rig: Rig, number: int, fault: Fault, *, then_at_once: bool) -> Round:
    """Do it. Returns when the cluster is whole again, or at once when the next fault is to strike the recovery."""
    skipped = rig.no_disk if fault.kind is Kind.FILL else None
    victim = _victim(rig, fault)
    begun_ns = over_ns = time.monotonic_ns()
    whole_ns = None
    if skipped is None and fault.kind is Kind.KILL and fault.who in MEMBERS:
        whole_ns = _bereaved(rig, fault, victim, then_at_once=then_at_once)
    elif skipped is None:
        over_ns = _done(rig, fault, victim)
        whole_ns = None if then_at_once else _whole(rig, rig.standing(), frozenset(), fault)
    return Round(number, fault, victim, begun_ns, over_ns, whole_ns, skipped)


def _bereaved(rig: Rig, fault: Fault, victim: str, *, then_at_once: bool) -> int | None:
    """Kill a member, which others are to replace while it is away; it comes back after the hold, or when they have."""
    before, owned = rig.standing(), rig.owned(victim)
    rig.cluster.members[victim].end()
    if then_at_once:
        time.sleep(fault.hold_s)
        whole_ns = None
    else:
        whole_ns = _whole(rig, before, owned, fault, dead=victim)
    rig.start(victim)
    if not then_at_once:
        rig.cluster.wait_until(lambda: rig.registered(victim), f"{victim} is back", WHOLE_S)
    return whole_ns


def _whole(rig: Rig, since: Standing, bereft: frozenset[int], fault: Fault, dead: str | None = None) -> int:
    """When it was."""
    rig.cluster.wait_until(lambda: rig.whole(since, bereft, dead), f"the cluster is whole after {fault.name}", WHOLE_S)
    return time.monotonic_ns()


def _victim(rig: Rig, fault: Fault) -> str:
    if fault.kind is Kind.FILL:
        return SMALL_DISK
    return fault.who.value if fault.who in ENGINES else rig.named(fault.who, fault.draw)


def _done(rig: Rig, fault: Fault, victim: str) -> int:
    """Carry it out, for as long as it holds; when it was over."""
    match fault.kind:
        case Kind.KILL | Kind.EMPTY:
            return _killed(rig, fault)
        case Kind.STOP:
            pids = rig.pids(fault.who, victim)
            with _stopped(pids):
                time.sleep(fault.hold_s)
                if fault.who is Who.WORKER:
                    rig.went_on_ns.append(time.monotonic_ns())
        case Kind.CUT | Kind.SILENCE | Kind.DELAY:
            assert fault.engine is not None
            _on_link(rig, fault, victim, fault.engine)
        case Kind.FILL:
            with _filled(rig.cluster.folder / SMALL_DISK):
                time.sleep(fault.hold_s)
        case _:
            assert_never(fault.kind)
    return time.monotonic_ns()


def _killed(rig: Rig, fault: Fault) -> int:
    cluster = rig.cluster
    match fault.who:
        case Who.ETCD:
            cluster.etcd.kill()
            if fault.kind is Kind.EMPTY:
                shutil.rmtree(cluster.etcd.embedded.folder / "data")
            time.sleep(fault.hold_s)
            cluster.restart_etcd()
        case Who.BROKER:
            cluster.broker.kill()
            time.sleep(fault.hold_s)
            asyncio.run(cluster.broker.restart())
        case Who.DATABASE:
            assert rig.served is not None
            rig.served.kill()
            time.sleep(fault.hold_s)
            rig.served.start()
        case Who.LEADER | Who.FOLLOWER | Who.WORKER:
            raise AssertionError(f"{fault.name}: see _bereaved")
        case _:
            assert_never(fault.who)
    return time.monotonic_ns()


def _on_link(rig: Rig, fault: Fault, member: str, engine: Who) -> None:
    match fault.kind:
        case Kind.CUT:
            rig.links.cut(member, engine)
        case Kind.SILENCE:
            rig.links.silence(member, engine)
        case _:
            least, most = LATE_S
            rig.links.delay(member, engine, least + (most - least) * (fault.draw % 100) / 100)
    try:
        time.sleep(fault.hold_s)
    finally:
        rig.links.heal(member, engine)


@contextmanager
def _stopped(pids: list[int]) -> Iterator[None]:
    """SIGSTOP to each, parents first, and SIGCONT; a child that has ended meanwhile is no matter."""
    _signalled(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _signalled(pids, signal.SIGCONT)


def _signalled(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


@contextmanager
def _filled(disk: Path) -> Iterator[None]:
    """No byte is free on the disk for the block."""
    path = disk / BALLAST
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    try:
        yield
    finally:
        path.unlink()
