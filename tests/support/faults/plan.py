"""The plan of a run, drawn from a seed: faults and their targets in shuffled decks, so that a long run meets each."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Final


class FaultKind(StrEnum):
    """What is done: to a process or several; to the link between a member and an engine; to a clock, a disk, a store;
    to letters."""

    KILL = "kill"
    """SIGKILL, and a new start after the hold. Of etcd's three servers it is the leader, here and below."""
    STOP = "stop"
    """SIGSTOP, and SIGCONT after the hold."""
    RESTART = "restart"
    """Ended in good order, and started again after the hold."""
    QUORUM = "quorum"
    """SIGKILL to two of three, the leader among them; the third one can decide nothing."""
    EMPTY = "empty"
    """SIGKILL to all, and a start with nothing left."""
    SLOW = "slow"
    """Syncs to disk and commits take longer; an engine that cannot be told so is stopped nine tenths of the time."""
    STEP = "step"
    """The wall clock jumps a minute ahead or back, and returns after the hold."""
    CORRUPT = "corrupt"
    """Messages that no reader can decode."""
    REPEAT = "repeat"
    """Letters come again, in another order."""
    CUT = "cut"
    """Connections break and are refused."""
    SILENCE = "silence"
    """Connections stay and carry nothing; what was sent meanwhile arrives afterwards."""
    DELAY = "delay"
    """Everything arrives late, both ways."""
    PUT_BACK = "put back"
    """The broker is killed and comes back with its store of some messages before."""
    FREEZE = "freeze"
    """SIGSTOP inside a transaction, until others have taken over and for longer than a SQLite file's busy timeout."""
    FILL = "fill"
    """A worker's disk, that of PostgreSQL's tables, a SQLite file, the broker's store or etcd's without room."""


class FaultTarget(StrEnum):
    """A member by what it is at that moment, or an engine. FOLLOWER: a master that does not lead; on PostgreSQL it owns
    partitions."""

    LEADER = "leader"
    FOLLOWER = "follower"
    WORKER = "worker"
    ETCD = "etcd"
    BROKER = "broker"
    DATABASE = "database"


MEMBERS: Final = (FaultTarget.LEADER, FaultTarget.FOLLOWER, FaultTarget.WORKER)
ENGINES: Final = (FaultTarget.ETCD, FaultTarget.BROKER, FaultTarget.DATABASE)


@dataclass(frozen=True, slots=True)
class Fault:
    """`engine` is the other end of a link. Seconds: `after_s` until it begins, `hold_s` until it ends. `draw` chooses
    among equals, such as workers."""

    kind: FaultKind
    who: FaultTarget
    engine: FaultTarget | None
    after_s: float
    hold_s: float
    draw: int

    @property
    def name(self) -> str:
        """As it stands in a report."""
        return f"{self.kind} {self.who}" + (f"-{self.engine}" if self.engine else "")


def deck(*, served_database: bool) -> list[tuple[FaultKind, FaultTarget, FaultTarget | None]]:
    """Every fault once. A database that is a file has no process and no link."""
    engines = [engine for engine in ENGINES if served_database or engine is not FaultTarget.DATABASE]
    faults: list[tuple[FaultKind, FaultTarget, FaultTarget | None]] = [
        (kind, who, None)
        for kind in (FaultKind.KILL, FaultKind.STOP, FaultKind.RESTART)
        for who in (*MEMBERS, *engines)
    ]
    faults += [
        (kind, member, engine)
        for kind in (FaultKind.CUT, FaultKind.SILENCE, FaultKind.DELAY)
        for member in MEMBERS
        for engine in engines
        if not (member is FaultTarget.WORKER and engine is FaultTarget.DATABASE)
    ]
    faults += [(FaultKind.SLOW, who, None) for who in (FaultTarget.WORKER, *ENGINES)]
    faults += [(FaultKind.STEP, who, None) for who in MEMBERS]
    faults += [(kind, FaultTarget.ETCD, None) for kind in (FaultKind.QUORUM, FaultKind.EMPTY)]
    faults += [(kind, FaultTarget.BROKER, None) for kind in (FaultKind.CORRUPT, FaultKind.REPEAT, FaultKind.PUT_BACK)]
    faults += [(FaultKind.FREEZE, FaultTarget.LEADER, None)]
    return [*faults, *((FaultKind.FILL, who, None) for who in (FaultTarget.WORKER, *ENGINES))]


def plan(seed: int, rounds: int, *, served_database: bool = True) -> tuple[Fault, ...]:
    """The faults of a run, in order; one in five follows at once on the one before, so that recoveries are struck too.

    A longer run of the same seed begins with the shorter one. Most holds are short of a lease's time to live (2 s in
    these clusters), some well beyond it.
    """
    draw = random.Random(seed)
    faults: list[Fault] = []
    order: list[tuple[FaultKind, FaultTarget, FaultTarget | None]] = []
    for number in count():
        if number == rounds:
            return tuple(faults)
        if not order:
            order = deck(served_database=served_database)
            draw.shuffle(order)
        kind, who, engine = order.pop()
        faults.append(
            Fault(
                kind,
                who,
                engine,
                after_s=0.0 if draw.random() < 0.2 else draw.uniform(0.2, 2.0),
                hold_s=draw.uniform(4.0, 7.0) if draw.random() < 0.4 else draw.uniform(0.1, 1.5),
                draw=draw.randrange(1 << 16),
            )
        )
    raise AssertionError("count() has no end")


def kinds(faults: Sequence[Fault]) -> list[str]:
    """The names of the faults, each once, in the order of the table in a report."""
    return sorted({fault.name for fault in faults})
