"""One round: inject a fault into its target, hold it, end it, and wait until the cluster is whole."""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, assert_never

from tests.support.faults import broker_rollback, engine_faults, frozen_master, quota
from tests.support.faults.disks import filled
from tests.support.faults.faulted_cluster import MASTERS, SMALL_DISK, START_S, WHOLE_S, AppliedProgress, FaultedCluster
from tests.support.faults.history import Round
from tests.support.faults.plan import ENGINES, MEMBERS, Fault, FaultKind, FaultTarget

LATE_S: Final = (0.05, 0.4)
SYNC_S: Final = (0.2, 1.0)
COMMIT_S: Final = (0.1, 0.5)
STEP_S: Final = 60.0
LETTERS_S: Final = 0.5
"""Between two batches of letters while a fault holds."""


def struck(rig: FaultedCluster, number: int, fault: Fault, *, then_at_once: bool) -> Round:
    """Do it. Returns when the cluster is whole again, or at once when the next fault is to strike the recovery."""
    skipped = rig.no_disk if fault.kind is FaultKind.FILL and fault.who in _with_a_disk(rig) else None
    victim = _victim(rig, fault)
    begun_ns = over_ns = time.monotonic_ns()
    whole_ns = None
    if fault.kind is FaultKind.FREEZE:
        stopped_ns, whole_ns = frozen_master.frozen(rig, victim, partial(_whole, rig, fault=fault, dead=victim))
        return Round(number, fault, victim, begun_ns, stopped_ns, whole_ns)
    if skipped is None and fault.kind in (FaultKind.KILL, FaultKind.RESTART) and fault.who in MEMBERS:
        whole_ns = _bereaved(rig, fault, victim, then_at_once=then_at_once)
    elif skipped is None:
        over_ns = _done(rig, fault, victim)
        whole_ns = None if then_at_once else _whole(rig, rig.standing(), frozenset(), fault)
    return Round(number, fault, victim, begun_ns, over_ns, whole_ns, skipped)


def _with_a_disk(rig: FaultedCluster) -> tuple[FaultTarget, ...]:
    """Those whose disk is one that was mounted for it."""
    return (FaultTarget.WORKER,) if rig.served is None else (FaultTarget.WORKER, FaultTarget.DATABASE)


def _bereaved(rig: FaultedCluster, fault: Fault, victim: str, *, then_at_once: bool) -> int | None:
    """End a member, which others are to replace while it is away; it comes back after the hold, or when they have."""
    before, owned = rig.standing(), rig.owned(victim)
    member = rig.cluster.members[victim]
    if fault.kind is FaultKind.RESTART:
        member.signal(signal.SIGTERM)
        member.process.wait(START_S)
    member.end()
    if then_at_once:
        time.sleep(fault.hold_s)
        whole_ns = None
    else:
        whole_ns = _whole(rig, before, owned, fault, dead=victim)
    rig.start(victim)
    if not then_at_once:
        rig.cluster.wait_until(lambda: rig.back(victim), f"{victim} is back", START_S)
    return whole_ns


def _whole(
    rig: FaultedCluster, since: AppliedProgress, bereft: frozenset[int], fault: Fault, dead: str | None = None
) -> int:
    """When it was. Its bound counts from when all processes have come up: on a machine with much else to do a start may
    take longer than all that follows."""
    cluster = rig.cluster
    try:
        cluster.wait_until(lambda: rig.up(dead), f"all members are up after {fault.name}", START_S)
        cluster.wait_until(lambda: rig.whole(since, bereft, dead), f"the cluster is whole after {fault.name}", WHOLE_S)
    except AssertionError as error:
        error.add_note(f"{since} became {rig.described()}; {sorted(bereft)} were to change hands")
        raise
    return time.monotonic_ns()


def _victim(rig: FaultedCluster, fault: Fault) -> str:
    if (fault.kind, fault.who) == (FaultKind.FILL, FaultTarget.WORKER):
        return SMALL_DISK
    return fault.who.value if fault.who in ENGINES else rig.named(fault.who, fault.draw)


def _done(rig: FaultedCluster, fault: Fault, victim: str) -> int:
    """Carry it out, for as long as it holds; when it was over."""
    match fault.kind:
        case FaultKind.KILL | FaultKind.RESTART | FaultKind.QUORUM | FaultKind.EMPTY:
            engine_faults.ended(rig, fault)
        case FaultKind.STOP:
            with _stopped(rig.pids(fault.who, victim)):
                time.sleep(fault.hold_s)
                if fault.who is FaultTarget.WORKER:
                    rig.went_on_ns.append(time.monotonic_ns())
        case FaultKind.SLOW | FaultKind.FILL if fault.who is FaultTarget.DATABASE and rig.served is None:
            with ExitStack() as turned:
                for master in MASTERS:  # the leader is known at the end only
                    if fault.kind is FaultKind.FILL:
                        turned.enter_context(_turned(rig, master, full=True))
                    else:
                        turned.enter_context(_turned(rig, master, commit_s=_drawn(COMMIT_S, fault)))
                time.sleep(fault.hold_s)
        case FaultKind.SLOW if fault.who in ENGINES:
            engine_faults.slowed(rig, fault)
        case FaultKind.SLOW:
            with _turned(rig, victim, sync_s=_drawn(SYNC_S, fault)):
                time.sleep(fault.hold_s)
        case FaultKind.STEP:
            with _turned(rig, victim, clock_s=STEP_S if fault.draw % 2 else -STEP_S):
                time.sleep(fault.hold_s)
        case FaultKind.CUT | FaultKind.SILENCE | FaultKind.DELAY:
            assert fault.engine is not None
            _on_link(rig, fault, victim, fault.engine)
        case FaultKind.CORRUPT | FaultKind.REPEAT:
            _on_letters(rig, fault)
        case FaultKind.PUT_BACK:
            broker_rollback.put_back(rig, fault)
        case FaultKind.FILL if fault.who is FaultTarget.BROKER:
            with rig.post.full():
                time.sleep(fault.hold_s)
        case FaultKind.FILL if fault.who is FaultTarget.ETCD:
            with quota.used_up(rig.cluster.endpoints):
                time.sleep(fault.hold_s)
        case FaultKind.FILL if fault.who is FaultTarget.DATABASE:
            assert rig.tables is not None
            with filled(rig.tables):
                time.sleep(fault.hold_s)
        case FaultKind.FILL:
            with filled(rig.cluster.folder / SMALL_DISK):
                time.sleep(fault.hold_s)
        case FaultKind.FREEZE:
            raise AssertionError("a round of its own")
        case _:
            assert_never(fault.kind)
    return time.monotonic_ns()


def _drawn(least_most: tuple[float, float], fault: Fault) -> float:
    least, max_count = least_most
    return least + (max_count - least) * (fault.draw % 100) / 100


def _on_link(rig: FaultedCluster, fault: Fault, member: str, engine: FaultTarget) -> None:
    match fault.kind:
        case FaultKind.CUT:
            rig.links.cut(member, engine)
        case FaultKind.SILENCE:
            rig.links.silence(member, engine)
        case _:
            rig.links.delay(member, engine, _drawn(LATE_S, fault))
    try:
        time.sleep(fault.hold_s)
    finally:
        rig.links.heal(member, engine)


def _on_letters(rig: FaultedCluster, fault: Fault) -> None:
    """A batch of them at once, and one after another for as long as it holds."""
    until = time.monotonic() + fault.hold_s
    batch = 0
    while batch == 0 or time.monotonic() < until:
        if fault.kind is FaultKind.CORRUPT:
            rig.post.corrupt(fault.draw + batch)
        else:
            rig.post.repeat(fault.draw + batch)
        batch += 1
        time.sleep(LETTERS_S)


@contextmanager
def _turned(
    rig: FaultedCluster,
    member: str,
    *,
    clock_s: float = 0.0,
    sync_s: float = 0.0,
    commit_s: float = 0.0,
    full: bool = False,
) -> Iterator[None]:
    """The member's dials for the block."""
    rig.dials[member].turn(clock_s=clock_s, sync_s=sync_s, commit_s=commit_s, full=full)
    try:
        yield
    finally:
        rig.dials[member].turn()


@contextmanager
def _stopped(pids: list[int]) -> Iterator[None]:
    """SIGSTOP to each, parents first, and SIGCONT; a child that has ended meanwhile is no matter."""
    engine_faults.signalled(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        engine_faults.signalled(pids, signal.SIGCONT)
