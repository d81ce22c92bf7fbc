"""Standard output, whose refusals say that they are its: the system tells of any full disk in the same words."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Unwritten(OSError):
    """Standard output did not take what was written to it. A reader that left is BrokenPipeError, as ever."""


class _Output(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Unwritten(error.errno, error.strerror) from error


class _Unbuffered(io.BufferedWriter):
    """Writes all of what it is given, and keeps nothing back: a raw file may take a part only."""

    def write(self, data: Any) -> int:
        taken = super().write(data)
        self.flush()
        return taken


@contextmanager
def marked_output() -> Iterator[None]:
    """Within the block, what standard output refuses is Unwritten, where it is a file of the system's."""
    text = sys.stdout
    binary = text.buffer if isinstance(text, io.TextIOWrapper) else None
    raw = getattr(binary, "raw", binary)
    if not isinstance(text, io.TextIOWrapper) or not isinstance(raw, io.FileIO):
        yield
        return
    text.flush()
    output = _Output(raw.fileno(), "wb", closefd=False)
    marked = io.TextIOWrapper(
        _Unbuffered(output) if binary is raw else io.BufferedWriter(output),
        text.encoding,
        text.errors,
        line_buffering=text.line_buffering,
        write_through=text.write_through,
    )
    sys.stdout = marked
    try:
        yield
    finally:
        if sys.stdout is marked:
            sys.stdout = text
