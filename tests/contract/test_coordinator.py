"""What every coordinator promises, over etcd and inside one process."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from shared.domain.errors import OwnershipLost
from shared.ports.coordinator import (
    MAX_WRITES,
    Conflict,
    Coordinator,
    Entry,
    Leadership,
    Session,
    Snapshot,
    differences,
)
from tests.support.engines.etcd import CLOCK

Story = Callable[[Coordinator], Awaitable[None]]

TTL_S = 3.0


@asynccontextmanager
async def leading(coordinator: Coordinator, key: str = "/t/leader", ttl_s: float = 30.0) -> AsyncIterator[Leadership]:
    async with coordinator.session(ttl_s) as session:
        yield await session.campaign(key, b"me")


async def entry_at(coordinator: Coordinator, key: str) -> Entry:
    entry = await coordinator.get(key)
    assert entry is not None
    return entry


def values(snapshot: Snapshot) -> dict[str, bytes]:
    return {key: entry.value for key, entry in snapshot.entries.items()}


def stall(seconds: float) -> None:
    """What a blocked event loop or a suspended machine is to a session."""
    time.sleep(seconds)


# --- reading and watching ---------------------------------------------------------------------------------------------


def test_a_list_is_complete_and_no_older_than_what_was_acknowledged(on_coordinator: Callable[[Story], None]) -> None:
    async def story(coordinator: Coordinator) -> None:
        async with leading(coordinator) as leader:
            expected = {f"/t/k/{number}": b"%d" % number for number in range(10)}
            revision = await leader.write(expected)
            await leader.write({"/t/k0": b"a neighbour"})
            listed = await coordinator.list("/t/k/")
            assert values(listed) == expected
            assert listed.revision > revision
            assert {(entry.revision, entry.created) for entry in listed.entries.values()} == {(revision, revision)}
            assert (await coordinator.get("/t/k/3")) == listed.entries["/t/k/3"]
            assert await coordinator.get("/t/k") is None
            assert values(await coordinator.list("/t/none/")) == {}

    on_coordinator(story)


def test_a_change_before_the_wait_is_not_lost(on_coordinator: Callable[[Story], None]) -> None:
    async def story(coordinator: Coordinator) -> None:
        async with leading(coordinator) as leader, coordinator.watch("/t/k/") as view:
            seen = view.snapshot
            revision = await leader.write({"/t/k/a": b"1"})
            after = await view.changed(seen, None)
            assert (values(after), after.changed) == ({"/t/k/a": b"1"}, revision)
            # And once more from the same place: what counts is what the asker has seen.
            assert await view.changed(seen, None) is view.snapshot
            assert (await view.changed(after, 0.05)).changed == revision

    on_coordinator(story)


def test_a_snapshot_never_shows_half_a_write_and_ends_up_with_all(on_coordinator: Callable[[Story], None]) -> None:
    async def story(coordinator: Coordinator) -> None:
        rounds = 100
        async with leading(coordinator) as leader, coordinator.watch("/t/k/") as view:

            async def write() -> None:
                for number in range(rounds):
                    await leader.write({"/t/k/a": b"%d" % number, "/t/k/b": b"%d" % number})

            writing = asyncio.create_task(write())
            snapshot, revisions = view.snapshot, [view.snapshot.changed]
            while snapshot.entries.get("/t/k/a", None) is None or snapshot.entries["/t/k/a"].value != b"%d" % (
                rounds - 1
            ):
                snapshot = await view.changed(snapshot, None)
                revisions.append(snapshot.changed)
                assert len(set(values(snapshot).values())) == 1
                assert len(snapshot.entries) == 2
            await writing
            assert revisions == sorted(set(revisions))

    on_coordinator(story)


def test_what_neighbours_do_wakes_nobody(on_coordinator: Callable[[Story], None]) -> None:
    async def story(coordinator: Coordinator) -> None:
        async with leading(coordinator) as leader, coordinator.watch("/t/k/") as view:
            seen = view.snapshot
            waiting = asyncio.create_task(view.changed(seen, None))
            await leader.write({"/t/k": b"", "/t/k0": b"", "/t/l/a": b""})
            await leader.write({}, ["/t/k/nobody"])
            revision = await leader.write({"/t/k/a": b"1"})
            woken = await waiting
            assert (values(woken), woken.changed) == ({"/t/k/a": b"1"}, revision)

    on_coordinator(story)


def test_the_difference_of_two_snapshots_tells_made_again_from_changed(on_coordinator: Callable[[Story], None]) -> None:
    async def story(coordinator: Coordinator) -> None:
        async with leading(coordinator) as leader:
            await leader.write({"/t/k/again": b"1", "/t/k/gone": b"1", "/t/k/kept": b"1", "/t/k/new value": b"1"})
            before = await coordinator.list("/t/k/")
            await leader.write({}, ["/t/k/again", "/t/k/gone"])
            await leader.write({"/t/k/again": b"1", "/t/k/new value": b"2", "/t/k/new": b"1"})
            changes = {change.key: change for change in differences(before, await coordinator.list("/t/k/"))}
        assert list(changes) == ["/t/k/gone", "/t/k/again", "/t/k/new", "/t/k/new value"]
        again, changed = changes["/t/k/again"], changes["/t/k/new value"]
        assert changes["/t/k/gone"].after is None
        assert changes["/t/k/new"].before is None
        assert again.before is not None
        assert again.after is not None
        assert again.before.created < again.after.created
        assert changed.before is not None
        assert changed.after is not None
        assert changed.before.created == changed.after.created
        assert changed.before.value == b"1"

    on_coordinator(story)


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_a_registration_lives_as_long_as_its_session(on_coordinator: Callable[[Story], None]) -> None:
    async def story(coordinator: Coordinator) -> None:
        async with coordinator.watch("/t/m/") as view:
            async with coordinator.session(TTL_S) as session:
                await session.register("/t/m/a", b"1")
                first = await entry_at(coordinator, "/t/m/a")
                await session.register("/t/m/a", b"2")
                await session.register("/t/m/a", b"2")
                second = await entry_at(coordinator, "/t/m/a")
                assert (first.value, second.value) == (b"1", b"2")
                assert (first.lease, first.created) == (second.lease, second.created) == (session.id, second.created)
                until = session.ok_until
                while session.ok_until == until:  # noqa: ASYNC110  nothing tells of a renewal
                    await asyncio.sleep(0.05)
                assert session.alive(CLOCK.elapsed())
            snapshot = view.snapshot
            while snapshot.entries:
                snapshot = await view.changed(snapshot, None)
        assert not session.alive(CLOCK.elapsed())
        await session.lost()

    on_coordinator(story)


def test_a_session_that_could_not_renew_in_time_is_lost_for_good(on_coordinator: Callable[[Story], None]) -> None:
    async def story(coordinator: Coordinator) -> None:
        async with coordinator.session(TTL_S) as session:
            await session.register("/t/m/a", b"1")
            leader = await session.campaign("/t/leader", b"a")
            waiting = [asyncio.create_task(session.lost()), asyncio.create_task(leader.lost())]
            await asyncio.sleep(0)
            stall(TTL_S + 0.1)
            assert not session.alive(CLOCK.elapsed())
            assert not leader.acting(CLOCK.elapsed())
            with pytest.raises(OwnershipLost):
                await leader.write({"/t/k": b"late"})
            with pytest.raises(OwnershipLost):
                await session.register("/t/m/a", b"2")
            with pytest.raises(OwnershipLost):
                await session.campaign("/t/other", b"a")
            await asyncio.gather(*waiting)
            assert not session.alive(session.ok_until - 1)
        async with coordinator.session(TTL_S) as again:
            await again.register("/t/m/a", b"3")
            await again.campaign("/t/leader", b"a")
        assert await coordinator.get("/t/k") is None

    on_coordinator(story)


def test_the_member_that_comes_back_takes_over_its_own_key(on_coordinator: Callable[[Story], None]) -> None:
    """A process that was killed and started again within its time must not vanish when the old session does."""

    async def story(coordinator: Coordinator) -> None:
        async with coordinator.session(TTL_S) as successor:
            async with coordinator.session(TTL_S) as killed:
                await killed.register("/t/m/a", b"old")
                await successor.register("/t/m/a", b"new")
            entry = await entry_at(coordinator, "/t/m/a")
            assert (entry.value, entry.lease) == (b"new", successor.id)

    on_coordinator(story)


# --- elections --------------------------------------------------------------------------------------------------------


def test_of_many_candidates_one_leads_at_a_time_and_each_gets_its_turn(on_coordinator: Callable[[Story], None]) -> None:
    async def story(coordinator: Coordinator) -> None:
        leading_now: list[str] = []
        revisions: list[int] = []

        async def candidate(name: str) -> None:
            async with coordinator.session(30) as session:
                leader = await session.campaign("/t/leader", name.encode())
                leading_now.append(name)
                assert leading_now == [name]
                assert leader.acting(CLOCK.elapsed())
                revisions.append(leader.revision)
                holder = await entry_at(coordinator, "/t/leader")
                assert (holder.value, holder.created) == (name.encode(), leader.revision)
                leading_now.remove(name)
                if name != "2":  # this one leaves without a word
                    await leader.resign()

        async with asyncio.TaskGroup() as candidates:
            for number in range(6):
                candidates.create_task(candidate(str(number)))
        assert revisions == sorted(set(revisions))
        assert len(revisions) == 6

    on_coordinator(story)


def test_a_deposed_leader_changes_nothing(on_coordinator: Callable[[Story], None]) -> None:
    async def story(coordinator: Coordinator) -> None:
        async with leading(coordinator, "/t/operator") as operator, leading(coordinator) as leader:
            await leader.write({"/t/k": b"1"})
            losing = asyncio.create_task(leader.lost())
            await asyncio.sleep(0)
            await operator.write({}, ["/t/leader"])
            for attempt in (leader.write({"/t/k": b"2"}), leader.write({}, ["/t/k"]), leader.barrier()):
                with pytest.raises(OwnershipLost):
                    await attempt
            await losing
            assert not leader.acting(CLOCK.elapsed())
            await leader.resign()
            async with leading(coordinator) as successor:
                assert successor.revision > leader.revision
                with pytest.raises(OwnershipLost):
                    await leader.write({"/t/k": b"3"})
                await leader.resign()
                await successor.write({"/t/l": b"1"})
            assert (await entry_at(coordinator, "/t/k")).value == b"1"

    on_coordinator(story)


def test_a_write_that_expects_something_else_writes_nothing(on_coordinator: Callable[[Story], None]) -> None:
    async def story(coordinator: Coordinator) -> None:
        async with leading(coordinator) as leader:
            first = await leader.write({"/t/a": b"1", "/t/b": b"1"}, expect={"/t/a": 0, "/t/b": 0})
            with pytest.raises(Conflict) as conflict:
                await leader.write({"/t/c": b"1"}, ["/t/a"], expect={"/t/a": first, "/t/b": first - 1, "/t/d": 1})
            assert conflict.value.keys == ("/t/b", "/t/d")
            assert await coordinator.get("/t/c") is None
            with pytest.raises(Conflict):
                await leader.write({"/t/a": b"2"}, expect={"/t/a": 0})
            second = await leader.write({"/t/a": b"2"}, ["/t/b"], expect={"/t/a": first, "/t/c": 0})
            entry = await entry_at(coordinator, "/t/a")
            assert (entry.value, entry.revision, entry.created) == (b"2", second, first)
            assert await coordinator.get("/t/b") is None
            assert await leader.barrier() >= second

    on_coordinator(story)


def test_a_write_of_more_keys_than_the_engine_takes_is_a_mistake(on_coordinator: Callable[[Story], None]) -> None:
    async def story(coordinator: Coordinator) -> None:
        async with leading(coordinator) as leader:
            puts = {f"/t/k/{number}": b"" for number in range(MAX_WRITES)}
            await leader.write(puts, expect=dict.fromkeys(puts, 0))
            await leader.write({}, list(puts))
            with pytest.raises(ValueError, match="at most"):
                await leader.write(puts, ["/t/one more"])

    on_coordinator(story)


def test_a_campaign_that_is_given_up_holds_nothing(on_coordinator: Callable[[Story], None]) -> None:
    """Given up at any moment: while it waits, and while the answer that it has won is on its way."""

    async def give_up(session: Session, turns: int) -> None:
        campaign = asyncio.create_task(session.campaign("/t/leader", b"hesitant"))
        for _ in range(turns):
            await asyncio.sleep(0)
        campaign.cancel()
        try:
            leader = await campaign
        except asyncio.CancelledError:
            return
        await leader.resign()

    async def story(coordinator: Coordinator) -> None:
        async with AsyncExitStack() as stack:
            hesitant = await stack.enter_async_context(coordinator.session(30))
            resolute = await stack.enter_async_context(coordinator.session(30))
            for turns in (1, 2, 3, 5, 8, 13, 21):
                await give_up(hesitant, turns)
                leader = await resolute.campaign("/t/leader", b"resolute")
                await give_up(hesitant, turns)
                await leader.resign()

    on_coordinator(story)


def test_a_campaign_ends_with_its_session(on_coordinator: Callable[[Story], None]) -> None:
    async def story(coordinator: Coordinator) -> None:
        async with leading(coordinator) as leader, coordinator.session(TTL_S) as session:
            campaign = asyncio.create_task(session.campaign("/t/leader", b"waiting"))
            await asyncio.sleep(0.1)
            stall(TTL_S + 0.1)
            with pytest.raises(OwnershipLost):
                await campaign
            assert leader.acting(CLOCK.elapsed())

    on_coordinator(story)


def test_a_leader_stops_by_itself_before_its_lease_could_be_given_away(
    on_coordinator: Callable[[Story], None],
) -> None:
    async def story(coordinator: Coordinator) -> None:
        async with coordinator.session(15) as session:
            leader = await session.campaign("/t/leader", b"me")
            until = session.ok_until
            assert leader.acting(until - 4.1)
            assert not leader.acting(until - 4.0)
            assert session.alive(until - 0.1)
            assert not session.alive(until)

    on_coordinator(story)
