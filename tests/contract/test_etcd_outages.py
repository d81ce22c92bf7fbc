"""Leases and elections when a process, a server or one of three members is stopped or killed."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shared.domain.errors import Transient
from shared.runtime.retry import until_answered
from tests.support.engines.etcd import (
    CLOCK,
    Writer,
    cluster,
    coordinator,
    etcd,
    leader_of,
    patient_session,
    run,
    settled,
    stopped,
)
from tests.support.faults.link import links
from tests.support.machine_clock import living

ROOT = Path(__file__).parents[2]

# --- leases -----------------------------------------------------------------------------------------------------------

HOLDER = """
import asyncio, sys
from shared.domain.errors import OwnershipLost, Transient
from tests.support.engines.etcd import CLOCK, coordinator

async def main():
    async with coordinator(sys.argv[1]) as c, c.session(6) as session:
        leader = await session.campaign("/t/leader", b"holder")
        told = None
        while True:
            if session.ok_until != told:
                told = session.ok_until
                print("until", told, flush=True)
            try:
                await leader.write({"/t/k": str(CLOCK.elapsed()).encode()})
            except OwnershipLost:
                print("lost", CLOCK.elapsed(), flush=True)
                return
            except Transient:
                pass  # a write that was under way when it was stopped: try the next one
            await asyncio.sleep(0.01)

asyncio.run(main())
"""


@pytest.mark.long
def test_stopped_leader_is_deposed_before_another_is_elected(tmp_path: Path) -> None:
    async def story() -> None:
        async with etcd(tmp_path) as server, coordinator(server.endpoint) as c, c.session(30) as session:
            holder = await asyncio.create_subprocess_exec(
                sys.executable, "-c", HOLDER, server.endpoint, stdout=subprocess.PIPE, cwd=ROOT
            )
            try:
                assert holder.stdout is not None
                told = [await holder.stdout.readline() for _ in range(2)]
                with stopped(holder.pid):
                    leader = await session.campaign("/t/leader", b"successor")
                    elected = CLOCK.elapsed()
                    mark = await leader.write({"/t/mark": b""})
                told += (await holder.stdout.read()).splitlines()
                ends = [float(line.split()[1]) for line in told if line.startswith(b"until")]
                assert max(ends) <= elected
                assert any(line.startswith(b"lost") for line in told)
                entry = await c.get("/t/k")
                assert entry is not None
                assert entry.revision < mark
                await leader.barrier()
            finally:
                if holder.returncode is None:
                    holder.kill()
                await holder.wait()

    run(story)


@pytest.mark.long
def test_session_survives_short_outage_and_ends_in_long_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with etcd(tmp_path) as server, coordinator(server.endpoint) as c, c.session(6) as session:
            leader = await session.campaign("/t/leader", b"")
            with server.stopped():
                await asyncio.sleep(2.5)  # a renewal is due after two
            await until_answered(leader.barrier)
            until = session.ok_until
            assert session.alive(CLOCK.elapsed())
            with server.stopped():
                await session.lost()
                assert CLOCK.elapsed() >= until
                assert not leader.acting(CLOCK.elapsed())
            async with c.session(3) as again:
                await again.campaign("/t/leader", b"")

    run(story)


def test_an_etcd_that_takes_long_to_answer_a_connection_is_connected_to(tmp_path: Path) -> None:
    """Far away, or on a machine with too much to do: an attempt to connect that is given up and begun anew within a
    second never comes to an end."""

    async def story() -> None:
        with links() as wires:
            async with etcd(tmp_path / "etcd") as server:
                port = wires.between("m1", "etcd", server.endpoint)
                wires.delay("m1", "etcd", 0.8)
                async with coordinator(f"http://127.0.0.1:{port}", attempt_s=5.0, answer_s=30.0) as c:
                    assert await c.get("/t/k") is None

    run(story)


# --- three members ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blow", ["kill", "stop"])
def test_the_death_of_etcds_leader_interrupts_for_elections_not_for_leases(tmp_path: Path, blow: str) -> None:
    """The gap between acknowledged writes is bounded by a few elections and one attempt; nothing watched is lost."""
    election_s, attempt_s = 0.5, 1.0

    async def story() -> None:
        async with cluster(tmp_path, election_ms=int(election_s * 1000)) as members:
            endpoints = [member.endpoint for member in members]
            async with (
                coordinator(*endpoints, attempt_s=attempt_s) as c,
                patient_session(c, 15) as session,
                c.watch("/t/k/") as view,
            ):
                leadership = await session.campaign("/t/leader", b"")
                writer = Writer(leadership)
                writing = asyncio.create_task(writer.write())
                await writer.reach(50)
                member = await leader_of(members)
                with living() as lived:
                    if blow == "kill":
                        member.kill()
                        await writer.reach(1)
                        gap = lived()
                    else:
                        with member.stopped():
                            await writer.reach(1)
                            gap = lived()
                print(f"{blow}: {gap:.2f} s without an acknowledged write")
                assert gap < 6 * election_s + 3 * attempt_s
                await writer.reach(50)
                writer.stop = True
                await writing
                newest = writer.acknowledged[max(writer.acknowledged)]
                await settled(view, lambda snapshot: snapshot.revision >= newest)
                listed = await c.list("/t/k/")
                assert view.snapshot.entries == listed.entries
                assert {key: listed.entries[key].revision for key in writer.acknowledged} == writer.acknowledged
                assert leadership.acting(CLOCK.elapsed())

    run(story)


def test_a_watch_leaves_a_member_that_went_silent_as_soon_as_a_call_has(tmp_path: Path) -> None:
    """Its connection stands; the pings by which gRPC would notice are ten seconds apart."""
    attempt_s = 0.5

    async def story() -> None:
        async with cluster(tmp_path, election_ms=500) as members:
            first, second, third = (member.endpoint for member in members)
            async with (
                coordinator(second, third) as other,
                patient_session(other, 15) as session,
                coordinator(first, second, third, attempt_s=attempt_s) as c,
                c.watch("/t/k/") as view,
            ):
                leader = await session.campaign("/t/leader", b"")
                with members[0].stopped(), living() as lived:
                    await until_answered(lambda: c.list("/t/k/"))
                    revision = await until_answered(lambda: leader.write({"/t/k/a": b"1"}))
                    await settled(view, lambda snapshot: snapshot.changed >= revision)
                    assert lived() < 15 * attempt_s

    run(story)


@pytest.mark.long
def test_a_member_without_the_others_ends_its_watches_instead_of_going_quiet(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, election_ms=500) as members:
            alone, *others = members
            async with coordinator(alone.endpoint, answer_s=5.0) as c, c.watch("/t/k/") as view:
                seen = view.snapshot
                with capture_logs() as told:
                    for member in others:
                        member.kill()
                    while not any("no leader" in line.get("error", "") for line in told):  # noqa: ASYNC110  the log has no event
                        await asyncio.sleep(0.05)
                    with pytest.raises(Transient):
                        await c.list("/t/k/")
                assert view.snapshot is seen
                await others[0].start()
                async with coordinator(others[0].endpoint) as other, patient_session(other, 15) as session:
                    await until_answered(lambda: session.register("/t/k/a", b"1"))
                    assert "/t/k/a" in (await view.changed(seen, None)).entries

    run(story)


def test_one_member_of_three_suffices_to_get_in(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, election_ms=500) as members:
            members[0].kill()
            endpoints = [member.endpoint for member in members]
            async with coordinator(*endpoints) as c, c.watch("/t/") as view, patient_session(c, 15) as session:
                await session.register("/t/m/a", b"1")
                await settled(view, lambda snapshot: "/t/m/a" in snapshot.entries)

    run(story)
