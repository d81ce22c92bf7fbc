"""Creates the folder of a command such as `orb crawl` on a suitable disk, and locks it for one command at a time.

The lock is one flock on one open file. The command takes it, and every process that it starts inherits it. So the lock
is free only when no process of an earlier run is alive.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cli.terminal.exits import Environment
from cli.terminal.progress import say
from shared.adapters.local.private_folder import closing, make_private

ROOM_BYTES: Final = 16 << 20
"""A command starts only if its disk has at least this many free bytes. A run stops when less is free.

The processes need this space for their last writes."""

_STRAGGLERS_S: Final = 5.0
_POLL_S: Final = 0.05
_REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "ceph", "glusterfs", "afs"})


def made(path: Path, flag: str, *, private: bool = False) -> set[str]:
    """Create the folder if it does not exist. Return the names of the files in it.

    - `flag`: the command-line flag that chooses another folder. Error messages name it.
    - `private`: True to create a folder that only this user can access. If others can read an existing folder, print a
      warning. False: the umask decides who can access it.

    Raise Environment if the folder cannot be created, or if its path is not UTF-8, which the configuration of NATS
    requires.
    """
    try:
        str(path.absolute()).encode()
        if private:
            make_private(path)
            if (command := closing(path)) is not None:
                say(f"other users of this machine may read {path}, with its key digests and logs; run `{command}`.")
        path.mkdir(parents=True, exist_ok=True)
        return {entry.name for entry in path.iterdir()}
    except OSError as error:
        raise Environment(f"cannot make the folder {path}: {error.strerror}; choose another with {flag}.") from None
    except UnicodeEncodeError:
        raise Environment(
            f"cannot use {str(path.absolute())!a}: it is not UTF-8 text; choose another with {flag}."
        ) from None


def absent(path: Path) -> list[Path]:
    """Return the folders that must be created so that `path` exists: it and its missing parents, the deepest first."""
    return [folder for folder in (path, *path.parents) if not folder.exists()]


def remove_created(folders: list[Path]) -> None:
    """Remove the folders that a failed command has created.

    `folders`: these folders, the deepest first, such as `a/b/c` and then `a/b`. Stop at the first folder that cannot be
    removed, for example because another process has put a file there.
    """
    # The caller got the list from `absent`, before it created the folders.
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:  # another process has used it
            return


def check_disk(path: Path, free_bytes: int, flag: str, *, needed_bytes: int = ROOM_BYTES) -> None:
    """Raise Environment if the disk of the folder has less than `needed_bytes` free, or is a network file system.

    A network file system can damage a database. `free_bytes` is the free space. `flag` is the command-line flag that
    chooses another folder, for the message.
    """
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
    """Hold a folder's lock until the `with` block ends.

    Yield the lock's file descriptor, for child processes to inherit.

    - `command`: the command that uses such folders, for messages.
    - `flag`: the command-line flag that chooses another folder, for messages.

    Raise Environment if another command is running in the folder, or if a process of an earlier command does not end.
    """
    folder = lock_file.parent
    try:
        lock = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise Environment(f"cannot write in {folder}: {error.strerror}; choose another folder with {flag}.") from None
    try:
        _acquire(lock, lock_file, command)
        if not os.fstat(lock).st_nlink:
            raise Environment(f"another start in {folder} failed and removed its files; run the same command again.")
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps({"pid": os.getpid(), "since": int(time.time())}).encode(), 0)
        yield lock
    finally:
        os.close(lock)


def owner_of(lock_file: Path) -> int | None:
    """Return the process id of the command that holds the lock.

    Return None if the lock is free or the id is unknown.
    """
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
    """Return the ids of the other processes that have `lock_file` open. Return an empty list if there is no /proc."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            if any(os.path.samefile(descriptor, lock_file) for descriptor in entry.iterdir() if _is_file(descriptor)):
                pids.append(int(entry.parent.name))
    return sorted(pid for pid in pids if pid != os.getpid())


def _acquire(lock: int, lock_file: Path, command: str) -> None:
    """Take the lock. Raise Environment if another command has it.

    If that command has ended and only its child processes hold the lock, wait up to _STRAGGLERS_S seconds until they
    have ended.
    """
    folder = lock_file.parent
    deadline = time.monotonic() + _STRAGGLERS_S
    while True:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        owner = _owner(lock)
        if (owner is not None and _alive(owner)) or time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)  # nothing else of the command runs yet, so blocking is fine
    others = holders(lock_file) or ([owner] if owner is not None else [])
    named = f"process {others[0]}" if len(others) == 1 else "processes " + ", ".join(map(str, others))
    if owner is not None and owner in others:
        raise Environment(
            f"another `{command}` is at work in {folder} (process {owner}); let it finish, or end it with "
            f"`kill {owner}` and run the same command again."
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
    """Return the process id of the command that took the lock last, from the lock file.

    Return None if the file has none.
    """
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
    """Return the type of the file system that contains `path`, such as `nfs4`. Return "" if it is unknown."""
    whole, best, kind = os.fspath(path.resolve()), -1, ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text("utf-8", "replace").splitlines():
            words = line.split(" ")
            if len(words) > 2 and len(words[1]) > best:
                at = words[1].rstrip("/")
                if whole == at or whole.startswith(f"{at}/"):
                    best, kind = len(words[1]), words[2]
    return kind
