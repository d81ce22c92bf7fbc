"""Sections of text that describe an object: labelled lines, wrapped to the width of the terminal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cli.ctl.cells import Now, dated, moment, printable, shown

LABEL: Final = 18
_NARROWEST: Final = 20


@dataclass(frozen=True, slots=True)
class Section:
    """A title, and labelled lines below it; a label may be empty. `verbatim` lines follow unchanged."""

    title: str
    rows: Sequence[tuple[str, str]] = ()
    verbatim: Sequence[str] = field(default=())


def lines_of(sections: Sequence[Section], width: int | None) -> Iterator[tuple[str, str]]:
    """Yield the lines of the sections, each with its style, no wider than `width` if the words fit."""
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
    """Return a labelled line for every value inside a JSON object, such as `fetch.status`; skip empty values."""
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
    """Return a value as text for people; a time is also shown relative to now."""
    at = moment(value) if isinstance(value, str) and "T" in value else None
    if at is None:
        return shown(value)
    ahead = now.until(value)
    return f"{dated(value)} ({f'in {ahead}' if ahead != '-' else f'{now.since(value)} ago'})"


def _wrapped(text: str, width: int | None) -> Iterator[str]:
    """Yield the text wrapped at word boundaries; a longer word exceeds its line."""
    line = ""
    for word in printable(text).split(" "):
        if line and width is not None and len(line) + 1 + len(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line
