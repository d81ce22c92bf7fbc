"""Which master owns which partition: decided from what is, again and again, until nothing is left to do.

What is safe does not depend on this: an owner is whoever holds the newest term. A plan only moves partitions as seldom
as it can, because each move is a short pause for the hosts in it. Orphans are placed at once; what would merely be
nicer elsewhere moves a few at a time, and to nobody who has just come (it may be about to die again).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

from shared.domain.ids import Partition


class StoreKind(StrEnum):
    """Where the frontier is: a file that one process writes, or a server that many do."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@dataclass(frozen=True, slots=True)
class Master:
    """A master that lives. `seen_since`: when the leader first saw it, by the leader's own clock (seconds)."""

    id: str
    seen_since: float
    draining: bool = False


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """`most_moves`: partitions that a pass may take from an owner that lives. `settle_s`: how long a master must have
    been seen before it is given any of those."""

    most_moves: int = 8
    settle_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pass changes. Nothing to do is an empty plan.

    `owners`: the new owner of each partition that changes hands. `moves`: how many of them are taken from an owner that
    lives. `deferred`: moves left for the next passes. `stranded`: partitions without an owner, since nobody can be one.
    """

    owners: Mapping[Partition, str]
    moves: int = 0
    deferred: int = 0
    stranded: tuple[Partition, ...] = ()


_DEFAULT: Final = PlacementRules()


def reconcile(
    masters: Iterable[Master],
    owners: Mapping[Partition, str],
    *,
    partitions: int,
    store: StoreKind,
    leader: str,
    now: float,
    rules: PlacementRules = _DEFAULT,
) -> Plan:
    """The next pass towards: every partition has a live owner that is not draining; on a store that many may write, no
    two owners differ by more than one partition; on one that a single process writes, all are with one master, the
    leader if it can be.

    `owners` may name masters that are dead and lack partitions that were never owned. What a draining master owns stays
    with it while there is nobody else.
    """
    alive = {master.id: master for master in masters}
    able = {name: master for name, master in alive.items() if not master.draining}
    held = {partition: owners.get(partition) for partition in map(Partition, range(partitions))}
    orphans = [partition for partition, owner in held.items() if owner not in alive]
    if not able:
        return Plan({}, stranded=tuple(orphans))
    match store:
        case StoreKind.SQLITE:
            one = _the_one(held, able, leader)
            changed = {partition: one for partition, owner in held.items() if owner != one}
            return Plan(changed, moves=len(changed) - len(orphans))
        case StoreKind.POSTGRESQL:
            settled = {name for name, master in able.items() if now - master.seen_since >= rules.settle_s}
            return _spread(held, orphans, set(able), settled, rules.most_moves)
        case _:
            assert_never(store)


def _the_one(held: Mapping[Partition, str | None], able: Mapping[str, Master], leader: str) -> str:
    """Who is to own everything: the leader, else whoever owns most already."""
    if leader in able:
        return leader
    owned = Counter(owner for owner in held.values() if owner in able)
    return min(able, key=lambda name: (-owned[name], name))


def _spread(
    held: Mapping[Partition, str | None], orphans: list[Partition], able: set[str], settled: set[str], most_moves: int
) -> Plan:
    owned: dict[str, list[Partition]] = {name: [] for name in able}
    leaving: list[Partition] = []
    unowned = set(orphans)
    for partition, owner in sorted(held.items()):
        if owner in able:
            owned[owner].append(partition)
        elif partition not in unowned:
            leaving.append(partition)

    changed: dict[Partition, str] = {}
    for partition in sorted(orphans):
        changed[partition] = _least(owned, able)
        owned[changed[partition]].append(partition)

    moves = [(partition, _give(owned, partition, _least(owned, able))) for partition in leaving]
    while settled:
        fullest = min(owned, key=lambda name: (-len(owned[name]), name))
        emptiest = _least(owned, settled)
        if len(owned[fullest]) - len(owned[emptiest]) <= 1:
            break
        # The first ones were there before anything was given to it in this pass.
        partition = owned[fullest].pop(0)
        if partition in unowned:  # not placed yet, so that nobody pauses for it
            changed[partition] = _give(owned, partition, emptiest)
        else:
            moves.append((partition, _give(owned, partition, emptiest)))
    changed.update(moves[:most_moves])
    return Plan(changed, min(len(moves), most_moves), max(len(moves) - most_moves, 0))


def _least(owned: Mapping[str, list[Partition]], among: set[str]) -> str:
    return min(among, key=lambda name: (len(owned[name]), name))


def _give(owned: dict[str, list[Partition]], partition: Partition, to: str) -> str:
    owned[to].append(partition)
    return to
