"""Standard output: its write errors have a type of their own, and it takes every character.

Any full disk has the same error number, so the type tells which file could not be written.
"""

import codecs
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class StdoutUnwritable(OSError):
    """Standard output could not be written. A closed reader still raises BrokenPipeError."""


class _Output(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StdoutUnwritable(error.errno, error.strerror) from error


class _Unbuffered(io.BufferedWriter):
    """Writes each argument completely and buffers nothing: a raw file may write only a part."""

    def write(self, data: Any) -> int:
        taken = super().write(data)
        self.flush()
        return taken


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Write a character that the encoding lacks as JSON does: a title must not end a command, and JSON stays JSON."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    import json  # most commands need none

    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error("orb-escaped", _escaped)


@contextmanager
def marked_output() -> Iterator[None]:
    """Raise StdoutUnwritable for errors of standard output until the `with` block ends. Escape characters that its
    encoding lacks.

    Do nothing if standard output is not a file descriptor of the system.
    """
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
        "orb-escaped" if text.errors == "strict" else text.errors,
        line_buffering=text.line_buffering,
        write_through=text.write_through,
    )
    sys.stdout = marked
    try:
        yield
    finally:
        if sys.stdout is marked:
            sys.stdout = text
