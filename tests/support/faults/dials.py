"""A member whose wall clock and disk somebody else turns: `python -m tests.support.faults.dials master` is `orb master`
with both of them in the hands of whoever holds its `Dials`.

Nothing in the product knows of it. The wall clock is Python's `time.time` and `time.time_ns`, which the `Clock` port
stands on; the clock that measures is left alone, as a step of the real one leaves it. The disk is `os.fsync` and
`os.fdatasync`, by which an archive is made durable.
"""

import mmap
import os
import struct
import sys
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "FAULTS_DIALS"
"""The environment variable with the path of the dials."""

ENTRY: Final = "tests.support.faults.dials"
_FORM: Final = struct.Struct("<dd")


class Dials:
    """How far the wall clock is off, and how much longer a sync takes (seconds); two numbers in a mapped file."""

    def __init__(self, path: Path) -> None:
        """Those at `path`, made and both at 0 where there are none."""
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

    def turn(self, *, clock_s: float = 0.0, sync_s: float = 0.0) -> None:
        """From now on, until the next turn."""
        self._mapped[:] = _FORM.pack(clock_s, sync_s)

    def install(self) -> None:
        """Put them before the clock and the disk of this process, for good."""
        wall, wall_ns = time.time, time.time_ns
        setattr(time, "time", lambda: wall() + self.clock_s)  # noqa: B010  a module's function is not assigned to
        setattr(time, "time_ns", lambda: wall_ns() + round(self.clock_s * 1e9))  # noqa: B010
        for name in ("fsync", "fdatasync"):
            setattr(os, name, self._late(name))

    def _late(self, name: str) -> object:
        sync = getattr(os, name)

        def late(fd: int) -> None:
            if (wait_s := self.sync_s) > 0:
                time.sleep(wait_s)
            sync(fd)

        return late


if __name__ == "__main__":
    Dials(Path(os.environ[VARIABLE])).install()
    from cli.main import main

    sys.exit(main())
