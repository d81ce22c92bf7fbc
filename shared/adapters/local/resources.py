"""Gauges of disks and of this process's memory. A gauge is a function that returns how full a resource is."""

import asyncio
import ctypes
import gc
import os
import time
from pathlib import Path
from typing import Final

from shared.domain.errors import Transient
from shared.domain.ops.watermarks import FillLevel
from shared.runtime.pressure_monitor import Gauge

OF_A_CGROUP: Final = 0.75
"""The share of its cgroup's memory limit that a process may take by default. The rest is for the other memory that the
kernel counts towards the limit, mainly the page cache."""

OF_A_MACHINE: Final = 0.25
"""The share of a machine's memory that a process may take if no cgroup limits it. Masters, workers, NATS, etcd and the
database share the machine."""

KEPT_BYTES: Final = 32 << 20
"""How many bytes of a disk a gauge does not count as free. On a disk under 256 MiB: an eighth of the disk instead.

The bytes are reserved for logs, NATS, etcd, the database and unsent reports."""

RELIEF_S: Final = 30.0
_V1_UNLIMITED: Final = 1 << 60


def disk_of(path: Path) -> Gauge:
    """Return a gauge of the disk on which `path` is, or will be created.

    `min(KEPT_BYTES, size of the disk // 8)` bytes do not count as free. They are reserved for other programs. The gauge
    raises Transient if the disk cannot be read.
    """

    def read() -> FillLevel:
        place = path.absolute()
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            disk = os.statvfs(place)
        except OSError as error:
            raise Transient(f"cannot read the free space of the disk of {path}: {error.strerror}") from error
        used = disk.f_blocks - disk.f_bfree
        max_bytes = (used + disk.f_bavail) * disk.f_frsize
        return FillLevel(used * disk.f_frsize, max_bytes, claimed=min(KEPT_BYTES, max_bytes // 8))

    async def gauge() -> FillLevel:
        return await asyncio.to_thread(read)  # in a thread, since a hanging disk must not block the loop

    return gauge


def memory_of_process(ceiling: int, *, relief_s: float = RELIEF_S) -> Gauge:
    """Return a gauge that compares this process's memory with `ceiling` bytes (0 means `default_ceiling`).

    From 90 % of the ceiling on, the gauge first frees memory by gc and malloc_trim, at most once in `relief_s` seconds.
    It returns None if the system does not report the memory.
    """
    max_bytes = ceiling or default_ceiling()
    relieved_at = float("-inf")

    async def gauge() -> FillLevel | None:
        nonlocal relieved_at
        used = resident()
        if used is None:
            return None
        if used >= max_bytes * 0.9 and time.monotonic() - relieved_at >= relief_s:
            relieved_at = time.monotonic()
            _give_back()
            used = resident() or used
        return FillLevel(used, max_bytes)

    return gauge


def default_ceiling(root: Path = Path("/")) -> int:
    """Return the number of bytes of memory that a process may use if no ceiling is configured.

    - If a cgroup limits the process to less than the machine's memory: `OF_A_CGROUP * limit`.
    - Otherwise: `OF_A_MACHINE * memory of the machine`.

    `root` replaces `/` in paths, for tests.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = cgroup_limit(root)
    if limit is not None and limit < machine:
        return int(limit * OF_A_CGROUP)
    return int(machine * OF_A_MACHINE)


def cgroup_limit(root: Path = Path("/")) -> int | None:
    """Return the smallest memory limit in bytes of this process's cgroup and its parents, or None if there is no limit.

    It reads cgroups of version 1 and 2. `root` replaces `/` in paths, for tests.
    """
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
        # In a container the path may be the host's and not exist here. The limit is then at the top.
        for place in (folder, *folder.parents):
            limits.append(_limit_in(place / name))
            if place == top:
                break
    return min((limit for limit in limits if limit is not None), default=None)


def resident() -> int | None:
    """Return the bytes of this process's memory that are resident, or None if the system does not report them."""
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
    """Run the garbage collector, and return free memory to the system if the C library has malloc_trim."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
