"""A member whose wall clock and disks a test controls.

`python -m tests.support.faults.member_controls master` is `orb master` under the control of its `MemberControls`.

Nothing in the product knows of it. The wall clock is Python's `time.time` and `time.time_ns`, which the `Clock` port
stands on; the clock that measures is left alone, as a step of the real one leaves it. The disk of an archive
is `os.fsync` and `os.fdatasync`, by which it is made durable. The disk of a SQLite file is the commit of whatever was
written: it takes longer while it holds the file's lock and its thread, as a sync that takes longer does. It is full
where the file may have no page more than it has (`max_page_count`): SQLite refuses what needs one as it does on a disk
without a byte, and takes what fits into pages that are free.
"""

import mmap
import os
import sqlite3
import struct
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "FAULTS_DIALS"
"""The environment variable with the path of the dials."""

ARCHIVES: Final = "FAULTS_ARCHIVES"
"""The environment variable with the folders of the workers' archives, for a master."""

ENTRY: Final = "tests.support.faults.member_controls"
_FORM: Final = struct.Struct("<dddd")
_MAX_PAGES: Final = 4294967294
"""SQLite's own limit."""


class MemberControls:
    """How far the wall clock is off, how much longer a sync and a commit to a SQLite file take (seconds), and whether
    such files may grow; numbers in a mapped file."""

    def __init__(self, path: Path) -> None:
        """Those at `path`, made and all at 0 where there are none."""
        if not path.exists():
            path.write_bytes(bytes(_FORM.size))
        with path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), _FORM.size)

    @property
    def clock_s(self) -> float:
        return float(_FORM.unpack(self._mapped[:])[0])

    @property
    def sync_s(self) -> float:
        return float(_FORM.unpack(self._mapped[:])[1])

    @property
    def commit_s(self) -> float:
        return float(_FORM.unpack(self._mapped[:])[2])

    @property
    def full(self) -> bool:
        return bool(_FORM.unpack(self._mapped[:])[3])

    def turn(self, *, clock_s: float = 0.0, sync_s: float = 0.0, commit_s: float = 0.0, full: bool = False) -> None:
        """From now on, until the next turn."""
        self._mapped[:] = _FORM.pack(clock_s, sync_s, commit_s, full)

    def install(self) -> None:
        """Put them before the clock and the disks of this process, for good."""
        wall, wall_ns = time.time, time.time_ns
        setattr(time, "time", lambda: wall() + self.clock_s)  # noqa: B010  a module's function is not assigned to
        setattr(time, "time_ns", lambda: wall_ns() + round(self.clock_s * 1e9))  # noqa: B010
        for name in ("fsync", "fdatasync"):
            setattr(os, name, self._late(name))
        setattr(sqlite3.dbapi2, "connect", partial(sqlite3.connect, factory=self._committing()))  # noqa: B010

    def _late(self, name: str) -> object:
        sync = getattr(os, name)

        def late(fd: int) -> None:
            if (wait_s := self.sync_s) > 0:
                time.sleep(wait_s)
            sync(fd)

        return late

    def _committing(self) -> type[sqlite3.Connection]:
        dials = self

        class Committing(sqlite3.Connection):
            """Its commits of something written take longer; those of readers do not. A caller that asks it for a cursor
            finds the file as full as it is now."""

            written = 0
            full = False

            def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
                if self.full != dials.full:
                    self.full = not self.full
                    super().execute(f"PRAGMA max_page_count = {1 if self.full else _MAX_PAGES}")
                return super().cursor(factory)

            def commit(self) -> None:
                if self.total_changes > self.written and (wait_s := dials.commit_s) > 0:
                    time.sleep(wait_s)
                super().commit()
                self.written = self.total_changes

        return Committing


def share_archives(folders: Sequence[Path]) -> None:
    """Let this process read the segments of all folders as those of its archive, as if it were on a shared disk."""
    from shared.adapters.objects.local import LocalSegments
    from shared.ports.archive import RecordUnreadable

    opened = LocalSegments._open_for_reading

    def found(self: LocalSegments, name: str) -> int:
        for folder in filter(Path.is_dir, folders):
            try:
                return opened(LocalSegments(folder), name)
            except RecordUnreadable:
                continue
        return opened(self, name)

    setattr(LocalSegments, "_open_for_reading", found)  # noqa: B010  a class's method is not assigned to


if __name__ == "__main__":
    MemberControls(Path(os.environ[VARIABLE])).install()
    if ARCHIVES in os.environ:
        share_archives([Path(folder) for folder in os.environ[ARCHIVES].split(os.pathsep)])
    from cli.main import main

    sys.exit(main())
