"""A folder of ours: made on a disk that carries it, and held by one command at a time.

The lock is one flock on one open file that the command takes and every process it starts inherits. So whoever gets it
knows that no process of an earlier run lives, however that run ended.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cli.exits import Environment
from cli.watch import say
from shared.adapters.local.private import closing, make_private

ROOM_BYTES: Final = 16 << 20
"""Free space below which nothing is begun and a run stops, while it still can in good order."""

_STRAGGLERS_S: Final = 5.0
_POLL_S: Final = 0.05
_REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "ceph", "glusterfs", "afs"})


def made(path: Path, flag: str, *, private: bool = False) -> set[str]:
    """Make the folder, or find it: the names in it. Environment when it cannot be; `flag` is what chooses another.

    A `private` one is made for this user alone; one that others may read gets a warning. Else the umask decides.
    """
    try:
        if private:
            make_private(path)
            if (command := closing(path)) is not None:
                say(f"other users of this machine may read {path}, where keys' digests and logs lie; run `{command}`.")
        path.mkdir(parents=True, exist_ok=True)
        return {entry.name for entry in path.iterdir()}
    except OSError as error:
        raise Environment(f"cannot make the folder {path}: {error.strerror}; choose another with {flag}.") from None


def absent(path: Path) -> list[Path]:
    """The folders of `path` that are not there, the deepest first."""
    return [folder for folder in (path, *path.parents) if not folder.exists()]


def unmake(folders: list[Path]) -> None:
    """Remove folders that were made, the deepest first, up to one in which something lies."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:  # somebody uses it by now
            return


def check_disk(path: Path, free_bytes: int, flag: str, *, needed_bytes: int = ROOM_BYTES) -> None:
    """Environment where a database would be damaged, or has no room."""
    if (kind := _filesystem(path)) in _REMOTE:
        raise Environment(
            f"{path} is on a network file system ({kind}), where a database can be damaged; "
            f"choose a folder on a local disk with {flag}."
        )
    if free_bytes < needed_bytes:
        raise Environment(
            f"only {free_bytes >> 20} MiB are free on the disk of {path} and {needed_bytes >> 20} are needed; "
            f"make room or choose another disk with {flag}."
        )


@contextlib.contextmanager
def held(lock_file: Path, *, command: str, flag: str) -> Iterator[int]:
    """Hold the lock of a folder in which only `command` works; the descriptor to hand on to child processes.

    Environment when another one is at work there, or what it left behind does not end.
    """
    folder = lock_file.parent
    try:
        lock = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise Environment(f"cannot write in {folder}: {error.strerror}; choose another folder with {flag}.") from None
    try:
        _acquire(lock, lock_file, command)
        if not os.fstat(lock).st_nlink:
            raise Environment(f"a start in {folder} was refused just now, and tidied up; run the same command again.")
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps({"pid": os.getpid(), "since": int(time.time())}).encode(), 0)
        yield lock
    finally:
        os.close(lock)


def owner_of(lock_file: Path) -> int | None:
    """The process of the command that holds the lock; None when nobody does. Takes it and lets it go."""
    try:
        lock = os.open(lock_file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _owner(lock)
    finally:
        os.close(lock)


def holders(lock_file: Path) -> list[int]:
    """The processes that have `lock_file` open, as far as /proc tells (Linux; elsewhere none)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            if any(os.path.samefile(descriptor, lock_file) for descriptor in entry.iterdir() if _is_file(descriptor)):
                found.append(int(entry.parent.name))
    return sorted(pid for pid in found if pid != os.getpid())


def _acquire(lock: int, lock_file: Path, command: str) -> None:
    """A command that runs is told of at once; what a killed one left behind gets a moment to end."""
    folder = lock_file.parent
    deadline = time.monotonic() + _STRAGGLERS_S
    while True:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        owner = _owner(lock)
        if (owner is not None and _alive(owner)) or time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)  # nothing of the command runs yet that it could hold up
    others = holders(lock_file) or ([owner] if owner is not None else [])
    named = f"process {others[0]}" if len(others) == 1 else "processes " + ", ".join(map(str, others))
    if owner is not None and owner in others:
        raise Environment(
            f"another `{command}` is at work in {folder} (process {owner}); let it finish, or end it with "
            f"`kill -INT {owner}` and run the same command again."
        )
    raise Environment(
        f"{folder} is still held by {named if others else 'another process'} of an earlier run; end "
        f"{'it' if len(others) == 1 else 'them'} with `kill -KILL {' '.join(map(str, others))}` and run the same "
        "command again."
    )


def _is_file(descriptor: Path) -> bool:
    try:
        return os.readlink(descriptor).startswith("/")
    except OSError:
        return False


def _owner(lock: int) -> int | None:
    """The command that took the lock last."""
    try:
        return int(json.loads(os.pread(lock, 4096, 0))["pid"])
    except (ValueError, KeyError, TypeError):
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _filesystem(path: Path) -> str:
    """The type of file system that holds `path`, empty where the system does not tell."""
    whole, best, kind = os.fspath(path.resolve()), -1, ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text("utf-8", "replace").splitlines():
            words = line.split(" ")
            if len(words) > 2 and len(words[1]) > best:
                at = words[1].rstrip("/")
                if whole == at or whole.startswith(f"{at}/"):
                    best, kind = len(words[1]), words[2]
    return kind
