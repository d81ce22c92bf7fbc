"""The public suffix list of a crawl's folder or of a cluster, fixed at its creation since partitions depend on it.

A folder keeps it beside its database. A cluster keeps it in SQL for masters, and in the coordinator for workers.
"""

import os
from pathlib import Path
from typing import Final

from shared.domain.web.url import fix_public_suffixes

SNAPSHOT: Final = "public_suffixes.dat"


def keep_snapshot(folder: Path) -> None:
    """Copy the installed public suffix list into the folder, unless it has one. The copy is whole or absent."""
    kept = folder / SNAPSHOT
    if kept.exists():
        return
    staged = kept.with_suffix(".new")
    with staged.open("wb") as file:
        file.write(installed_list().encode())
        file.flush()
        os.fsync(file.fileno())
    staged.replace(kept)


def installed_list() -> str:
    """Return the text of the public suffix list that is installed with the package `publicsuffixlist`."""
    from importlib import resources  # commands that only read a folder need none of its libraries

    return resources.files("publicsuffixlist").joinpath("public_suffix_list.dat").read_text(encoding="utf-8")


def use_list(stored: str) -> None:
    """Make this process find registrable domains by the public suffix list whose text is `stored`.

    This applies even if the installed package `publicsuffixlist` has another list.
    """
    if stored != installed_list():
        fix_public_suffixes(stored)


def use_snapshot(folder: Path) -> None:
    """Make this process find registrable domains by the folder's public suffix list, if it has one.

    A folder made by hand may have none.
    """
    kept = folder / SNAPSHOT
    if kept.is_file():
        fix_public_suffixes(kept.read_text(encoding="utf-8"))
