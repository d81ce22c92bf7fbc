"""The folder of a crawl: what lies in it, who holds it, and how it is begun anew.

crawl.db     the frontier's truth (SQLite, with -wal and -shm beside it while in use)
archive/     WARC segments and index.cdxj
nats/        the broker's store, configuration and log
specs/       the specs as published to workers
public_suffixes.dat   the public suffix list that hosts are divided by, as it was when the crawl began
ca.pem       the authorities that hosts' certificates are checked with, if --ca named one
spec.json    the effective spec: the mark of a crawl folder, written first and removed last
logs/        supervisor, master and workers of the latest run, the run before as *.1
lock         held by every process of a run
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from cli.exits import Environment, Usage
from cli.holding import check_disk, held, made, owner_of
from shared.adapters.local.suffixes import SNAPSHOT, keep_snapshot
from shared.domain.crawl import CrawlSpec, decode_spec, encode_spec

NAMES: Final = ("nats", "crawl.db", "crawl.db-wal", "crawl.db-shm", "archive", "specs", SNAPSHOT, "logs", "ca.pem")
"""What a run makes besides `spec.json` and `lock`, in the order in which it is removed: the broker's messages first, as
they would be taken for those of the crawl that begins anew."""

RENEWAL: Final = ".fresh"
"""Stands in the folder while it is emptied; an interrupted emptying is finished by the next command."""

_FLAG: Final = "--out"
_COMMAND: Final = "orb crawl"


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
        self.authorities: Final = path / "ca.pem"
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
        entries = made(self.path, _FLAG)
        marks = {self.spec_file.name, RENEWAL}
        if not entries & marks and (foreign := sorted(entries - {self.lock_file.name, "spec.json.new"})):
            named = ", ".join(foreign[:3]) + (" ..." if foreign[3:] else "")
            raise Usage(
                f"{self.path} holds files that are no crawl's ({named}); choose an empty or a new folder with --out."
            )
        check_disk(self.path, self.free_bytes(), _FLAG)

    def free_bytes(self) -> int:
        """What is free on its disk for us."""
        return shutil.disk_usage(self.path).free

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """Hold the lock; the descriptor to hand on to child processes. Environment when another run is on."""
        with held(self.lock_file, command=_COMMAND, flag=_FLAG) as lock:
            yield lock

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


def _remove(path: Path) -> None:
    """A file, a folder, or the link that stands for one (what it leads to stays)."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def running(folder: CrawlFolder) -> int | None:
    """The process of the command at work in the folder; None when there is none."""
    return owner_of(folder.lock_file)
