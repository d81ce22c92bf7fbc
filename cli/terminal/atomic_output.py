"""The output of a command: standard output, or a file that appears only when it is complete."""

import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from cli.terminal.exits import Environment, Usage

_NO_LOCKS: Final = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""The errors of a network file system without locks: two commands that write one file are not kept apart there."""


@contextmanager
def written_whole(path: Path | None) -> Iterator[IO[bytes]]:
    """Yield a binary stream for the output of a command: standard output if `path` is None, else a file.

    The file appears at `path` only if the `with` block succeeds. A device or pipe is written directly. If `path` is a
    link, the link stays and its target is replaced. Raise Usage if the file cannot be created. Raise Environment if it
    cannot be written completely, or if another command is writing it.
    """
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        place = path.resolve()
        if place.is_dir():
            raise Usage(f"cannot write {path}: it is a folder.")
        staged = None if place.exists() and not place.is_file() else place.parent / f".{place.name}.part"
        held = os.open(place, os.O_WRONLY | os.O_TRUNC) if staged is None else _locked(staged, path)
    except OSError as error:
        raise Usage(f"cannot write {path}: {error.strerror}.") from error
    except RuntimeError as error:
        raise Usage(f"cannot write {path}: its links lead back to themselves.") from error
    try:
        # Closing the duplicate reports the last errors of writing, and keeps the lock.
        with os.fdopen(os.dup(held), "wb") as out:
            yield out
        if staged is not None:
            staged.replace(place)
    except OSError as error:
        raise Environment(f"cannot write all of {path} ({error}); correct that and repeat the command.") from error
    finally:
        if staged is not None and _is_at(held, staged):
            staged.unlink()
        os.close(held)


def _locked(staged: Path, path: Path) -> int:
    """Return the descriptor of the empty file `staged`, which only this command writes until it closes the descriptor.

    The name is the same for all commands that write `path`, so that the next one uses what a killed command has left.
    Raise Environment if another command is writing `path`.
    """
    while True:
        held = os.open(staged, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            _lock(held)
            if _is_at(held, staged):
                os.ftruncate(held, 0)
                return held
        except BlockingIOError:
            os.close(held)
            raise Environment(
                f"another command is writing {path}: wait until it ends, or choose another file."
            ) from None
        except BaseException:
            os.close(held)
            raise
        os.close(held)  # another command replaced or removed the file before the lock was taken


def _lock(held: int) -> None:
    """Lock the file, unless its file system has no locks. Raise BlockingIOError if another command has locked it."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _is_at(held: int, staged: Path) -> bool:
    """Return True if `held` is the descriptor of the file that is at `staged` now."""
    try:
        return os.path.samestat(os.fstat(held), os.lstat(staged))
    except FileNotFoundError:
        return False
