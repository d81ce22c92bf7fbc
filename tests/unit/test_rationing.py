"""Whoever is short of room takes on nothing new, says why, and goes on by itself: masters and workers."""

import asyncio
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from api.frontier.capacity import PoolCapacity
from api.members.member_stats import MemberStats, PressureAt
from api.members.pressure import MasterPressure, WorkerPressureEvents
from shared.adapters.local.resources import (
    OF_A_CGROUP,
    OF_A_MACHINE,
    cgroup_limit,
    default_ceiling,
    disk_of,
    memory_of_process,
    resident,
)
from shared.domain.errors import Transient
from shared.domain.ops.watermarks import OF_STORAGE, FillLevel, Pressure, Resource
from shared.runtime.pressure_monitor import Gauge, PressureMonitor
from shared.wire.messages import MasterStatus, WorkerStatus

MIB = 1 << 20
TOP = "sys/fs/cgroup"
ROOM, LITTLE, NONE = FillLevel(10, 100), FillLevel(93, 100), FillLevel(99, 100)


def played(*levels: FillLevel | Exception | None) -> Gauge:
    """A gauge that reads these, one after the other."""
    left: Iterator[FillLevel | Exception | None] = iter(levels)

    async def gauge() -> FillLevel | None:
        level = next(left)
        if isinstance(level, Exception):
            raise level
        return level

    return gauge


def times(rationing: PressureMonitor, n: int) -> list[str | None]:
    """Why nothing is taken on, after each of `n` looks."""

    async def look() -> list[str | None]:
        said = []
        for _ in range(n):
            await rationing.once()
            said.append(rationing.reason)
        return said

    return asyncio.run(look())


def full(detail: str) -> tuple[Pressure, ...]:
    """Return pressure on an archive with this detail; none if that is empty."""
    return (Pressure("archive", detail),) if detail else ()


def reason(found: PressureAt | None) -> str | None:
    return None if found is None else found.reason


# --- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("masters", "workers", "still"),
    [
        ((), (), False),
        (("",), ("", "full"), False),
        (("", "full"), ("",), False),
        (("full", "full"), ("",), True),
        (("",), ("full", "full"), True),
    ],
)
def test_pool_stalls_when_no_master_sends_or_no_worker_takes(
    masters: tuple[str, ...], workers: tuple[str, ...], still: bool
) -> None:
    roster = MemberStats()
    for number, held in enumerate(masters):
        roster.master_reported(MasterStatus(f"m{number}", 4, leading=False, pressure=full(held)), 0.0)
    roster.master_reported(MasterStatus("owns-nothing", 0, leading=False, pressure=full("full")), 0.0)
    for number, short in enumerate(workers):
        roster.worker_reported(WorkerStatus(f"w{number}", "default", 8, 0, pressure=full(short)), 0.0)
    roster.worker_reported(WorkerStatus("elsewhere", "eu", 8, 0), 0.0)
    assert roster.stands_still("default", 1.0) is still
    assert roster.stands_still("default", 60.0) is False, "nobody was heard of lately"


# --- masters ----------------------------------------------------------------------------------------------------------


class Held:
    """A master's room, what its owners may send out, and what was told of it."""

    def __init__(self, gauge: Gauge) -> None:
        self.room = PoolCapacity()
        self.room.worker_reported(WorkerStatus(worker="w1", pool="default", visits=10, busy=0), 0.0)
        self.told: list[tuple[str, str, bool]] = []
        self.news = 0
        pressure = MasterPressure("m1", self.room, self._hear, self._news)
        self.rationing = PressureMonitor({Resource.DATABASE: gauge}, lambda: OF_STORAGE, pressure.changed)

    def _hear(self, member: str, resource: str, reason: str | None) -> None:
        self.told.append((member, resource, reason is not None))

    def _news(self) -> None:
        self.news += 1


def test_a_master_without_room_sends_nothing_out_until_there_is_room_again() -> None:
    held = Held(played(ROOM, NONE, LITTLE, NONE, ROOM))
    sent = []
    for _ in range(5):
        times(held.rationing, 1)
        sent.append(held.room.for_pool("default", 0.0))
    assert sent == [20, 0, 0, 0, 20]
    assert held.told == [("m1", "database", True), ("m1", "database", False)], "told once each way"
    assert held.news == 2


def test_a_gauge_that_does_not_answer_leaves_the_verdict_as_it_was() -> None:
    held = Held(played(NONE, Transient("away"), None, ROOM))
    said = times(held.rationing, 4)
    assert said[0] is not None
    assert said == [said[0], said[0], said[0], None]


def test_a_workers_shortage_is_told_once_by_whoever_leads() -> None:
    told: list[tuple[str, str, str | None]] = []
    leads = True
    room = WorkerPressureEvents(lambda: leads, lambda *change: told.append(change))
    archive, memory = Pressure("archive", "no disk"), Pressure("memory", "no memory")
    short = WorkerStatus(worker="w1", pool="default", visits=1, busy=0, pressure=(archive,))
    shorter = msgspec.structs.replace(short, pressure=(archive, memory))
    enough = WorkerStatus(worker="w1", pool="default", visits=1, busy=0)
    said = [None, enough, short, short, shorter, short, enough, enough]
    for before, status in itertools.pairwise(said):
        assert status is not None
        room.status_received(before, status)
    leads = False
    room.status_received(enough, short)
    assert told == [
        ("w1", "archive", "no disk"),
        ("w1", "memory", "no memory"),
        ("w1", "memory", None),
        ("w1", "archive", None),
    ]


# --- what is shown of it ----------------------------------------------------------------------------------------------


def test_crawl_is_held_by_a_master_or_by_all_workers_of_its_pool() -> None:
    roster = MemberStats()
    assert roster.pressure("default", 0.0) is None, "no member reported pressure"
    for name, pool, short in (("w1", "default", "no disk"), ("w2", "default", ""), ("w3", "eu", "no memory")):
        roster.worker_reported(WorkerStatus(worker=name, pool=pool, visits=1, busy=0, pressure=full(short)), 0.0)
    assert roster.pressure("default", 1.0) is None, "w2 works"
    assert reason(roster.pressure("eu", 1.0)) == "worker w3: no memory"
    roster.worker_reported(WorkerStatus(worker="w2", pool="default", visits=1, busy=0, pressure=full("no disk")), 1.0)
    assert reason(roster.pressure("default", 1.0)) == "worker w1: no disk"
    roster.master_reported(MasterStatus(master="m0", partitions=0, pressure=full("no memory")), 1.0)
    assert reason(roster.pressure("default", 1.0)) == "worker w1: no disk", "a master that owns nothing holds nothing"
    roster.master_reported(MasterStatus(master="m1", partitions=8, pressure=full("the database is full")), 1.0)
    assert reason(roster.pressure("default", 1.0)) == "master m1: the database is full"
    assert roster.pressure("default", 60.0) is None, "who has been silent for long says nothing"


# --- workers ----------------------------------------------------------------------------------------------------------


def test_a_worker_is_told_each_turn_with_the_reason() -> None:
    told: list[Sequence[Pressure]] = []
    rationing = PressureMonitor(
        {Resource.ARCHIVE: played(NONE, NONE, ROOM, ROOM)},
        lambda: OF_STORAGE,
        lambda state, _: told.append(state.pressure),
    )
    times(rationing, 4)
    assert told == [full("the archive's disk has 1 B free of 100 B; it goes on when 10 B are free"), ()]


# --- gauges -----------------------------------------------------------------------------------------------------------


def test_a_disk_is_read_before_its_folder_is_made(tmp_path: Path) -> None:
    level = asyncio.run(_read(disk_of(tmp_path / "not" / "yet" / "made")))
    found = os.statvfs(tmp_path)
    assert 0 < level.used <= level.capacity <= found.f_blocks * found.f_frsize


def test_the_memory_of_the_process_reaches_its_ceiling_and_leaves_it_again() -> None:
    asyncio.run(_read(memory_of_process(1)))  # what earlier tests left behind is given back
    begun = resident()
    assert begun is not None
    told: list[Sequence[Pressure]] = []
    gauge = memory_of_process(int((begun + 96 * MIB) / 0.9), relief_s=0.0)
    rationing = PressureMonitor({Resource.MEMORY: gauge}, lambda: OF_STORAGE, lambda s, _: told.append(s.pressure))
    assert times(rationing, 1) == [None]
    ballast = [bytearray(os.urandom(1 << 10) * 1024) for _ in range(200 + begun // MIB // 8)]
    (reason,) = times(rationing, 1)
    assert reason is not None
    assert reason.startswith("the process's memory is at ")
    del ballast
    assert times(rationing, 1) == [None]
    assert told == [(Pressure("memory", reason),), ()]


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", f"{TOP}/a/memory.max": "512\n", f"{TOP}/a/b/memory.max": "max"}, 512),
        ({"proc/self/cgroup": "0::/hosts/own\n", "sys/fs/cgroup/memory.max": "1024\n"}, 1024),
        ({"proc/self/cgroup": "5:memory:/x\n0::/\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "77\n"}, 77),
        ({"proc/self/cgroup": "5:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": str(1 << 62)}, None),
        ({"proc/self/cgroup": "0::/\n"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_least_limit_of_the_cgroups_is_found(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroup_limit(tmp_path) == limit
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    expected = int(machine * OF_A_MACHINE) if limit is None else int(limit * OF_A_CGROUP)
    assert default_ceiling(tmp_path) == expected


async def _read(gauge: Gauge) -> FillLevel:
    level = await gauge()
    assert level is not None
    return level
