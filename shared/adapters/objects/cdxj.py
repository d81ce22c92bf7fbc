"""Writes a CDXJ index, a sorted list of stored pages, in bounded memory. Readers never see an incomplete index."""

import heapq
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Final

from shared.adapters.objects.local import sync_folder
from shared.domain.archive.cdxj import IndexRow, cdxj_line

RUN_LINES: Final = 100_000
_MERGE_WIDTH: Final = 64
_BUFFER: Final = 1 << 18


def write_index(rows: Iterable[IndexRow], path: Path, *, run_lines: int = RUN_LINES) -> int:
    """Write the CDXJ index of `rows` to `path`, with its lines in byte order. Return its number of lines.

    Readers of `path` see the old index or the complete new one. After an error the old one stays. This is an external
    merge sort: groups of `run_lines` lines are sorted in memory and written to temporary files, which are then merged.
    """
    lines = (cdxj_line(row) + b"\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as scratch:
        runs = _merged_runs(_sorted_runs(lines, Path(scratch), run_lines), Path(scratch))
        whole = Path(scratch) / "index"
        count = _merge(runs, whole, durable=True)
        whole.replace(path)
    sync_folder(path.parent)
    return count


def _sorted_runs(lines: Iterator[bytes], scratch: Path, run_lines: int) -> Iterator[Path]:
    number = 0
    while run := list(islice(lines, run_lines)):
        run.sort()
        target = scratch / f"run-{number}"
        with target.open("wb", buffering=_BUFFER) as out:
            out.writelines(run)
        number += 1
        yield target


def _merged_runs(runs: Iterator[Path], scratch: Path) -> list[Path]:
    """Merge sorted files into larger ones, until few enough remain to merge them all at once. Return these.

    `runs` are the sorted files. `scratch` is the folder for merged files.
    """
    # The files of `runs` are at level 0. When a level is full, its files are merged into one file of the next level.
    levels: list[list[Path]] = []
    for run in runs:
        level, carried = 0, run
        while True:
            if level == len(levels):
                levels.append([])
            levels[level].append(carried)
            if len(levels[level]) < _MERGE_WIDTH // 2:
                break
            carried = scratch / f"merged-{level}-{levels[level][0].name}"
            _merge(levels[level], carried)
            levels[level] = []
            level += 1
    return [run for level_runs in levels for run in level_runs]


def _merge(runs: list[Path], target: Path, *, durable: bool = False) -> int:
    """Merge the sorted files `runs` into `target`, delete them, and return the number of lines.

    With `durable`, flush `target` to the disk.
    """
    count = 0
    with ExitStack() as stack:
        out = stack.enter_context(target.open("wb", buffering=_BUFFER))
        sources = [stack.enter_context(run.open("rb", buffering=_BUFFER)) for run in runs]
        for line in heapq.merge(*sources):
            out.write(line)
            count += 1
        if durable:
            out.flush()
            os.fsync(out.fileno())
    for run in runs:
        run.unlink()
    return count
