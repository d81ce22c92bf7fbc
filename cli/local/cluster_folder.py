"""The folder of a cluster on one machine: its files, its lock, and the settings that it keeps between starts.

cluster.json   the settings kept between starts: database and ports; it marks a cluster folder
cluster.db     the database, if no other is given (SQLite, with -wal and -shm beside it while in use)
archive/       WARC files of all workers
etcd/, nats/   etcd and NATS: their data, configuration and logs
logs/          logs of this command, masters and workers since the latest start; those of the start before are *.1
lock           locked while `orb up`, or a process that it started, is running
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from cli.local.folder_lock import ROOM_BYTES, absent, check_disk, held, made, remove_created
from cli.terminal.exits import Environment, Usage
from shared.settings import is_postgresql, without_password

DEFAULT: Final = Path("orb.cluster")
FIRST_BYTES: Final = (128 << 20) + 2 * ROOM_BYTES
"""The number of free bytes that the first start of a cluster needs.

etcd then allocates two files of 64 MB each for its write-ahead log. It panics if the disk is too full for them."""

AGAIN_BYTES: Final = (64 << 20) + 2 * ROOM_BYTES
"""The number of free bytes that a later start needs, if etcd must still allocate a file of its write-ahead log.

etcd takes 64 MB of these bytes for the file. The rest remains free as a reserve."""

_SPARE_LOG: Final = "0.tmp"
"""The name of the unused file that etcd will use when the present file of its write-ahead log is full.

etcd creates the file in advance and at full size, in its data folder. When the present file is full, etcd renames this
file and writes to it.
"""

_SPARE_LOG_BYTES: Final = 64_000_000
"""If the file _SPARE_LOG takes at least this many bytes of the disk, etcd has allocated the file completely.

If the file is smaller or missing, etcd must still allocate the file. The disk then needs free space for the file.
"""
# etcd uses the names 0.tmp and 1.tmp in turn, and after a start 0.tmp. It does not use a killed etcd's 1.tmp again.

_FLAG: Final = "--dir"
_COMMAND: Final = "orb up"


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a cluster that one start of `orb up` stores for the next start.

    - `database`: the file name of the SQLite database in the folder, or the PostgreSQL URL without its password.
    - `http`, `metrics`: the ports of the masters' APIs and of the workers' metrics, in the order of the members.
    - `nats`: the port of NATS, 0 if it is not known.
    - `key_shown_at`: when the first admin key was shown (ISO 8601), None if it never was.
    """

    database: str
    http: tuple[int, ...] = ()
    metrics: tuple[int, ...] = ()
    nats: int = 0
    key_shown_at: str | None = None


class ClusterFolder:
    """The folder of a cluster on one machine: its paths, and operations on the whole folder."""

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
        """Return the settings that the latest start stored. Return None if the folder has no cluster yet.

        Raise Environment if the file with the settings is damaged.
        """
        try:
            return msgspec.json.decode(self.mark.read_bytes(), type=Remembered)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, OSError) as error:
            raise Environment(f"cannot read {self.mark}: {error}; repair it, or set another --dir.") from error

    def remember(self, remembered: Remembered) -> None:
        """Store settings for the next start. The file is replaced atomically, and synced to disk first."""
        staged = self.mark.with_suffix(".json.new")
        with staged.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(remembered)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        staged.replace(self.mark)

    def make(self) -> None:
        """Create the folder. Accept an existing folder that is empty or belongs to an earlier `orb up`.

        Raise Usage if the folder has other files. Raise Environment if it cannot be created, or if its disk is remote
        or too full.
        """
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
            remove_created(self._made)
            raise

    def _needed_bytes(self) -> int:
        """Return the number of bytes that must be free on the disk for a start.

        - The first start of a cluster: FIRST_BYTES.
        - A later start, and etcd has already allocated its next log file: ROOM_BYTES.
        - Any other later start: AGAIN_BYTES.
        """
        log = self.etcd / "data" / "member" / "wal"
        if not log.is_dir():  # etcd renames it to this name after its first file is allocated
            return FIRST_BYTES
        with contextlib.suppress(OSError):  # a running etcd may have renamed the file just now
            if (log / _SPARE_LOG).stat().st_blocks * 512 >= _SPARE_LOG_BYTES:
                return ROOM_BYTES
        return AGAIN_BYTES

    def free_bytes(self) -> int:
        """Return the number of bytes that this user can still write to the folder's disk."""
        return shutil.disk_usage(self.path).free

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """Hold the folder's lock until the `with` block ends.

        Yield the lock's file descriptor, for child processes to inherit. Raise Environment if another `orb up` is
        running in the folder.
        """
        with held(self.lock_file, command=_COMMAND, flag=_FLAG) as lock:
            yield lock

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        """Remove the files of a new cluster if the `with` block, which creates them, raises.

        The files of a cluster that existed before are never removed. The caller must hold the folder's lock.
        """
        new = not self.mark.exists()
        try:
            yield
        except BaseException:
            if new:
                self._remove()
            raise

    def _remove(self) -> None:
        """Remove everything that a start creates in the folder.

        Then remove the folder and its parents, if `make` created them. Keep folders that have other files.
        """
        # Of the files, the lock file is the last: until then no other `orb up` can start in the folder.
        for folder in (self.archive, self.etcd, self.nats, self.logs):
            shutil.rmtree(folder, ignore_errors=True)
        for suffix in ("", "-wal", "-shm"):
            self.database.with_name(self.database.name + suffix).unlink(missing_ok=True)
        for file in (self.mark.with_suffix(".json.new"), self.mark, self.lock_file):
            file.unlink(missing_ok=True)
        remove_created(self._made)


def database_of(folder: ClusterFolder, given: str | None) -> str:
    """Return the path or URL of the cluster's database.

    `given` is a PostgreSQL URL, or None for the SQLite file in the folder. Raise Usage if `given` is any other text.

    If the folder already names another database:

    - If `given` is a URL and the folder has no `etcd/` yet: return `given`, so that a typo can be corrected.
    - Otherwise: raise Usage.
    """
    if given is not None and not is_postgresql(given):
        raise Usage("--database is a postgresql:// URL; without it the database is a SQLite file in the folder.")
    database = os.fspath(folder.database) if given is None else given
    remembered = folder.remembered()
    if remembered is None or remembered.database == shown(folder, database):
        return database
    if given is not None and not folder.etcd.exists():
        return database
    if given is None:
        raise Usage(
            f"the database of {folder.path} is {remembered.database}; give it again with --database, because passwords "
            "are not stored."
        )
    raise Usage(
        f"the database of {folder.path} is {remembered.database} and not {shown(folder, given)}; choose another folder "
        f"with {_FLAG}."
    )


def shown(folder: ClusterFolder, database: str) -> str:
    """Return the text with which a database is shown to users and stored in `Remembered`.

    This is the file name of the SQLite database in the folder, or the PostgreSQL URL without its password.
    """
    if database == os.fspath(folder.database):
        return folder.database.name
    return without_password(database)
