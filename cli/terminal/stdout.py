"""Standard output: its write errors get a separate exception type, and it accepts every character.

The error of a full disk does not tell which file was written. The type tells that it was standard output.
"""

import codecs
import io
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
    """A binary stream that writes its data completely with each call.

    An unbuffered file may write only a part of it.
    """

    def write(self, data: Any) -> int:
        taken = super().write(data)
        self.flush()
        return taken


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that the output encoding cannot represent with JSON escapes. This is a codec error handler.

    So no character in a page's title can end a command with an error, and JSON output stays valid.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    import json  # most commands need none

    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error("orb-escaped", _escaped)


@contextmanager
def marked_output() -> Iterator[None]:
    """Replace standard output during the `with` block: its write errors become StdoutUnwritable.

    Characters that its encoding cannot represent are escaped. Do nothing if standard output is not a real file, such as
    in tests.
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
