"""Standard output for commands: a write error is a StdoutUnwritable, and every character can be written.

With StdoutUnwritable, a command can distinguish a full disk under its output from a full disk under another file.
Standard streams that are closed at the start are opened on /dev/null.
"""

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class StdoutUnwritable(OSError):
    """Raised if standard output cannot be written. A reader that has closed the pipe raises BrokenPipeError instead."""


class _Output(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StdoutUnwritable(error.errno, error.strerror) from error


class _Unbuffered(io.BufferedWriter):
    """A binary stream whose `write` returns only after all the data has been written to the file."""

    def write(self, data: Any) -> int:
        taken = super().write(data)
        self.flush()
        return taken


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that the output encoding cannot represent with JSON escapes such as `\\u20ac`.

    This is a codec error handler: return the replacement and the position at which encoding continues.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    import json  # most commands need none

    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error("orb-escaped", _escaped)


def open_closed_streams() -> None:
    """Open /dev/null in place of standard streams that were closed when this process started (`orb version >&-`).

    Python sets such streams to None, and the next file or socket would get their descriptors.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is that of the stream
            os.set_inheritable(null, True)
            # It stays open until the process ends.
            setattr(sys, name, open(null, mode, errors="backslashreplace", closefd=False))  # noqa: SIM115


@contextmanager
def marked_output() -> Iterator[None]:
    """Replace standard output during the `with` block, so that its write errors become StdoutUnwritable.

    Characters that the encoding of the output cannot represent are escaped. Do nothing if standard output is not a real
    file, such as in tests.
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
