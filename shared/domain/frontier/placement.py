"""Decide which master owns which partition. The leader repeats this periodically; each run is called a pass.

A pass compares the present owners with the goal (`reconcile`). While a partition moves to another owner, its hosts are
not fetched for a short time. So a pass makes as few moves as it can:

- A partition without a live owner gets an owner at once.
- On PostgreSQL a pass takes only a few partitions from live owners (`PlacementRules.max_moves`).
- A move that only improves the balance never goes to a master that has just joined.
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
    """A live master that can own partitions.

    `seen_since`: when the leader saw it first, in seconds of the leader's own clock. `draining`: it gets no partitions,
    and its own are moved to others.
    """

    id: str
    seen_since: float
    draining: bool = False


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """The limits of a pass of placement.

    - `max_moves`: how many partitions a pass on PostgreSQL may take from live owners.
    - `settle_s`: a move that only improves the balance goes to a master that the leader has known for this many
      seconds or more.
    """

    max_moves: int = 8
    settle_s: float = 10.0


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """What a pass of placement changes.

    - `owners`: the new owner of each partition that changes hands. It is empty if nothing changes.
    - `moves`: how many of these partitions are taken from a live owner.
    - `deferred`: how many moves are left for the next passes.
    - `stranded`: the partitions without a live owner, if every master drains or none is live. Otherwise empty.
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
    """Return the partitions that must change hands in this pass, and their new owners.

    The goal: every partition has a live owner that is not draining. On PostgreSQL the numbers of partitions of any two
    owners differ by at most one. On SQLite one master owns all partitions, the leader if possible. If every master
    drains, each keeps its partitions.

    - `owners`: the present owners, dead ones included. Partitions that were never owned may be missing.
    - `partitions`: the number of partitions in the cluster.
    - `now`: the time by the clock of `PlacementMaster.seen_since`.
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
    """Return the name of the one master that must own all partitions of a cluster on SQLite.

    - If the leader is in `able`: the leader.
    - Otherwise: the master in `able` that owns the most partitions now.

    `held`: the present owner of each partition. `able`: the masters that can own partitions, by name.
    """
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
