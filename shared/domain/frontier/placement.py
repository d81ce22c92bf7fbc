"""Decide which master owns which partition, in passes: each compares the present owners with the goal.

Safety does not depend on placement: the owner is the master with the newest term. Each move is a short pause for the
hosts of a partition, so a plan moves as few as it can. Partitions without an owner are placed at once. Moves that only
improve the balance are made a few at a time, and never to a master that has just joined, since it may fail again soon.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

from shared.domain.ids import Partition


class StoreKind(StrEnum):
    """The kind of database: a SQLite file, which one process writes, or a PostgreSQL server, which many write."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@dataclass(frozen=True, slots=True)
class PlacementMaster:
    """A live master, to which partitions may be given.

    `seen_since`: when the leader first saw it, in seconds of the leader's own clock.
    """

    id: str
    seen_since: float
    draining: bool = False


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """The limits of a pass of placement.

    `max_moves`: how many partitions a pass may take from live owners. `settle_s`: how many seconds ago a master must
    have been seen first before it is given any of those.
    """

    max_moves: int = 8
    settle_s: float = 10.0


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """What a pass of placement changes. The plan is empty if there is nothing to do.

    `owners`: the new owner of each partition that changes hands. `moves`: how many of them are taken from a live owner.
    `deferred`: moves left for the next passes. `stranded`: partitions without an owner, because no master can own them.
    """

    owners: Mapping[Partition, str]
    moves: int = 0
    deferred: int = 0
    stranded: tuple[Partition, ...] = ()


_DEFAULT: Final = PlacementRules()


def reconcile(
    masters: Iterable[PlacementMaster],
    owners: Mapping[Partition, str],
    *,
    partitions: int,
    store: StoreKind,
    leader: str,
    now: float,
    rules: PlacementRules = _DEFAULT,
) -> PlacementPlan:
    """Return which partitions to give to which masters in the next pass.

    The goal: every partition has a live owner that is not draining. On PostgreSQL no two owners may differ by more than
    one partition. On SQLite one master owns all partitions, the leader if possible. `owners` may name masters that are
    dead, and lack partitions that were never owned. A draining master keeps its partitions while there is no other
    master.
    """
    alive = {master.id: master for master in masters}
    able = {name: master for name, master in alive.items() if not master.draining}
    held = {partition: owners.get(partition) for partition in map(Partition, range(partitions))}
    orphans = [partition for partition, owner in held.items() if owner not in alive]
    if not able:
        return PlacementPlan({}, stranded=tuple(orphans))
    match store:
        case StoreKind.SQLITE:
            one = _the_one(held, able, leader)
            changed = {partition: one for partition, owner in held.items() if owner != one}
            return PlacementPlan(changed, moves=len(changed) - len(orphans))
        case StoreKind.POSTGRESQL:
            settled = {name for name, master in able.items() if now - master.seen_since >= rules.settle_s}
            return _spread(held, orphans, set(able), settled, rules.max_moves)
        case _:
            assert_never(store)


def _the_one(held: Mapping[Partition, str | None], able: Mapping[str, PlacementMaster], leader: str) -> str:
    """Return the master that is to own everything: the leader if possible, else the one that owns the most already."""
    if leader in able:
        return leader
    owned = Counter(owner for owner in held.values() if owner in able)
    return min(able, key=lambda name: (-owned[name], name))


def _spread(
    held: Mapping[Partition, str | None], orphans: list[Partition], able: set[str], settled: set[str], max_moves: int
) -> PlacementPlan:
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
        # The first partitions of the list were there before this pass added any.
        partition = owned[fullest].pop(0)
        if partition in unowned:  # It has no owner yet, so placing it pauses no host.
            changed[partition] = _give(owned, partition, emptiest)
        else:
            moves.append((partition, _give(owned, partition, emptiest)))
    changed.update(moves[:max_moves])
    return PlacementPlan(changed, min(len(moves), max_moves), max(len(moves) - max_moves, 0))


def _least(owned: Mapping[str, list[Partition]], among: set[str]) -> str:
    return min(among, key=lambda name: (len(owned[name]), name))


def _give(owned: dict[str, list[Partition]], partition: Partition, to: str) -> str:
    owned[to].append(partition)
    return to
