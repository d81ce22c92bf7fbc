"""The output of a command: standard output, or a file that appears only when it is complete."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cli.terminal.exits import Environment, Usage


@contextmanager
def written_whole(path: Path | None) -> Iterator[IO[bytes]]:
    """Yield a binary stream for the output of a command: standard output if `path` is None, else a file.

    The file appears at `path` only if the `with` block succeeds. A device or pipe is written directly. If `path` is a
    link, the link stays and its target is replaced. Raise Usage if the file cannot be created, Environment if it cannot
    be written completely.
    """
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        place = path.resolve()
        if place.is_dir():
            raise Usage(f"cannot write {path}: it is a folder.")
        special = place.exists() and not place.is_file()
        staged = place if special else place.parent / f".{place.name}.part"
        out = staged.open("wb")
    except OSError as error:
        raise Usage(f"cannot write {path}: {error.strerror}.") from error
    except RuntimeError as error:
        raise Usage(f"cannot write {path}: its links lead back to themselves.") from error
    try:
        with out:
            yield out
        if not special:
            staged.replace(place)
    except OSError as error:
        raise Environment(f"cannot write all of {path} ({error}); correct that and repeat the command.") from error
    finally:
        if not special:
            staged.unlink(missing_ok=True)
