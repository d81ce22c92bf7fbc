"""The public suffix list that a crawl's folder or a cluster was begun with: partitions depend on it for good.

A folder keeps it beside its database. A cluster keeps it in SQL, for masters, and in the coordinator, for workers.
"""

import os
from importlib import resources
from pathlib import Path
from typing import Final

from shared.domain.url import fix_public_suffixes

SNAPSHOT: Final = "public_suffixes.dat"


def keep_snapshot(folder: Path) -> None:
    """Copy the installed list into the folder, unless one is there already; whole or not at all."""
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
    """The text of the list that is installed here."""
    return resources.files("publicsuffixlist").joinpath("public_suffix_list.dat").read_text(encoding="utf-8")


def use_list(stored: str) -> None:
    """Judge domains by the cluster's list, whatever is installed here."""
    if stored != installed_list():
        fix_public_suffixes(stored)


def use_snapshot(folder: Path) -> None:
    """Judge domains by the folder's list, if it has one (a folder made by hand may not)."""
    kept = folder / SNAPSHOT
    if kept.is_file():
        fix_public_suffixes(kept.read_text(encoding="utf-8"))
