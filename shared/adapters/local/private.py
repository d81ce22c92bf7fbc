"""Folders that only their owner may read: digests of keys, logs and what was crawled lie in a cluster's."""

import shlex
from pathlib import Path
from typing import Final

_OTHERS: Final = 0o077


def make_private(path: Path) -> None:
    """Make the folder for this user alone, and those above it that are not there. One that is there stays as it is."""
    for folder in reversed((path, *path.parents)):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)


def closing(path: Path) -> str | None:
    """Return the command that closes a folder to other users of the machine, None where it is closed."""
    return f"chmod 700 {shlex.quote(str(path))}" if path.stat().st_mode & _OTHERS else None
