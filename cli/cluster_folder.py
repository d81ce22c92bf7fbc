"""The folder of a cluster on one machine: what lies in it, who holds it, and what it remembers between starts.

cluster.json   what it remembers: its database and its ports; the mark of such a folder
cluster.db     the database, where no other is told (SQLite, with -wal and -shm beside it while in use)
archive/       WARC segments of all workers
etcd/, nats/   the engines: their data, configuration and logs
logs/          this command, masters and workers of the latest start, the start before as *.1
lock           held by every process of a start
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from cli.exits import Environment, Usage
from cli.holding import ROOM_BYTES, absent, check_disk, held, made, unmake

DEFAULT: Final = Path("orb.cluster")
FIRST_BYTES: Final = (128 << 20) + 2 * ROOM_BYTES
AGAIN_BYTES: Final = (64 << 20) + 2 * ROOM_BYTES
"""Free space for a start: before it answers, etcd takes the room of two files of its log, 64 MB each, and ends with a
panic where there is none; behind them there must be room to run. At a further start the first of them is there, and the
other one where an etcd that was killed left it under the name with which the next one begins."""

_AHEAD: Final = "0.tmp"
_AHEAD_BYTES: Final = 64_000_000
"""The file that etcd makes ahead, under 0.tmp and 1.tmp in turns: every start begins with 0.tmp anew, so that a 1.tmp
of one that was killed saves no room. One that there was no room for stays, too, and is shorter."""

_FLAG: Final = "--dir"
_COMMAND: Final = "orb up"


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """`database`: as `shown`. `http`, `metrics`: the ports of masters and workers, in their order. `key_shown_at`: when
    the first admin key was shown; None where the database had keys before."""

    database: str
    http: tuple[int, ...] = ()
    metrics: tuple[int, ...] = ()
    nats: int = 0
    key_shown_at: str | None = None


class ClusterFolder:
    """The paths of one cluster, and what is done to them as a whole."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path.resolve() if ".." in path.parts else path.absolute()
        self._made: list[Path] = []
        self.database: Final = self.path / "cluster.db"
        self.archive: Final = self.path / "archive"
        self.etcd: Final = self.path / "etcd"
        self.nats: Final = self.path / "nats"
        self.logs: Final = self.path / "logs"
        self.mark: Final = self.path / "cluster.json"
        self.lock_file: Final = self.path / "lock"

    def __repr__(self) -> str:
        return f"<ClusterFolder {self.path}>"

    def remembered(self) -> Remembered | None:
        """What the latest start left; None before the first. Environment when it is damaged."""
        try:
            return msgspec.json.decode(self.mark.read_bytes(), type=Remembered)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, OSError) as error:
            raise Environment(f"cannot read {self.mark}: {error}; put it right, or choose another --dir.") from error

    def remember(self, remembered: Remembered) -> None:
        """Keep it; seen whole or not at all, also after a loss of power."""
        staged = self.mark.with_suffix(".json.new")
        with staged.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(remembered)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        staged.replace(self.mark)

    def make(self) -> None:
        """Make it, or find it ours. Usage when somebody else's files are in it, Environment when it cannot be."""
        self._made = absent(self.path)
        entries = made(self.path, _FLAG, private=True)
        foreign = sorted(entries - {self.lock_file.name, "cluster.json.new"})
        if self.mark.name not in entries and foreign:
            named = ", ".join(foreign[:3]) + (" ..." if foreign[3:] else "")
            raise Usage(
                f"{self.path} holds files that are no cluster's ({named}); choose an empty or new folder with {_FLAG}."
            )
        try:
            check_disk(self.path, self.free_bytes(), _FLAG, needed_bytes=self._needed_bytes())
        except Environment:
            unmake(self._made)
            raise

    def _needed_bytes(self) -> int:
        log = self.etcd / "data" / "member" / "wal"
        if not log.is_dir():  # which is given its name once its first file is there
            return FIRST_BYTES
        with contextlib.suppress(OSError):  # one that runs here has just taken it into use
            if (log / _AHEAD).stat().st_blocks * 512 >= _AHEAD_BYTES:
                return ROOM_BYTES
        return AGAIN_BYTES

    def free_bytes(self) -> int:
        """What is free on its disk for us."""
        return shutil.disk_usage(self.path).free

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """Hold the lock; the descriptor to hand on to child processes. Environment when another `orb up` is on."""
        with held(self.lock_file, command=_COMMAND, flag=_FLAG) as lock:
            yield lock

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        """A start that may be refused, under the lock: where the block raises, and the folder was no cluster's before,
        nothing of it stays."""
        new = not self.mark.exists()
        try:
            yield
        except BaseException:
            if new:
                self._remove()
            raise

    def _remove(self) -> None:
        """What a start makes, the lock last, and the folders that it had to make."""
        for folder in (self.archive, self.etcd, self.nats, self.logs):
            shutil.rmtree(folder, ignore_errors=True)
        for suffix in ("", "-wal", "-shm"):
            self.database.with_name(self.database.name + suffix).unlink(missing_ok=True)
        for file in (self.mark.with_suffix(".json.new"), self.mark, self.lock_file):
            file.unlink(missing_ok=True)
        unmake(self._made)


def database_of(folder: ClusterFolder, told: str | None) -> str:
    """The URL of the cluster's database: as told, else the folder's own file.

    Usage where the folder belongs to another one: what its broker still holds would be taken for that one's. Before
    its engines ran for the first time they hold nothing, so that a URL with a typo binds nobody.
    """
    if told is not None and not told.startswith(("postgresql:", "postgres:")):
        raise Usage("--database is a postgresql:// URL; without it the database is a SQLite file in the folder.")
    database = os.fspath(folder.database) if told is None else told
    remembered = folder.remembered()
    if remembered is None or remembered.database == shown(folder, database):
        return database
    if told is not None and not folder.etcd.exists():
        return database
    if told is None:
        raise Usage(
            f"the database of {folder.path} is {remembered.database}; say it again with --database, for no password "
            "is kept."
        )
    raise Usage(
        f"the database of {folder.path} is {remembered.database} and not {shown(folder, told)}; choose another folder "
        f"with {_FLAG}."
    )


def shown(folder: ClusterFolder, database: str) -> str:
    """A database as it may be shown and kept: the name of the folder's own file, else the URL without a password."""
    if database == os.fspath(folder.database):
        return folder.database.name
    return without_password(database)


def without_password(database: str) -> str:
    """The URL of a server as it may be shown; what names a file as it is."""
    if not database.startswith(("postgresql:", "postgres:")):
        return database
    parts = urlsplit(database)
    user, at, place = (parts.username or ""), "@", parts.netloc.rpartition("@")[2]
    query = "&".join(each for each in parts.query.split("&") if "password=" not in each.lower())
    return f"{parts.scheme}://{user}{at if user else ''}{place}{parts.path}{'?' if query else ''}{query}"
