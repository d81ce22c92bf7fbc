"""What the processes of a cluster hold and what lies on its disks, seen from outside."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. `rss` (bytes) and `descriptors` are sums over each member or engine and its children. `logs` are the
    bytes of each member's log. `storage` are bytes by kind."""

    at_s: float
    rss: Mapping[str, int]
    descriptors: Mapping[str, int]
    logs: Mapping[str, int]
    storage: Mapping[str, int]


def held(pids: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the resident bytes and the descriptors by name. A process that has ended is left out."""
    rss: dict[str, int] = {}
    descriptors: dict[str, int] = {}
    for name, pid in pids.items():
        try:
            own = psutil.Process(pid)
            family = [own, *own.children(recursive=True)]
            rss[name] = sum(_rss(process) for process in family)
            descriptors[name] = sum(_descriptors(process) for process in family)
        except psutil.NoSuchProcess:
            continue
    return rss, descriptors


def bytes_below(folders: Iterable[Path]) -> int:
    """Return the bytes of all files below the folders. A file that ends meanwhile counts nothing."""
    return sum(_size(path) for folder in folders for path in folder.rglob("*"))


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _descriptors(process: psutil.Process) -> int:
    try:
        return int(process.num_fds())
    except psutil.NoSuchProcess:
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0
