"""Sections of text that describe an object. Each has a title and labelled lines, wrapped to the terminal's width."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cli.ctl.cells import Now, dated, moment, shown
from cli.terminal.printable import printable

LABEL: Final = 18
_NARROWEST: Final = 20


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the text about an object: a title, then `rows`, then the lines of `verbatim`, which are not wrapped.

    A row is a label and a text. If the label is empty, the row continues the row above it.
    """

    title: str
    rows: Sequence[tuple[str, str]] = ()
    verbatim: Sequence[str] = field(default=())


def lines_of(sections: Sequence[Section], width: int | None) -> Iterator[tuple[str, str]]:
    """Yield the lines of the sections, each with its rich style.

    Lines are wrapped to `width` characters (None: not wrapped). A longer word and `verbatim` lines may exceed it.
    """
    for place, section in enumerate(sections):
        if place and section.title:
            yield "", ""
        if section.title:
            yield section.title, "bold"
        for label, text in section.rows:
            head = f"{label:<{LABEL - 1}} " if len(label) < LABEL else f"{label} "
            for line in _wrapped(text, None if width is None else max(_NARROWEST, width - LABEL)):
                yield (head + line).rstrip(), ""
                head = " " * LABEL
        for line in section.verbatim:
            yield printable(line), ""


def flat(body: Mapping[str, Any], now: Now, *, below: str = "") -> list[tuple[str, str]]:
    """Return a label and a text for each value in a JSON object and in its nested objects.

    The label is the path of the value, such as `fetch.status`, with `below` before it. Nulls and empty values are left
    out.
    """
    rows: list[tuple[str, str]] = []
    for name, value in body.items():
        if value in (None, "", [], {}):
            continue
        match value:
            case dict():
                rows += flat(value, now, below=f"{below}{name}.")
            case [dict(), *_]:
                for place, each in enumerate(value):
                    rows += flat(each, now, below=f"{below}{name}[{place}].")
            case list():
                rows += [(f"{below}{name}" if place == 0 else "", shown(each)) for place, each in enumerate(value)]
            case _:
                rows.append((below + name, value_text(value, now)))
    return rows


def value_text(value: Any, now: Now) -> str:
    """Return a value as text for people. For a time, add how long it is from now: `(in 3h20m)` or `(12m ago)`."""
    at = moment(value) if isinstance(value, str) and "T" in value else None
    if at is None:
        return shown(value)
    ahead = now.until(value)
    return f"{dated(value)} ({f'in {ahead}' if ahead != '-' else f'{now.since(value)} ago'})"


def _wrapped(text: str, width: int | None) -> Iterator[str]:
    """Yield the lines of the text, wrapped between words to `width` characters. A longer word exceeds its line.

    None means that the text is not wrapped.
    """
    line = ""
    for word in printable(text).split(" "):
        if line and width is not None and len(line) + 1 + len(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line
