"""The public suffix list that a folder's crawl was begun with, kept beside it: partitions depend on it for good."""

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
        file.write(resources.files("publicsuffixlist").joinpath("public_suffix_list.dat").read_bytes())
        file.flush()
        os.fsync(file.fileno())
    staged.replace(kept)


def use_snapshot(folder: Path) -> None:
    """Judge domains by the folder's list, if it has one (a folder made by hand may not)."""
    kept = folder / SNAPSHOT
    if kept.is_file():
        fix_public_suffixes(kept.read_text(encoding="utf-8"))
