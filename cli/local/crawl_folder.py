"""The folder of a crawl: its files, its lock, and the deletion of its contents for a fresh start.

crawl.db     the database (SQLite, with -wal and -shm beside it while in use)
archive/     WARC files and index.cdxj
nats/        the broker's store, configuration and log
specs/       the specs as published to workers
public_suffixes.dat   the public suffix list with which the crawl began; it decides the partition of each host
ca.pem       the certificate authorities that verify hosts' certificates, if --ca named a file
spec.json    the spec of the latest run: it marks a crawl folder, written first and removed last
logs/        logs of supervisor, master and workers since the latest run began; those of the run before are *.1
lock         locked by every process of a run
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from cli.local.folder_lock import check_disk, held, made, owner_of
from cli.terminal.exits import Environment, Usage
from shared.adapters.local.suffixes import SNAPSHOT, keep_snapshot
from shared.domain.crawl.spec import CrawlSpec, decode_spec, encode_spec

NAMES: Final = ("nats", "crawl.db", "crawl.db-wal", "crawl.db-shm", "archive", "specs", SNAPSHOT, "logs", "ca.pem")
"""The files and folders that a run creates besides `spec.json` and `lock`, in the order in which they are deleted."""
# The messages of NATS are the first: if only they were left, a new crawl would apply them as its own.

RENEWAL: Final = ".fresh"
"""A file that exists while the folder's contents are deleted. The next command completes an interrupted deletion."""

_FLAG: Final = "--out"
_COMMAND: Final = "orb crawl"


class CrawlFolder:
    """The folder of a crawl: its paths, and operations on the whole folder."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.database: Final = path / "crawl.db"
        self.archive: Final = path / "archive"
        self.index: Final = path / "archive" / "index.cdxj"
        self.nats: Final = path / "nats"
        self.logs: Final = path / "logs"
        self.spec_file: Final = path / "spec.json"
        self.authorities: Final = path / "ca.pem"
        self.lock_file: Final = path / "lock"

    def __repr__(self) -> str:
        return f"<CrawlFolder {self.path}>"

    def opened(self) -> "CrawlFolder":
        """Return this folder, for commands that read a crawl. Raise Usage if it is not the folder of a crawl.

        Raise Environment if it cannot be read.
        """
        try:
            if not self.path.exists():
                raise Usage(f"there is no folder {self.path}; create it with `orb crawl URL --out {self.path}`.")
            if self.database.is_file():
                return self
            if (self.path / "cluster.json").is_file():
                raise Usage(f"{self.path} is the folder of a cluster: read its crawls with `orb ctl`, while it runs.")
        except OSError as error:
            raise Environment(f"cannot read {self.path}: {error.strerror}.") from None
        raise Usage(
            f"{self.path} is no crawl's folder: it has no crawl.db. Name the folder that `orb crawl` wrote to "
            "(by default the seed's host with .crawl behind it)."
        )

    def spec(self) -> CrawlSpec | None:
        """Return the spec that the latest run used. Return None before the first run.

        Raise Environment if it is damaged or cannot be read.
        """
        try:
            return decode_spec(self.spec_file.read_bytes())
        except (FileNotFoundError, NotADirectoryError):  # `make` refuses a file in place of the folder
            return None
        except OSError as error:  # the crawl may be sound: do not advise to replace it
            raise Environment(f"cannot read {self.spec_file}: {error.strerror}.") from error
        except msgspec.DecodeError as error:
            raise Environment(f"cannot read {self.spec_file}: {error}; start over with --fresh.") from error

    def put_spec(self, spec: CrawlSpec) -> None:
        """Store the spec of this run, and the public suffix list if the folder has none.

        The file of the spec is replaced atomically, and synced to disk first.
        """
        staged = self.spec_file.with_suffix(".json.new")
        with staged.open("wb") as file:
            file.write(encode_spec(spec))
            file.flush()
            os.fsync(file.fileno())
        staged.replace(self.spec_file)
        keep_snapshot(self.path)

    def make(self) -> None:
        """Create the folder. Accept an existing folder that is empty or belongs to an earlier `orb crawl`.

        Raise Usage if the folder has other files. Raise Environment if it cannot be created, or if its disk is remote
        or too full.
        """
        entries = made(self.path, _FLAG)
        marks = {self.spec_file.name, RENEWAL}
        if not entries & marks and (foreign := sorted(entries - {self.lock_file.name, "spec.json.new"})):
            named = ", ".join(foreign[:3]) + (" ..." if foreign[3:] else "")
            raise Usage(
                f"{self.path} holds files that are no crawl's ({named}); choose an empty or a new folder with --out."
            )
        check_disk(self.path, self.free_bytes(), _FLAG)

    def free_bytes(self) -> int:
        """Return the number of bytes that this user can still write to the folder's disk."""
        return shutil.disk_usage(self.path).free

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """Hold the folder's lock until the `with` block ends.

        Yield the lock's file descriptor, for child processes to inherit. Raise Environment if another command is
        running in the folder.
        """
        with held(self.lock_file, command=_COMMAND, flag=_FLAG) as lock:
            yield lock

    def renewing(self) -> bool:
        """Return True if a call of `renew` was interrupted, so that the caller must repeat it."""
        return (self.path / RENEWAL).exists()

    def renew(self) -> list[str]:
        """Delete all files that runs have created. Return the names of the other files in the folder, which are kept.

        The caller must hold the folder's lock.
        """
        mark = self.path / RENEWAL
        mark.touch()
        for name in (*NAMES, "spec.json.new", self.spec_file.name):
            _remove(self.path / name)
        mark.unlink()
        return sorted(entry.name for entry in self.path.iterdir() if entry != self.lock_file)


def _remove(path: Path) -> None:
    """Remove a file, a folder with its contents, or a symbolic link without its target.

    Do nothing if `path` is absent.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def running(folder: CrawlFolder) -> int | None:
    """Return the process id of the `orb crawl` that runs in the folder. Return None if none runs."""
    return owner_of(folder.lock_file)
