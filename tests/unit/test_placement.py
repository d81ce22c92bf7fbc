"""Placement: nobody dead or draining is given anything, nobody is robbed without need, and it comes to rest."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.frontier.placement import PlacementMaster, PlacementPlan, PlacementRules, StoreKind, reconcile
from shared.domain.ids import Partition

NAMES = ["a", "b", "c", "d", "e", "f"]
NOW = 1_000.0
RULES = PlacementRules(max_moves=3, settle_s=10.0)


@dataclass(frozen=True)
class World:
    masters: tuple[PlacementMaster, ...]
    owners: Mapping[Partition, str]
    partitions: int
    leader: str
    store: StoreKind = StoreKind.POSTGRESQL

    @property
    def alive(self) -> set[str]:
        return {master.id for master in self.masters}

    @property
    def able(self) -> set[str]:
        return {master.id for master in self.masters if not master.draining}

    @property
    def orphans(self) -> set[Partition]:
        return {p for p in map(Partition, range(self.partitions)) if self.owners.get(p) not in self.alive}

    def plan(self, now: float = NOW, rules: PlacementRules = RULES) -> PlacementPlan:
        return reconcile(
            self.masters,
            self.owners,
            partitions=self.partitions,
            store=self.store,
            leader=self.leader,
            now=now,
            rules=rules,
        )

    def after(self, plan: PlacementPlan) -> "World":
        return replace(self, owners={**self.owners, **plan.owners})

    def loads(self) -> Counter[str]:
        loads = Counter(dict.fromkeys(self.able, 0))
        loads.update(owner for p, owner in self.owners.items() if p < self.partitions and owner in self.able)
        return loads


@st.composite
def worlds(draw: st.DrawFn) -> World:
    partitions = draw(st.integers(1, 40))
    masters = draw(
        st.lists(
            st.builds(
                PlacementMaster, st.sampled_from(NAMES), st.sampled_from([0.0, NOW - 10, NOW - 9, NOW]), st.booleans()
            ),
            unique_by=lambda master: master.id,
        )
    )
    owner = st.sampled_from(NAMES)
    owners = draw(st.dictionaries(st.integers(0, partitions + 2).map(Partition), owner))
    return World(tuple(masters), owners, partitions, draw(owner), draw(st.sampled_from(StoreKind)))


def spread(world: World) -> World:
    return replace(world, store=StoreKind.POSTGRESQL)


def settled(world: World) -> World:
    return replace(world, masters=tuple(replace(master, seen_since=0.0) for master in world.masters))


def rest(world: World) -> tuple[World, int]:
    """The world when nothing is left to do, and how often a partition was taken from an owner that lives."""
    moved = 0
    for _ in range(2 * world.partitions + 2):
        plan = world.plan()
        if not plan.owners:
            return world, moved
        moved += plan.moves
        world = world.after(plan)
    raise AssertionError(f"never comes to rest: {world}")


def fewest_moves(loads: Counter[str]) -> int:
    """What it takes at least to bring these loads within one of each other."""
    each, more = divmod(loads.total(), len(loads))
    fair = [each + (position < more) for position in range(len(loads))]
    return sum(max(load - share, 0) for load, share in zip(sorted(loads.values(), reverse=True), fair, strict=True))


@given(worlds())
def test_only_the_living_who_are_not_draining_are_given_anything(world: World) -> None:
    plan = world.plan()
    assert set(plan.owners.values()) <= world.able
    assert all(0 <= partition < world.partitions for partition in plan.owners)
    assert all(world.owners.get(partition) != owner for partition, owner in plan.owners.items())


@given(worlds())
def test_after_one_pass_nobody_is_without_an_owner_unless_nobody_can_be_one(world: World) -> None:
    plan = world.plan()
    if world.able:
        assert plan.stranded == ()
        assert world.after(plan).orphans == set()
    else:
        assert (plan.owners, set(plan.stranded)) == ({}, world.orphans)


@given(worlds())
def test_a_pass_takes_no_more_than_it_may_from_owners_that_live(world: World) -> None:
    world = spread(world)
    plan = world.plan()
    assert plan.moves == len(plan.owners.keys() - world.orphans) <= RULES.max_moves
    assert plan.deferred == 0 or plan.moves == RULES.max_moves


@given(worlds())
def test_whoever_has_just_come_is_given_nothing_that_a_living_owner_keeps(world: World) -> None:
    world = spread(world)
    taken = world.plan().owners.keys() - world.orphans
    new = {master.id for master in world.masters if NOW - master.seen_since < RULES.settle_s}
    drained = {p for p in taken if world.owners[p] in world.alive - world.able}
    assert {world.plan().owners[p] for p in taken - drained} & new == set()


@given(worlds())
def test_it_comes_to_rest_balanced_with_the_fewest_moves(world: World) -> None:
    world = settled(spread(world))
    if not world.able:
        return
    # Orphans and what drains fill up the emptiest: only what then is still too much is moved.
    placed = replace(world, masters=tuple(m for m in world.masters if not m.draining))
    needed = sum(world.owners.get(p) in world.alive - world.able for p in map(Partition, range(world.partitions)))
    everybody_placed = placed.plan(rules=PlacementRules(max_moves=0))
    needed += fewest_moves(placed.after(everybody_placed).loads())
    final, moved = rest(world)
    loads = final.loads()
    assert loads.total() == world.partitions
    assert max(loads.values()) - min(loads.values()) <= 1
    assert moved <= needed


@given(worlds())
def test_at_rest_it_stays_at_rest_and_no_order_of_listing_matters(world: World) -> None:
    world = settled(world)
    final, _ = rest(world)
    assert final.plan() == PlacementPlan({}, stranded=final.plan().stranded)
    backwards = replace(world, masters=world.masters[::-1], owners=dict(sorted(world.owners.items(), reverse=True)))
    assert backwards.plan() == world.plan()


@given(worlds(), st.data())
def test_a_death_moves_what_the_dead_one_owned_and_nothing_else(world: World, data: st.DataObject) -> None:
    world, _ = rest(settled(spread(world)))
    if len(world.able) < 2:
        return
    dead = data.draw(st.sampled_from(sorted(world.able)))
    bereft = replace(world, masters=tuple(master for master in world.masters if master.id != dead))
    plan = bereft.plan()
    assert set(plan.owners) == {p for p, owner in world.owners.items() if owner == dead and p < world.partitions}
    assert (plan.moves, plan.deferred) == (0, 0)


@given(worlds())
def test_a_newcomer_is_filled_from_all_the_others_evenly(world: World) -> None:
    world, _ = rest(settled(spread(world)))
    if not world.able or "z" in world.able:
        return
    grown = replace(world, masters=(*world.masters, PlacementMaster("z", 0.0)))
    final, moved = rest(grown)
    assert moved == final.loads()["z"] == world.partitions // (len(world.able) + 1)


@given(worlds())
def test_a_store_for_one_writer_has_one_owner_the_leader_if_it_can_be(world: World) -> None:
    world = replace(world, store=StoreKind.SQLITE)
    plan = world.plan()
    after = world.after(plan)
    if not world.able:
        return
    owners = {after.owners[p] for p in map(Partition, range(world.partitions))}
    assert len(owners) == 1
    assert owners == {world.leader} or world.leader not in world.able
    assert after.plan() == PlacementPlan({})


@pytest.mark.parametrize("leader", ["gone", "draining"])
def test_without_a_leader_that_can_own_a_single_writer_stays_who_it_is(leader: str) -> None:
    masters = (PlacementMaster("a", 0.0), PlacementMaster("b", 0.0), PlacementMaster("draining", 0.0, draining=True))
    owners = {Partition(0): "b", Partition(1): "b", Partition(2): "a"}
    world = World(masters, owners, 3, leader, StoreKind.SQLITE)
    assert world.plan() == PlacementPlan({Partition(2): "b"}, moves=1)


def test_a_master_that_drains_keeps_what_nobody_else_can_own() -> None:
    world = World((PlacementMaster("a", 0.0, draining=True),), {Partition(0): "a"}, 2, "a")
    assert world.plan() == PlacementPlan({}, stranded=(Partition(1),))


def test_draining_empties_a_few_at_a_time() -> None:
    masters = (PlacementMaster("a", 0.0, draining=True), PlacementMaster("b", NOW))
    world = World(masters, {Partition(p): "a" for p in range(7)}, 7, "b")
    sizes = []
    while (plan := world.plan()).owners:
        sizes.append((plan.moves, plan.deferred))
        world = world.after(plan)
    assert sizes == [(3, 4), (3, 1), (1, 0)]
