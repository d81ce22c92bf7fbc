"""What files declare: crawls, as `get -o yaml` shows them, as REST takes them, or as `orb crawl --spec` reads them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cli.ctl.problems import WrongField
from cli.exits import Usage
from cli.written import documents, text_of
from shared.domain.crawl import LABEL, LABEL_WORDS
from shared.domain.meant import label_meant
from shared.domain.spec_parse import shown

_READ_ONLY: Final = frozenset(
    (
        "id",
        "revision",
        "state",
        "finished_reason",
        "held",
        "legal",
        "created_at",
        "started_at",
        "finished_at",
        "active_s",
        "warnings",
        "seeds",
    )
)
"""What a master adds to a crawl that it shows; in a file it declares nothing."""

_ENDINGS: Final = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Declared:
    """A crawl as it shall be: `body` is what a PUT takes."""

    name: str
    body: Mapping[str, Any]
    source: str


def read(files: Iterable[str], stdin: Iterable[str]) -> list[Declared]:
    """Every crawl that the files declare ("-": standard input; a folder: its .yaml, .yml and .json files). Usage."""
    found: list[Declared] = []
    for name in files:
        for text, source in _texts(name, stdin):
            for place, data in enumerate(documents(text, source), 1):
                found += _crawls(data, source if place == 1 else f"{source}, document {place}")
    if not found:
        raise Usage("the files declare no crawl; one needs `name:` and `spec:`, or `name:` and `seeds:`.")
    seen: dict[str, str] = {}
    for crawl in found:
        if crawl.name in seen:
            raise Usage(f"the crawl {crawl.name!r} is declared twice: in {seen[crawl.name]} and in {crawl.source}.")
        seen[crawl.name] = crawl.source
    return found


def misnamed(crawl: Declared) -> WrongField | None:
    """What is wrong with its name, as a master says it: the name of a PUT is in its path, where not all can stand."""
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
        case {"name": str(name), "seeds": _}:  # a spec, as `orb crawl --spec` takes it
            yield Declared(name, {"spec": {key: value for key, value in data.items() if key != "name"}}, source)
        case dict():
            lacking = "`name:`" if not isinstance(data.get("name"), str) else "`spec:` (or `seeds:`)"
            raise Usage(f"{source} declares no crawl: it has no {lacking}.")
        case _:
            raise Usage(f"{source} declares no crawl: it is a {'list' if isinstance(data, list) else 'single value'}.")
