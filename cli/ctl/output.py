"""The standard output of `orb ctl`: tables and sentences for people; JSON, YAML or names for programs.

Messages that are not part of the result go to stderr.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, TextIO

import yaml
from rich.console import Console
from rich.text import Text

from cli.ctl.cells import Now
from cli.ctl.resources import ResourceKind
from cli.ctl.sections import Section, lines_of
from cli.ctl.tables import laid_out, offered

FORMS: Final = ("table", "wide", "json", "yaml", "name")
_BATCH: Final = 500
"""Maximum rows that are printed as one table. A longer list is printed in batches of this size, to save memory."""
_JSON_LIST: Final = '{"items": ['
_YAML_LIST: Final = "items:\n"


class CtlOutput:
    """Writes the results of a command in the format of `-o`: `table`, `wide`, `json`, `yaml` or `name`.

    On a terminal, tables have colours and fit its width. In a file or pipe no text is cut.
    """

    def __init__(
        self, form: str = "table", *, out: TextIO | None = None, width: int | None = None, now: datetime | None = None
    ) -> None:
        self._form = form
        self._out = sys.stdout if out is None else out
        self._console = Console(file=self._out, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._width = width or (self._console.width if self._out.isatty() else None)
        self._now = Now(datetime.now(UTC) if now is None else now)

    @property
    def for_people(self) -> bool:
        """True if the format is for people: sentences and tables, not JSON, YAML or names."""
        return self._form in ("table", "wide")

    @property
    def names_only(self) -> bool:
        """True if the format prints only the names of resources (`-o name`)."""
        return self._form == "name"

    def items(self, resource: ResourceKind, rows: Iterable[Mapping[str, Any]]) -> int:
        """Print a list of resources in the chosen format. Return how many there were."""
        match self._form:
            case "name":
                return self._each(rows, lambda row: f"{resource.one}/{row[resource.key]}\n")
            case "json":
                return self._list_json(rows)
            case "yaml":
                return self._list_yaml(rows)
            case _:
                return self._table(resource, rows)

    def one(self, resource: ResourceKind, row: Mapping[str, Any]) -> None:
        """Print one resource in the chosen format."""
        if self.for_people:
            self._table(resource, [row])
        elif self._form == "name":
            self._out.write(f"{resource.one}/{row[resource.key]}\n" if resource.key else f"{resource.one}\n")
        else:
            self.document(row)

    def sections(self, body: object, sections: Callable[[Now], Sequence[Section]]) -> None:
        """Print an object: as `sections(now)` for people, as the JSON value `body` in a format for programs."""
        if self.for_people:
            for line in lines_of(sections(self._now), self._width):
                self._line([line])
        else:
            self.document(body)

    def document(self, body: object) -> None:
        """Print one JSON value: as YAML if that is the format, else as JSON."""
        self._out.write(as_yaml(body) if self._form == "yaml" else as_json(body) + "\n")

    def event(self, body: object) -> None:
        """Print one event of an endless stream: as one line of JSON, or as a YAML document."""
        if self._form == "yaml":
            self._out.write(f"---\n{as_yaml(body)}")
        else:
            self._out.write(json.dumps(body, ensure_ascii=False) + "\n")
        self._out.flush()

    def done(self, name: str, what: str, body: object = None) -> None:
        """Print what was done to a resource, as `crawl/docs paused`.

        With `-o name`, print only the name. With JSON or YAML, print `body`. If `body` is None, print an object with
        `name` in the field `name` and `what` in the field `done`.
        """
        if self.for_people:
            self._out.write(f"{name} {what}\n")
        elif self._form == "name":
            self._out.write(f"{name}\n")
        else:
            self.document({"name": name, "done": what} if body is None else body)
        self._out.flush()

    def say(self, text: str = "", style: str = "") -> None:
        """Print a line of text in a rich style, such as `red`, and flush it. Call it only if `for_people`."""
        self._line([(text, style)])
        self._out.flush()

    def _table(self, resource: ResourceKind, rows: Iterable[Mapping[str, Any]]) -> int:
        columns = offered(resource.columns, wide=self._form == "wide")
        count, left = 0, iter(rows)
        while batch := list(islice(left, _BATCH)):
            texts = [[column.cell(row, self._now) for column in columns] for row in batch]
            layout = laid_out(columns, texts, self._width)
            places = [columns.index(column) for column in layout.columns]
            if count == 0:
                self._line([(text, "bold") for text, _ in layout.line(layout.titles())])
            for row in texts:
                self._line(layout.line([row[place] for place in places]))
            count += len(batch)
            self._out.flush()
        if count == 0:
            print(f"orb: no {resource.name} found", file=sys.stderr)
        return count

    def _each(self, rows: Iterable[Mapping[str, Any]], text: Callable[[Mapping[str, Any]], str]) -> int:
        count = 0
        for row in rows:
            self._out.write(text(row))
            count += 1
        return count

    def _list_json(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Print `{"items": [...]}`, each item as soon as it arrives. Return the number of items.

        Print nothing before the first item arrives, because the request for it may fail.
        """
        count = 0
        for row in rows:
            self._out.write(f"{',' if count else _JSON_LIST}\n{as_json(row)}")
            count += 1
        self._out.write("\n]}\n" if count else f"{_JSON_LIST}\n]}}\n")
        return count

    def _list_yaml(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Print `items:` and a YAML list, each item as soon as it arrives. Return the number of items."""
        count = 0
        for row in rows:
            self._out.write(f"{'' if count else _YAML_LIST}{as_yaml([row])}")
            count += 1
        if count == 0:
            self._out.write(f"{_YAML_LIST}  []\n")
        return count

    def _line(self, parts: Iterable[tuple[str, str]]) -> None:
        if self._out.isatty():
            self._console.print(Text.assemble(*parts), no_wrap=True, overflow="ignore", crop=False)
        else:
            self._out.write("".join(text for text, _ in parts).rstrip() + "\n")


def as_json(body: object) -> str:
    """Return a JSON value as indented text. Fields keep their order."""
    return json.dumps(body, indent=2, ensure_ascii=False)


def as_yaml(body: object) -> str:
    """Return a JSON value as YAML, in a form that `apply -f` accepts."""
    text: str = yaml.dump(
        body, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=10_000
    )
    return text


class _Dumper(yaml.SafeDumper):
    """Writes YAML without anchors and aliases. It escapes line breaks that a YAML reader would replace by spaces."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if _LINE_BREAKS.intersection(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_LINE_BREAKS: Final = frozenset("\x85\u2028\u2029")
_Dumper.add_representer(str, _text)
