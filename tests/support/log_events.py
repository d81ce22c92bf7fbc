"""The log events of the product, read from its code, and docs/logs.md, which lists them.

    .venv/bin/python -m tests.support.log_events

writes the table of docs/logs.md anew. Event, level, process and fields come from the code. Meaning and what to do are
written by hand in the table itself: they are kept, and a new event gets empty ones to fill in.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "logs.md"
PROCESSES: Final[Mapping[str, str]] = {"api": "master", "workers": "worker", "cli": "orb", "shared": "any"}
"""The process that logs, by the package of the code."""

LEVELS: Final[Mapping[str, str]] = {
    **{level: level for level in ("debug", "info", "warning", "error", "critical")},
    "exception": "error",
}
"""The level of a line, by the logger's method."""

OTHER_WAYS: Final = ("bind", "new", "log", "msg", "warn")
"""Methods of a logger that would hide an event, its level or its fields."""

FORM: Final = re.compile(r"[a-z]+(_[a-z]+)*\.([a-z]+ed|dead_lettered|lost|withdrawn)")
"""`<noun>.<past participle>`."""

FURTHER: Final = "..."
"""Stands for fields that a caller adds (`**fields`)."""

_HEADER: Final = "| Event | Level | Process | Fields | Meaning | What to do |\n|---|---|---|---|---|---|\n"


@dataclass(frozen=True)
class Logged:
    """One place in the code that logs: its events, level, process and fields."""

    events: tuple[str, ...]
    level: str
    process: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class EventRow:
    """One row of the table. A field that some places leave out ends with `?`."""

    event: str
    level: str
    process: str
    fields: str
    meaning: str = ""
    action: str = ""

    @property
    def facts(self) -> tuple[str, str, str, str]:
        """What the code decides."""
        return self.event, self.level, self.process, self.fields

    def __str__(self) -> str:
        return f"| `{self.event}` | {self.level} | {self.process} | {self.fields} | {self.meaning} | {self.action} |\n"


def logged() -> Iterator[Logged]:
    """Yield every place of the product that logs an event. Raise ValueError if an event's name is no literal."""
    for package, process in PROCESSES.items():
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call):
                    yield from _call(node, process, path)
                elif isinstance(node, ast.Dict):
                    yield from _line(node, process)


def _call(call: ast.Call, process: str, path: Path) -> Iterator[Logged]:
    """A call of a logger, which every module calls `log`."""
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=method), args=[event]) if method in LEVELS:
            fields = tuple(FURTHER if keyword.arg is None else keyword.arg for keyword in call.keywords)
            yield Logged(_names(event, path), LEVELS[method], process, fields)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=method)) if method in {*LEVELS, *OTHER_WAYS}:
            raise ValueError(f"{path}:{call.lineno}: not a call of the form log.<level>(event, field=value)")


def _names(event: ast.expr, path: Path) -> tuple[str, ...]:
    match event:
        case ast.Constant(value=str(name)):
            return (name,)
        case ast.IfExp(body=first, orelse=second):
            return _names(first, path) + _names(second, path)
    raise ValueError(f"{path}:{event.lineno}: the name of an event must be a literal")


def _line(line: ast.Dict, process: str) -> Iterator[Logged]:
    """A line that is made without a logger: a dict with `event` and `level`."""
    keys = [key.value for key in line.keys if isinstance(key, ast.Constant)]
    values = dict(zip(keys, line.values, strict=False))
    match values.get("event"), values.get("level"):
        case ast.Constant(value=str(event)), ast.Constant(value=str(level)):
            yield Logged((event,), level, process, tuple(str(key) for key in keys if key not in ("event", "level")))


@cache
def rows_of_code() -> tuple[EventRow, ...]:
    """Return a row for each event of the product, in the order of their names."""
    places: dict[str, list[Logged]] = defaultdict(list)
    for place in logged():
        for event in place.events:
            places[event].append(place)
    return tuple(
        EventRow(
            event, _joined([p.level for p in of]), _joined([p.process for p in of]), _fields([p.fields for p in of])
        )
        for event, of in sorted(places.items())
    )


def _joined(values: Sequence[str]) -> str:
    return ", ".join(sorted(set(values)))


def _fields(places: Sequence[Sequence[str]]) -> str:
    names = dict.fromkeys(name for fields in places for name in fields)
    return ", ".join(
        f"`{name}`" + ("" if all(name in fields for fields in places) else "?") if name != FURTHER else FURTHER
        for name in names
    )


def rows_of_page(text: str) -> list[EventRow]:
    """Return the rows of the table in docs/logs.md."""
    cell = r" ?(.*?) \|"
    return [EventRow(*found) for found in re.findall(rf"^\| `([^`]+)` \|{cell * 5}$", text, re.MULTILINE)]


def rewritten(text: str) -> str:
    """Return the page with the events as the code has them, and their meanings as the page has them."""
    known = {row.event: row for row in rows_of_page(text)}
    table = "".join(
        str(EventRow(*row.facts, known[row.event].meaning, known[row.event].action) if row.event in known else row)
        for row in rows_of_code()
    )
    return text[: text.index(_HEADER)] + _HEADER + table


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text("utf-8")), "utf-8")
