"""Compute the difference between the texts of two versions of a page in bounded time. No I/O."""

import re
from dataclasses import dataclass
from difflib import unified_diff
from typing import Final

from shared.domain.web.page_text import MAX_BYTES, decoded, visible_text

MAX_DIFF_LINES: Final = 1_000
"""The maximum number of lines of each version that are compared. `text_diff` first skips equal lines at the beginning
and end of both versions."""

MAX_LINE_CHARS: Final = 10_000
"""How many characters of a line are compared and shown. The rest of a longer line is cut off."""

_CONTEXT: Final = 3
_CHARSET: Final = re.compile(r"charset\s*=\s*[\"']?([A-Za-z0-9._:-]{1,40})", re.IGNORECASE)
_META: Final = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([A-Za-z0-9._:-]{1,40})", re.IGNORECASE)
_META_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class TextDiff:
    """A difference in the unified format, without file names.

    - `added`, `removed`: how many lines were added and removed.
    - `cut`: the texts were too long, so a part of them was not compared.
    """

    lines: tuple[str, ...]
    added: int
    removed: int
    cut: bool


def has_text(mime: str | None) -> bool:
    """Return True if `mime` is a type of text, JSON, XML or JavaScript, so that bodies can be compared by lines."""
    kind = (mime or "").lower()
    return kind.startswith("text/") or kind.endswith(("+xml", "+json", "/json", "/xml", "/javascript"))


def text_of(body: bytes, content_type: str, mime: str | None) -> list[str]:
    """Return the lines of a body's text: the visible text of HTML, all lines of another type.

    The charset is that of the Content-Type, or of a meta element at the beginning. If neither names a charset, it is
    UTF-8 for a body that is valid UTF-8, and windows-1252 for any other body.
    """
    named = _CHARSET.search(content_type)
    meta = None if named is not None else _META.search(body[:_META_BYTES])
    charset = named[1] if named is not None else (meta[1].decode("ascii") if meta is not None else _guessed(body))
    if (mime or "").partition(";")[0].strip().lower() in ("text/html", "application/xhtml+xml"):
        lines = visible_text(body, charset)
    else:
        lines = decoded(body, charset).splitlines()
    return [line[:MAX_LINE_CHARS] for line in lines]


def text_diff(before: list[str], after: list[str]) -> TextDiff:
    """Return the difference between two texts, given as lines.

    Equal lines at the beginning and at the end of both texts are skipped, apart from some context. Of the remaining
    lines, at most MAX_DIFF_LINES of each text are compared.
    """
    begin, most = 0, min(len(before), len(after))
    while begin < most and before[begin] == after[begin]:
        begin += 1
    end = 0
    while end < most - begin and before[-1 - end] == after[-1 - end]:
        end += 1
    first = max(0, begin - _CONTEXT)
    olds = before[first : min(len(before), len(before) - end + _CONTEXT)]
    news = after[first : min(len(after), len(after) - end + _CONTEXT)]
    cut = max(len(olds), len(news)) > MAX_DIFF_LINES
    lines = [
        _moved(line, first)
        for line in list(unified_diff(olds[:MAX_DIFF_LINES], news[:MAX_DIFF_LINES], n=_CONTEXT, lineterm=""))[2:]
    ]
    added = sum(line.startswith("+") for line in lines)
    return TextDiff(tuple(lines), added, sum(line.startswith("-") for line in lines), cut)


_HUNK: Final = re.compile(r"@@ -(\d+)((?:,\d+)?) \+(\d+)((?:,\d+)?) @@").fullmatch


def _moved(line: str, first: int) -> str:
    """Return a line of a unified diff. If it is the header of a hunk (`@@`), add `first` to its two line numbers."""
    hunk = _HUNK(line)
    return line if hunk is None else f"@@ -{int(hunk[1]) + first}{hunk[2]} +{int(hunk[3]) + first}{hunk[4]} @@"


def _guessed(body: bytes) -> str:
    try:
        body[:MAX_BYTES].decode("utf-8")
    except UnicodeDecodeError as error:
        return "utf-8" if error.start > MAX_BYTES - 4 else "cp1252"
    return "utf-8"
