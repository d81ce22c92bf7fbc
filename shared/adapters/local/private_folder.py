"""Makes folders that only their user may read. A cluster's folder contains digests of keys, logs and crawled pages."""

import shlex
from pathlib import Path
from typing import Final

_OTHERS: Final = 0o077


def make_private(path: Path) -> None:
    """Create the folder, and its missing parents, so that only this user can open it.

    Existing folders are not changed.
    """
    for folder in reversed((path, *path.parents)):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)


def closing(path: Path) -> str | None:
    """Return the shell command that closes a folder to other users of the machine, or None if it is closed already."""
    return f"chmod 700 {shlex.quote(str(path))}" if path.stat().st_mode & _OTHERS else None
