"""Finds the process that holds a SQLite file's write lock, and whether it is a stopped master of this cluster.

A master writes a note beside the file (`<file>-master-<pid>`), with its id and the start time of its process. A later
process with the same process id has another start time. A master may end another process only if that process has a
note and is stopped.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

_ASK_S: Final = 5.0
_STOPPED: Final = frozenset("Tt")
_ASK: Final = """
import fcntl, struct, sys
start, length = map(int, sys.argv[2:])
with open(sys.argv[1], "rb") as file:
    lock = fcntl.fcntl(file, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, start, length, 0))
kind, _, _, _, pid = struct.unpack("hhqqi4x", lock)
print(-1 if kind == fcntl.F_UNLCK else max(0, pid))
"""
_WRITING: Final = ("120", "1")
"""The start and length, in bytes, of the range that SQLite's writer locks in the index of the write-ahead log
(sqlite.org/walformat.html)."""

_OPEN: Final = (str(0x40000002), "510")
"""The start and length of a byte range of the SQLite file. Each connection to a file with a write-ahead log locks some
byte of the range from its first statement until it is closed (sqlite.org/lockingv3.html, SHARED_FIRST and
SHARED_SIZE)."""


class MasterNote(msgspec.Struct, frozen=True):
    """The content of the file that a master writes beside its SQLite file. It identifies the master's process.

    `ticks`: the start time of the process, as in /proc. `boot`: the kernel's boot id.
    """

    member: str
    started_at_ms: int
    pid: int
    ticks: str
    boot: str


class LockHolder(msgspec.Struct, frozen=True):
    """The process that holds a lock. `pid` is 0 for a process of another container, whose pid the kernel does not show.

    `note`: the note of the process if it is a master on this machine, else None. `stopped`: a signal has stopped the
    process, so it does not run.
    """

    pid: int
    note: MasterNote | None
    stopped: bool


def write_note(path: Path, member: str, started_at_ms: int) -> Path:
    """Write the note of this process, a master, beside the database at `path`, and return the note's path.

    `member` and `started_at_ms`: the id and start time of the master. Also delete the notes of processes that have
    ended.
    """
    for other in path.parent.glob(f"{path.name}-master-*"):
        note = _read(other)
        if note is None or not _is(note):
            other.unlink(missing_ok=True)
    pid = os.getpid()
    note = MasterNote(member, started_at_ms, pid, _stat(pid)[1], _boot())
    at = path.with_name(f"{path.name}-master-{pid}")
    at.write_bytes(msgspec.json.encode(note))
    return at


def lock_holder(path: Path) -> LockHolder | None:
    """Return the process that holds the write lock of this SQLite file. Return None if the lock is free.

    Return None also if the holder cannot be found. Blocks for up to five seconds while a child process asks the kernel.
    """
    return _asked(path, path.with_name(f"{path.name}-shm"), _WRITING)


def opener(path: Path) -> LockHolder | None:
    """Return a process that has this SQLite file open. Return None if there is none, or if it cannot be found.

    It may be the caller's own process. Blocks for up to five seconds while a child process asks the kernel.
    """
    return _asked(path, path, _OPEN)


def _asked(path: Path, locked: Path, stretch: tuple[str, str]) -> LockHolder | None:
    """Return the process that locks a byte range of the file `locked`. None: no process does, or it cannot be found.

    `stretch`: the start and length of the range. `path`: the database, beside which masters write their notes.
    """
    if not sys.platform.startswith("linux"):
        return None
    # A process that closes any descriptor of a file loses all its locks on the file. So a child process asks.
    command = [sys.executable, "-I", "-S", "-c", _ASK, str(locked), *stretch]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_ASK_S, check=True, stdin=subprocess.DEVNULL)
        pid = int(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    if pid < 0:
        return None
    note = _read(path.with_name(f"{path.name}-master-{pid}"))
    known = note if note is not None and note.pid == pid and _is(note) else None
    return LockHolder(pid, known, _stat(pid)[0] in _STOPPED)


def end(note: MasterNote) -> bool:
    """Send SIGKILL to the master that wrote `note`, and return True. Return False if the master has ended already.

    A later process with the same pid is not killed.
    """
    try:
        process = os.pidfd_open(note.pid)
    except OSError:
        return False
    try:
        if not _is(note):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(process)
    return True


def _is(note: MasterNote) -> bool:
    """Return True if the process that wrote the note still runs. A later process with the same pid does not count."""
    return note.boot == _boot() and note.ticks != "" and note.ticks == _stat(note.pid)[1]


def _read(at: Path) -> MasterNote | None:
    try:
        return msgspec.json.decode(at.read_bytes(), type=MasterNote)
    except (OSError, msgspec.MsgspecError):
        return None


def _stat(pid: int) -> tuple[str, str]:
    """Return a process's state and start time (proc(5), fields 3 and 22). Both are empty if no such process exists."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    return "", ""


def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
