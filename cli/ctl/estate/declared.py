"""Reads crawls and schedules from files, in the form of `get -o yaml` or of the REST API.

A crawl may also have the form of `orb crawl --spec`. A document with `verb:` is a schedule.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cli.ctl.problems import WrongField
from cli.terminal.exits import Usage
from cli.terminal.yaml_input import documents, text_of
from shared.domain.crawl.spec import LABEL, LABEL_WORDS
from shared.domain.crawl.spec_parse import shown
from shared.domain.suggestions import label_meant

_READ_ONLY: Final = frozenset(
    (
        "id",
        "revision",
        "state",
        "finished_reason",
        "blocking_reason",
        "resource_pressure",
        "allowed_verbs",
        "created_at",
        "started_at",
        "finished_at",
        "active_s",
        "drifted",
        "warnings",
        "seeds",
    )
)
"""Fields that a master adds to a crawl in its answers; in a file they are ignored."""

_SCHEDULE_ONLY: Final = frozenset(
    ("id", "next_at", "last_due_at", "created_at", "created_by", "next_firings", "warnings", "history")
)
"""The same of a schedule."""

_ENDINGS: Final = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Declared:
    """A crawl or schedule that a file declares. `body` is that of its PUT request, `source` names the file."""

    name: str
    body: Mapping[str, Any]
    source: str
    kind: str = "crawl"

    @property
    def plural(self) -> str:
        """The kind as the API's paths have it."""
        return f"{self.kind}s"


def read(files: Iterable[str], stdin: Iterable[str]) -> list[Declared]:
    """Return all crawls that `files` declare, then all schedules, which name crawls.

    Raise Usage if there are none, or one is invalid or declared twice. `-` is standard input.
    A folder stands for its .yaml, .yml and .json files.
    """
    crawls: list[Declared] = []
    for name in files:
        for text, source in _texts(name, stdin):
            for place, data in enumerate(documents(text, source), 1):
                crawls += _crawls(data, source if place == 1 else f"{source}, document {place}")
    if not crawls:
        raise Usage("the files contain no crawl: it needs `name:` and `spec:`, or `name:` and `seeds:`.")
    seen: dict[tuple[str, str], str] = {}
    for crawl in crawls:
        key = crawl.kind, crawl.name
        if key in seen:
            raise Usage(f"the {crawl.kind} {crawl.name!r} is declared twice: in {seen[key]} and in {crawl.source}.")
        seen[key] = crawl.source
    return sorted(crawls, key=lambda each: each.kind != "crawl")


def misnamed(crawl: Declared) -> WrongField | None:
    """Return the error in the crawl's name, in the words of a master, or None. A PUT has the name in its path, which
    cannot hold every name.
    """
    if re.fullmatch(LABEL, crawl.name):
        return None
    return WrongField("name", f"expected {LABEL_WORDS}, got {shown(crawl.name)}", label_meant(crawl.name))


def _texts(name: str, stdin: Iterable[str]) -> Iterator[tuple[str, str]]:
    if name == "-":
        try:
            yield "".join(stdin), "standard input"
        except UnicodeDecodeError as error:
            raise Usage(f"standard input is not UTF-8 text (byte {error.start}).") from None
        return
    path = Path(name)
    if not path.is_dir():
        yield text_of(path, "crawl"), name
        return
    for file in sorted(path.iterdir()):
        if file.suffix in _ENDINGS and file.is_file():
            yield text_of(file, "crawl"), str(file)


def _crawls(data: Any, source: str) -> Iterator[Declared]:
    match data:
        case None:
            return
        case {"items": list(items), **rest} if not rest:
            for place, item in enumerate(items):
                yield from _crawls(item, f"{source}, items[{place}]")
        case {"name": str(name), "spec": dict()}:
            body = {key: value for key, value in data.items() if key not in _READ_ONLY and key != "name"}
            yield Declared(name, body, source)
        case {"name": str(name), "verb": _}:
            body = {key: value for key, value in data.items() if key not in _SCHEDULE_ONLY and key != "name"}
            yield Declared(name, body, source, "schedule")
        case {"name": str(name), "seeds": _}:  # a spec, as `orb crawl --spec` takes it
            yield Declared(name, {"spec": {key: value for key, value in data.items() if key != "name"}}, source)
        case dict():
            lacking = "`name:`" if not isinstance(data.get("name"), str) else "`spec:` (or `seeds:`)"
            raise Usage(f"{source} is not a crawl: it has no {lacking}.")
        case _:
            raise Usage(f"{source} is not a crawl: it is a {'list' if isinstance(data, list) else 'single value'}.")
