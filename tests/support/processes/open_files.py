"""What the processes of a family hold open, as the kernel has it."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil


def open_in(process: psutil.Process) -> dict[int, str]:
    """What each descriptor of a process leads to; sockets and pipes by a number that is theirs alone."""
    found = {}
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found[int(entry.name)] = os.readlink(entry)
    return found


def kept_on_exec(process: psutil.Process) -> dict[int, str]:
    """Of those the ones that a program which the process starts would hold, too, beside input, output and error."""
    kept = {}
    for number, target in open_in(process).items():
        with suppress(FileNotFoundError):
            lines = Path(f"/proc/{process.pid}/fdinfo/{number}").read_text().splitlines()
            flags = int(next(line for line in lines if line.startswith("flags:")).split()[1], 8)
            if number > 2 and not flags & os.O_CLOEXEC:
                kept[number] = target
    return kept


def shared_connections(family: Iterable[psutil.Process]) -> dict[str, list[tuple[int, int]]]:
    """Sockets and pipes that several processes hold: (process, descriptor) by which."""
    held: dict[str, list[tuple[int, int]]] = {}
    for process in family:
        for number, target in open_in(process).items():
            if target.startswith(("socket:", "pipe:")):
                held.setdefault(target, []).append((process.pid, number))
    return {target: holders for target, holders in held.items() if len({pid for pid, _ in holders}) > 1}
