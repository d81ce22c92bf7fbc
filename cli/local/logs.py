"""The logs of a run in DIR/logs: one file of limited size for each process.

The file *.1 beside a log has older lines: those of the run before, or those that were moved out of a log that grew too
large.
"""

import errno
import os
import shutil
from pathlib import Path
from typing import Any, Final

import structlog

from shared.runtime.supervise import last_lines
from shared.telemetry import LogStream

log = structlog.get_logger(__name__)

LOG_BYTES: Final = 10 << 20
"""The size in bytes above which a log is copied to the file *.1 and then emptied.

The copy replaces the earlier content of *.1, even if this is the log of the run before.
"""

_TAIL_BYTES: Final = 16 << 10
_TAIL_LINES: Final = 12


def begin_log(path: Path) -> None:
    """Create an empty log at `path`. A log of an earlier run is renamed to *.1 first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size:
        path.replace(_aside(path))
    path.touch()


def bound_log(path: Path) -> None:
    """Copy the log at `path` to *.1 and then empty it, if it is larger than LOG_BYTES.

    Other processes may append to the log meanwhile. Lines that they write during the copy may be lost. If the disk is
    too full for the copy, the log stays unchanged.
    """
    try:
        if path.stat().st_size > LOG_BYTES:
            shutil.copyfile(path, _aside(path))
            os.truncate(path, 0)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _aside(path).unlink(missing_ok=True)
        log.warning("log_rotation.failed", path=os.fspath(path), error=str(error))


def _aside(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def tail(path: Path) -> list[str]:
    """Return the last lines of the log at `path`, at most _TAIL_LINES."""
    return last_lines(path, _TAIL_LINES, _TAIL_BYTES)


def log_to(logs: Path) -> None:
    """Write this process's log events to supervisor.log in the folder `logs`, as JSON lines.

    A log call does not fail if the disk is full.
    """
    path = logs / "supervisor.log"
    begin_log(path)
    renderer = structlog.processors.JSONRenderer()
    lines: Any = LogStream(path.open("a", encoding="utf-8", buffering=1), renderer)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.WriteLoggerFactory(lines),
        cache_logger_on_first_use=False,
    )
