"""The logs of a run: one file a process in DIR/logs, bounded, those of the run before put aside."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

import structlog

from shared.supervise import last_lines

LOG_BYTES: Final = 10 << 20
"""Size at which a log is put aside as *.1, replacing the one before it."""

_TAIL_BYTES: Final = 16 << 10
_TAIL_LINES: Final = 12


def begin_log(path: Path) -> None:
    """Put the log of an earlier run aside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size:
        path.replace(_aside(path))
    path.touch()


def bound_log(path: Path) -> None:
    """Keep a log that others append to within `LOG_BYTES`; lines written meanwhile may be lost."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LOG_BYTES:
            shutil.copyfile(path, _aside(path))
            os.truncate(path, 0)


def _aside(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def tail(path: Path) -> list[str]:
    """The last lines of a log."""
    return last_lines(path, _TAIL_LINES, _TAIL_BYTES)


def log_to(logs: Path) -> None:
    """Send this process's own events to supervisor.log in the folder `logs`, as JSON lines."""
    path = logs / "supervisor.log"
    begin_log(path)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(path.open("a", encoding="utf-8", buffering=1)),
        cache_logger_on_first_use=False,
    )
