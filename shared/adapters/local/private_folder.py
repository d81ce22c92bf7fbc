"""Creates folders that only their user may open.

The folder of a cluster must be private, because it contains digests of keys, logs and crawled pages.
"""

import shlex
from pathlib import Path
from typing import Final

_OTHERS: Final = 0o077


def make_private(path: Path) -> None:
    """Create the folder, and its missing parents, with a mode that lets only this user open them.

    The modes of folders that exist are not changed.
    """
    for folder in reversed((path, *path.parents)):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)


def closing(path: Path) -> str | None:
    """Return a shell command that makes the folder private, for a message to the user.

    Return None if only this user has permissions on the folder.
    """
    return f"chmod 700 {shlex.quote(str(path))}" if path.stat().st_mode & _OTHERS else None
