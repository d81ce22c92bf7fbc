"""What coordination over etcd survives: kills, lost answers, compaction, and an etcd that was replaced."""

import asyncio
import itertools
from pathlib import Path

import etcd3.etcdrpc as rpc
import pytest

from shared.adapters.etcd import EtcdCoordinator
from shared.adapters.etcd.leadership import EtcdLeadership
from shared.adapters.etcd.watching import EtcdView, list_prefix
from shared.domain.errors import OwnershipLost, Permanent, Transient
from shared.ports.coordinator import Snapshot, View
from shared.runtime.retry import until_answered
from tests.support.engines.etcd import CLOCK, EtcdServer, Writer, connected, coordinator, etcd, run, settled
from tests.support.engines.socket_proxy import cut_wire


@pytest.fixture
def watch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views live from their watch: nothing is made good by comparing with a list."""

    async def never(_: EtcdView) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(EtcdView, "resync", never)


@pytest.fixture
def unaware(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaders do not notice by themselves that they were deposed: only the server's refusal stops them."""

    async def never(_: EtcdLeadership) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(EtcdLeadership, "guard", never)


async def follow_all(view: View, seen: list[Snapshot], last: asyncio.Event) -> None:
    snapshot = view.snapshot
    while not last.is_set():
        snapshot = await view.changed(snapshot, 0.2)
        seen.append(snapshot)


# --- watches ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("watch_alone")
def test_a_watch_over_kills_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            etcd(tmp_path) as server,
            coordinator(server.endpoint) as client,
            client.session(60) as session,
            client.watch("/t/k/") as view,
        ):
            writer = Writer(await session.campaign("/t/leader", b""))
            seen: list[Snapshot] = []
            last = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(writer.write())
                tasks.create_task(follow_all(view, seen, last))
                for _ in range(4):
                    await writer.reach(50)
                    server.kill()
                    await server.restart()
                await writer.reach(50)
                writer.stop = True
                await writing
                newest = writer.acknowledged[max(writer.acknowledged)]
                await settled(view, lambda snapshot: snapshot.revision >= newest)
                last.set()
            listed = await client.list("/t/k/")
            assert view.snapshot.entries == listed.entries
            assert {key: listed.entries[key].revision for key in writer.acknowledged} == writer.acknowledged
            assert set(listed.entries) - set(writer.acknowledged) <= set(writer.unknown)
            for before, after in itertools.pairwise(seen):
                assert after.changed >= before.changed
                assert before.entries.items() <= after.entries.items()
            assert view.snapshot.history == 0

    run(story)


@pytest.mark.usefixtures("watch_alone")
def test_a_watch_that_resumes_behind_a_compaction_lists_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            etcd(tmp_path) as server,
            connected(server.endpoint) as connection,
            coordinator(server.endpoint) as c,
            c.session(60) as session,
        ):
            leader = await session.campaign("/t/leader", b"")
            await leader.write({"/t/k/a": b"1", "/t/k/b": b"1"})
            stale = await list_prefix(connection, "/t/k/")
            await leader.write({"/t/k/a": b"2"}, ["/t/k/b"])
            compacted = await leader.write({"/t/k/c": b"1"})
            await connection.call("KV.Compact", rpc.CompactionRequest(revision=compacted), repeat=False)
            view = EtcdView(connection, CLOCK, "/t/k/", stale)
            watching = asyncio.create_task(view.watch())
            snapshot = await view.changed(stale, None)
            assert snapshot.entries == (await c.list("/t/k/")).entries
            revision = await leader.write({"/t/k/d": b"1"})
            assert (await view.changed(snapshot, None)).changed == revision
            watching.cancel()

    run(story)


def test_a_list_in_pages_is_of_one_revision(tmp_path: Path) -> None:
    """Keys that move from the unread to the read pages meanwhile are neither missed nor seen twice."""

    async def story() -> None:
        async with etcd(tmp_path) as server, coordinator(server.endpoint, page=2) as c, c.session(60) as session:
            leader = await session.campaign("/t/leader", b"")
            here, there = [f"/t/k/a{n}" for n in range(5)], [f"/t/k/z{n}" for n in range(5)]
            await leader.write(dict.fromkeys(there, b""))
            moving = True

            async def move() -> None:
                come, go = here, there
                while moving:
                    await leader.write(dict.fromkeys(come, b""), go)
                    come, go = go, come

            mover = asyncio.create_task(move())
            for _ in range(40):
                listed = await c.list("/t/k/")
                assert sorted(listed.entries) in (here, there)
            moving = False
            await mover

    run(story)


def test_a_view_that_missed_something_is_put_right_by_the_next_list(tmp_path: Path) -> None:
    async def story() -> None:
        async with etcd(tmp_path) as server, coordinator(server.endpoint, resync_s=0.2) as c, c.session(60) as session:
            leader = await session.campaign("/t/leader", b"")
            await leader.write({"/t/k/a": b"1"})
            async with c.watch("/t/k/") as view:
                known = view.snapshot
                view._latest.publish(Snapshot({}, known.revision, known.revision, known.history))
                wrong = view.snapshot
                await leader.barrier()
                await leader.write({"/t/elsewhere": b""})
                right = await view.changed(wrong, None)
                assert right.entries == known.entries

    run(story)


# --- an etcd that was replaced ----------------------------------------------------------------------------------------


async def fill(server: EtcdServer, writes: int) -> None:
    """What others write there."""
    async with coordinator(server.endpoint) as other, other.session(60) as session:
        leader = await session.campaign("/t/other", b"")
        for number in range(writes):
            await leader.write({"/t/k/a": b"again %d" % number} if number < 3 else {"/t/filled": b""})


async def replace(server: EtcdServer, folder: Path, writes: int) -> None:
    """Another etcd in the same place, in which others have written something before anybody could look."""
    await server.embedded.stop()
    (folder / "data").rename(folder / "old")
    if writes:
        aside = EtcdServer(folder / "aside")
        await aside.start()
        await fill(aside, writes)
        await aside.embedded.stop()
        (folder / "aside" / "data").rename(folder / "data")
    await server.embedded.start()


@pytest.mark.parametrize("overtaken", [False, True], ids=["behind", "ahead"])
def test_an_empty_etcd_in_the_same_place_is_told_from_one_that_was_away(tmp_path: Path, overtaken: bool) -> None:
    """Also when it has come further already than the one before."""

    async def story() -> None:
        async with etcd(tmp_path) as server, coordinator(server.endpoint) as c:
            async with c.watch("/t/k/") as view, c.session(3) as session:
                leader = await session.campaign("/t/leader", b"")
                for number in range(20):
                    known = await leader.write({"/t/k/a": b"%d" % number, "/t/k/b": b"1"})
                before = await settled(view, lambda snapshot: snapshot.revision >= known)
                await replace(server, tmp_path, 40 if overtaken else 0)
                after = await settled(view, lambda snapshot: snapshot.history > before.history)
                assert after.history == 1
                assert after.changed_since(before)
                assert set(after.entries) <= {"/t/k/a"}
                await asyncio.gather(session.lost(), leader.lost())
                with pytest.raises(OwnershipLost):
                    await leader.write({"/t/k/b": b"late"})
            async with c.watch("/t/k/") as view, c.session(60) as session:
                successor = await session.campaign("/t/leader", b"")
                seen = view.snapshot
                await successor.write({"/t/k/c": b"1"})
                assert "/t/k/c" in (await view.changed(seen, None)).entries
                assert "/t/k/b" not in view.snapshot.entries

    run(story)


def test_whoever_only_watches_notices_another_etcd_that_has_come_half_as_far(tmp_path: Path) -> None:
    """What it has read itself is older than both: all that it knows of the first one's end came by its watch."""

    async def story() -> None:
        async with etcd(tmp_path) as server, coordinator(server.endpoint) as c, c.watch("/t/k/") as view:
            async with coordinator(server.endpoint) as other, other.session(60) as session:
                leader = await session.campaign("/t/leader", b"")
                for number in range(20):
                    known = await leader.write({"/t/k/a": b"%d" % number, "/t/k/b": b"1"})
            before = await settled(view, lambda snapshot: snapshot.revision >= known)
            await replace(server, tmp_path, 5)
            after = await settled(view, lambda snapshot: snapshot.history > before.history)
            assert after.revision < known
            assert set(after.entries) == {"/t/k/a"}

    run(story)


# --- writes whose answer is lost, and writes that are refused ---------------------------------------------------------


async def value_at(coordinator: EtcdCoordinator, key: str, value: bytes) -> int:
    """Wait until the key has this value; the revision at which it was written."""
    async with coordinator.watch(key) as view:
        snapshot = await settled(
            view, lambda snapshot: key in snapshot.entries and snapshot.entries[key].value == value
        )
    return snapshot.entries[key].revision


def test_a_write_whose_answer_was_lost_is_not_repeated(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            etcd(tmp_path / "etcd") as server,
            coordinator(server.endpoint) as direct,
            cut_wire(tmp_path, server.endpoint) as wire,
            coordinator(wire.endpoint, attempt_s=20.0) as c,
            c.session(60) as session,
        ):
            leader = await session.campaign("/t/leader", b"")
            before = await leader.write({"/t/k": b"1"})
            wire.withhold()
            writing = asyncio.create_task(leader.write({"/t/k": b"2"}))
            assert await value_at(direct, "/t/k", b"2") == before + 1
            wire.cut()
            with pytest.raises(Transient):
                await writing
            # What may be repeated is: the leader reads, and goes on from what it finds.
            assert await until_answered(leader.barrier) == before + 1
            assert await leader.write({"/t/k": b"3"}, expect={"/t/k": before + 1}) == before + 2

    run(story)


def test_registrations_and_campaigns_whose_answers_were_lost_come_out_right(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            etcd(tmp_path / "etcd") as server,
            coordinator(server.endpoint) as direct,
            cut_wire(tmp_path, server.endpoint) as wire,
            coordinator(wire.endpoint, attempt_s=20.0, answer_s=40.0) as c,
            c.session(60) as session,
        ):
            await session.register("/t/m/a", b"1")
            wire.withhold()
            registering = asyncio.create_task(session.register("/t/m/a", b"2"))
            written = await value_at(direct, "/t/m/a", b"2")
            wire.cut()
            await registering
            assert await value_at(direct, "/t/m/a", b"2") == written
            await session.register("/t/m/a", b"3")

            wire.withhold()
            campaigning = asyncio.create_task(session.campaign("/t/leader", b"me"))
            won = await value_at(direct, "/t/leader", b"me")
            wire.cut()
            leader = await campaigning
            assert leader.revision == won
            await leader.barrier()

    run(story)


def test_a_campaign_given_up_while_its_victory_is_on_the_way_holds_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            etcd(tmp_path / "etcd") as server,
            coordinator(server.endpoint) as direct,
            cut_wire(tmp_path, server.endpoint) as wire,
            coordinator(wire.endpoint, attempt_s=20.0, answer_s=40.0) as c,
            c.session(60) as session,
            direct.session(60) as other,
        ):
            wire.withhold()
            campaigning = asyncio.create_task(session.campaign("/t/leader", b"hesitant"))
            await value_at(direct, "/t/leader", b"hesitant")
            campaigning.cancel()
            with pytest.raises(asyncio.CancelledError):
                await campaigning
            wire.cut()
            await other.campaign("/t/leader", b"resolute")
            assert session.alive(CLOCK.elapsed())

    run(story)


@pytest.mark.parametrize("size", [1_600_000, 4_000_000])
def test_a_value_that_is_too_large_is_not_tried_again(tmp_path: Path, size: int) -> None:
    """The server has two limits, and two ways to say so."""

    async def story() -> None:
        async with etcd(tmp_path) as server, coordinator(server.endpoint) as c, c.session(60) as session:
            leader = await session.campaign("/t/leader", b"")
            with pytest.raises(Permanent, match="larg"):
                await leader.write({"/t/k": bytes(size)})
            await leader.write({"/t/k": bytes(1_000_000)})

    run(story)


def test_a_list_larger_than_one_message_may_be_is_read(tmp_path: Path) -> None:
    """gRPC's own limit is 4 MiB; a watch that begins behind all of it gets it at once."""

    async def story() -> None:
        async with (
            etcd(tmp_path) as server,
            coordinator(server.endpoint) as c,
            connected(server.endpoint) as connection,
            c.session(60) as session,
        ):
            empty = await list_prefix(connection, "/t/k/")
            leader = await session.campaign("/t/leader", b"")
            for number in range(6):
                newest = await leader.write({f"/t/k/{number}": bytes(1_000_000)})
            listed = await c.list("/t/k/")
            assert len(listed.entries) == 6
            view = EtcdView(connection, CLOCK, "/t/k/", empty)
            watching = asyncio.create_task(view.watch())
            late = await settled(view, lambda snapshot: snapshot.changed >= newest)
            assert late.entries == listed.entries
            watching.cancel()

    run(story)


@pytest.mark.usefixtures("unaware")
def test_former_leader_is_refused_by_other_etcd_at_same_revision(tmp_path: Path) -> None:
    """Both won at revision 2: what tells them apart is the lease."""

    async def story() -> None:
        async with etcd(tmp_path) as server, coordinator(server.endpoint) as c, c.session(60) as session:
            before = await session.campaign("/t/leader", b"before")
            await server.replace()
            async with coordinator(server.endpoint) as other, other.session(60) as afterwards:
                leader = await afterwards.campaign("/t/leader", b"now")
                assert leader.revision == before.revision
                assert before.acting(CLOCK.elapsed())
                with pytest.raises(OwnershipLost):
                    await until_answered(lambda: before.write({"/t/k": b"late"}))
                assert await other.get("/t/k") is None

    run(story)


@pytest.mark.usefixtures("unaware")
def test_the_server_itself_refuses_a_leader_that_does_not_know_it_is_deposed(tmp_path: Path) -> None:
    async def story() -> None:
        async with etcd(tmp_path) as server, coordinator(server.endpoint) as c, c.session(60) as session:
            deposed = await session.campaign("/t/leader", b"old")
            async with c.session(60) as other:
                operator = await other.campaign("/t/operator", b"")
                await operator.write({}, ["/t/leader"])
                successor = await other.campaign("/t/leader", b"new")
                assert deposed.acting(CLOCK.elapsed())
                with pytest.raises(OwnershipLost):
                    await deposed.write({"/t/k": b"late"}, expect={"/t/k": 7})
                assert not deposed.acting(CLOCK.elapsed())
                await successor.barrier()
            assert await c.get("/t/k") is None

    run(story)
