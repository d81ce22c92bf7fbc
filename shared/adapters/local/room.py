"""How full disks and the memory of this process are, as the operating system has it."""

import asyncio
import ctypes
import gc
import os
import time
from pathlib import Path
from typing import Final

from shared.domain.errors import Transient
from shared.domain.watermarks import Level
from shared.ports.rationing import Gauge

OF_A_CGROUP: Final = 0.75
"""The share of a cgroup's limit that a process may take by default: the rest is for what the kernel counts as well,
the page cache first, before it kills."""

OF_A_MACHINE: Final = 0.25
"""The share of a machine's memory where no cgroup limits it: masters, workers and engines lie side by side there."""

KEPT_BYTES: Final = 32 << 20
"""So much of a disk, or an eighth, never counts as free: logs, engines and reports in hand write there, too. `orb up`
ends when half of it is left."""

RELIEF_S: Final = 30.0
_V1_UNLIMITED: Final = 1 << 60


def disk_of(path: Path) -> Gauge:
    """The disk on which `path` lies, or will lie once it is made. A part of it is claimed, for what others write."""

    def read() -> Level:
        place = path.absolute()
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            found = os.statvfs(place)
        except OSError as error:
            raise Transient(f"the disk of {path} cannot be looked at: {error.strerror}") from error
        used = found.f_blocks - found.f_bfree
        most = (used + found.f_bavail) * found.f_frsize
        return Level(used * found.f_frsize, most, claimed=min(KEPT_BYTES, most // 8))

    async def gauge() -> Level:
        return await asyncio.to_thread(read)  # a disk that hangs holds up no loop

    return gauge


def memory_of_process(ceiling: int, *, relief_s: float = RELIEF_S) -> Gauge:
    """What this process has of memory, of `ceiling` bytes; 0: of `default_ceiling`.

    What is no longer used is given back before it counts: near the ceiling, at most every `relief_s`.
    """
    most = ceiling or default_ceiling()
    relieved_at = float("-inf")

    async def gauge() -> Level | None:
        nonlocal relieved_at
        used = resident()
        if used is None:
            return None
        if used >= most * 0.9 and time.monotonic() - relieved_at >= relief_s:
            relieved_at = time.monotonic()
            _give_back()
            used = resident() or used
        return Level(used, most)

    return gauge


def default_ceiling(root: Path = Path("/")) -> int:
    """A share of the least that limits this process: its cgroup's, or else a smaller one of the machine's."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = cgroup_limit(root)
    if limit is not None and limit < machine:
        return int(limit * OF_A_CGROUP)
    return int(machine * OF_A_MACHINE)


def cgroup_limit(root: Path = Path("/")) -> int | None:
    """The least memory limit of this process's cgroup and those above it, version 2 or 1; None without one."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, inside = line.split(":", 2)
        if controllers == "":
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        folder = top / inside.strip("/")
        # In a container the path may be the host's, of which only the end is there: then the limit lies at the top.
        for place in (folder, *folder.parents):
            limits.append(_limit_in(place / name))
            if place == top:
                break
    told = [limit for limit in limits if limit is not None]
    return min(told, default=None)


def resident() -> int | None:
    """Bytes of this process in memory; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _limit_in(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < _V1_UNLIMITED else None


def _give_back() -> None:
    """Free what only refers to itself, and return free memory to the system, where its C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
