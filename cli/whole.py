"""Where a command writes what it was asked for: standard output, or a file that is never there half."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cli.exits import Environment, Usage


@contextmanager
def written_whole(path: Path | None) -> Iterator[IO[bytes]]:
    """Standard output, or a file that appears under its name only once the block has ended well.

    Usage where it cannot be begun, Environment where the disk does not take all of it.
    """
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    staged = path.with_name(f".{path.name}.part")
    try:
        try:
            out = staged.open("wb")
        except OSError as error:
            raise Usage(f"cannot write {path}: {error.strerror}.") from error
        try:
            with out:
                yield out
            staged.replace(path)
        except OSError as error:
            raise Environment(f"cannot write all of {path} ({error}); see to it, and ask again.") from error
    finally:
        staged.unlink(missing_ok=True)
