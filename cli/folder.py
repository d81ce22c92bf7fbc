"""The folder of a crawl: what lies in it, who holds it, and how it is begun anew.

    crawl.db     the frontier's truth (SQLite, with -wal and -shm beside it while in use)
    archive/     WARC segments and index.cdxj
    nats/        the broker's store, configuration and log
    specs/       the specs as published to workers
    public_suffixes.dat   the public suffix list that hosts are divided by, as it was when the crawl began
    spec.json    the effective spec: the mark of a crawl folder, written first and removed last
    logs/        supervisor, master and workers of the latest run, the run before as *.1
    lock         held by every process of a run

The lock is one flock on one open file that the command takes and every process it starts inherits. So whoever gets it
knows that no process of an earlier run lives, however that run ended.
"""

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from cli.exits import Environment, Usage
from shared.adapters.local.suffixes import SNAPSHOT, keep_snapshot
from shared.domain.crawl import CrawlSpec, decode_spec, encode_spec

NAMES: Final = ("nats", "crawl.db", "crawl.db-wal", "crawl.db-shm", "archive", "specs", SNAPSHOT, "logs")
"""What a run makes besides `spec.json` and `lock`, in the order in which it is removed: the broker's messages first, as
they would be taken for those of the crawl that begins anew."""

RENEWAL: Final = ".fresh"
"""Stands in the folder while it is emptied; an interrupted emptying is finished by the next command."""

ROOM_BYTES: Final = 16 << 20
"""Free space below which nothing is begun and a run stops, while it still can in good order."""

_STRAGGLERS_S: Final = 5.0
_POLL_S: Final = 0.05
_REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "ceph", "glusterfs", "afs"})


class CrawlFolder:
    """The paths of one crawl, and what is done to them as a whole."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.database: Final = path / "crawl.db"
        self.archive: Final = path / "archive"
        self.index: Final = path / "archive" / "index.cdxj"
        self.nats: Final = path / "nats"
        self.logs: Final = path / "logs"
        self.spec_file: Final = path / "spec.json"
        self.lock_file: Final = path / "lock"

    def __repr__(self) -> str:
        return f"<CrawlFolder {self.path}>"

    def opened(self) -> "CrawlFolder":
        """For reading what a crawl has left or is making. Usage when this is no crawl's folder."""
        if not self.path.exists():
            raise Usage(f"there is no folder {self.path}; `orb crawl URL --out {self.path}` would make it.")
        if not self.database.is_file():
            raise Usage(
                f"{self.path} is no crawl's folder: it has no crawl.db. Name the folder that `orb crawl` wrote to "
                "(by default the seed's host with .crawl behind it)."
            )
        return self

    def spec(self) -> CrawlSpec | None:
        """The effective spec of the latest run; None before the first. Environment when it is damaged."""
        try:
            return decode_spec(self.spec_file.read_bytes())
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, OSError) as error:
            raise Environment(f"cannot read {self.spec_file}: {error}; start over with --fresh.") from error

    def put_spec(self, spec: CrawlSpec) -> None:
        """Make `spec` the effective one; seen whole or not at all, also after a loss of power."""
        staged = self.spec_file.with_suffix(".json.new")
        with staged.open("wb") as file:
            file.write(encode_spec(spec))
            file.flush()
            os.fsync(file.fileno())
        staged.replace(self.spec_file)
        keep_snapshot(self.path)

    def make(self) -> None:
        """Make it, or find it ours. Usage when somebody else's files are in it, Environment when it cannot be."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            entries = {entry.name for entry in self.path.iterdir()}
        except OSError as error:
            raise Environment(
                f"cannot make the folder {self.path}: {error.strerror}; choose another with --out."
            ) from None
        marks = {self.spec_file.name, RENEWAL}
        if not entries & marks and (foreign := sorted(entries - {self.lock_file.name, "spec.json.new"})):
            named = ", ".join(foreign[:3]) + (" ..." if foreign[3:] else "")
            raise Usage(
                f"{self.path} holds files that are no crawl's ({named}); choose an empty or a new folder with --out."
            )
        if (kind := _filesystem(self.path)) in _REMOTE:
            raise Environment(
                f"{self.path} is on a network file system ({kind}), where a database can be damaged; "
                "choose a folder on a local disk with --out."
            )
        free = self.free_bytes()
        if free < ROOM_BYTES:
            raise Environment(
                f"only {free >> 20} MiB are free on the disk of {self.path} and {ROOM_BYTES >> 20} are needed; "
                "make room or choose another disk with --out."
            )

    def free_bytes(self) -> int:
        """What is free on its disk for us."""
        return shutil.disk_usage(self.path).free

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """Hold the lock; the descriptor to hand on to child processes. Environment when another run is on."""
        try:
            lock = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Environment(
                f"cannot write in {self.path}: {error.strerror}; choose another folder with --out."
            ) from None
        try:
            self._acquire(lock)
            os.ftruncate(lock, 0)
            os.pwrite(lock, json.dumps({"pid": os.getpid(), "since": int(time.time())}).encode(), 0)
            yield lock
        finally:
            os.close(lock)

    def _acquire(self, lock: int) -> None:
        """A command that runs is told of at once; what a killed one left behind gets a moment to end."""
        deadline = time.monotonic() + _STRAGGLERS_S
        while True:
            with contextlib.suppress(BlockingIOError):
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            owner = _owner(lock)
            if (owner is not None and _alive(owner)) or time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        others = holders(self.lock_file) or ([owner] if owner is not None else [])
        named = f"process {others[0]}" if len(others) == 1 else "processes " + ", ".join(map(str, others))
        if owner is not None and owner in others:
            raise Environment(
                f"another `orb crawl` is at work in {self.path} (process {owner}); let it finish, or end it with "
                f"`kill -INT {owner}` and run the same command again."
            )
        raise Environment(
            f"{self.path} is still held by {named if others else 'another process'} of an earlier run; end "
            f"{'it' if len(others) == 1 else 'them'} with `kill -KILL {' '.join(map(str, others))}` and run the same "
            "command again."
        )

    def renewing(self) -> bool:
        """Whether an emptying was interrupted."""
        return (self.path / RENEWAL).exists()

    def renew(self) -> list[str]:
        """Remove everything that runs made; the names of what was not ours and stays. Only under the lock."""
        mark = self.path / RENEWAL
        mark.touch()
        for name in (*NAMES, "spec.json.new", self.spec_file.name):
            _remove(self.path / name)
        mark.unlink()
        return sorted(entry.name for entry in self.path.iterdir() if entry != self.lock_file)


def holders(lock_file: Path) -> list[int]:
    """The processes that have `lock_file` open, as far as /proc tells (Linux; elsewhere none)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            if any(os.path.samefile(descriptor, lock_file) for descriptor in entry.iterdir() if _is_file(descriptor)):
                found.append(int(entry.parent.name))
    return sorted(pid for pid in found if pid != os.getpid())


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


def _remove(path: Path) -> None:
    """A file, a folder, or the link that stands for one (what it leads to stays)."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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


def running(folder: CrawlFolder) -> int | None:
    """The process of the command at work in the folder; None when there is none. Takes and lets go of the lock."""
    try:
        lock = os.open(folder.lock_file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _owner(lock)
    finally:
        os.close(lock)
