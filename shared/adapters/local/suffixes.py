"""The public suffix list of a local crawl's folder or of a cluster, by which hosts are assigned to partitions.

It is fixed when the folder or cluster is created, because partitions depend on it. A local crawl stores it in a file
beside its database. A cluster stores it in SQL for masters, and in etcd for workers.
"""

import os
from pathlib import Path
from typing import Final

from shared.domain.web.url import fix_public_suffixes

SNAPSHOT: Final = "public_suffixes.dat"


def keep_snapshot(folder: Path) -> None:
    """Copy the installed public suffix list into `folder`, unless the folder has a list already.

    After a crash the copy is either complete or does not exist.
    """
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
    """Return the text of the public suffix list in the installed package `publicsuffixlist`."""
    from importlib import resources  # commands that only read a folder need none of its libraries

    return resources.files("publicsuffixlist").joinpath("public_suffix_list.dat").read_text(encoding="utf-8")


def use_list(stored: str) -> None:
    """Make this process use the public suffix list with the text `stored` to find registrable domains.

    The list in the installed package `publicsuffixlist` may be another one.
    """
    if stored != installed_list():
        fix_public_suffixes(stored)


def use_snapshot(folder: Path) -> None:
    """Make this process use the public suffix list that is stored in `folder` to find registrable domains.

    A folder that was made by hand may have no list. The process then uses the installed one.
    """
    kept = folder / SNAPSHOT
    if kept.is_file():
        fix_public_suffixes(kept.read_text(encoding="utf-8"))
