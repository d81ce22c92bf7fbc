"""docs/limits.md names every limit of the code with its value, and the test that meets it."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared.adapters.nats.settings import StreamSettings
from shared.domain.crawl.spec import CrawlSpec
from shared.domain.ops.config import HotConfig, MasterTuning
from shared.settings import ClusterMasterSettings, ClusterWorkerSettings

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "limits.md").read_text("utf-8")
TABLES = TEXT.split("\n## Every limit\n", 1)[1]
ROW = re.compile(r"^\| `([\w.]+)` \| (\S+) \| (.+) \| `([\w/]+)` \|$", re.MULTILINE)
BOUND = re.compile(
    r"^(MAX|LARGEST|LONGEST|ROOM)(_|$)"
    r"|_(BYTES|CACHE|LIMIT|MAX|CHARS)$"
    r"|^(SCANNED|QUEUES|WINDOW|EXPORTS|STREAMS|ROWS|SPLIT_AFTER|SPLIT_BY|BURY_AFTER|AT_ONCE|HOST_GIVE_UP|DEFAULT_SLOTS)$"
)
NO_LIMITS = {
    "shared.domain.web.robots.MAX_LIFETIME_S",
    "shared.domain.web.robots.MAX_CRAWL_DELAY_S",
}
"""They bound times."""


def rows() -> dict[str, tuple[str, str]]:
    """Default and test of each limit, by its name."""
    found = [(name, (default, test)) for name, default, _, test in ROW.findall(TABLES)]
    assert len(dict(found)) == len(found), "each limit stands in one row"
    return dict(found)


def constants() -> Iterator[tuple[str, Any]]:
    """Every constant of the code whose name says that it is a bound."""
    for room in ("api", "workers", "shared", "cli"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.parse(path.read_text("utf-8")).body:
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                name = targets[0].id if isinstance(targets[0], ast.Name) else ""
                if name.isupper() and name[0] != "_" and BOUND.search(name):
                    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                    value = getattr(importlib.import_module(module), name)
                    if isinstance(value, int | float) and f"{module}.{name}" not in NO_LIMITS:
                        yield f"{module}.{name}", value


def fields(kind: Any, *, whole: bool = False) -> dict[str, Any]:
    """Defaults of the fields of a struct that are numbers; `whole`: of its parts, too, by their paths."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        default = None if field.default is msgspec.NODEFAULT else field.default
        if isinstance(default, msgspec.Struct) and whole:
            found |= {f"{field.name}.{name}": value for name, value in fields(type(default), whole=True).items()}
        elif isinstance(default, int | float) and not isinstance(default, bool):
            found[field.name] = default
        elif default is None and re.match(r"max_|host_slots", field.name):
            found[field.name] = None
    return found


def expected() -> dict[str, Any]:
    """Everything that has to stand in the tables, with its value."""
    settings = fields(ClusterMasterSettings) | fields(ClusterWorkerSettings)
    limits = {name: value for name, value in settings.items() if isinstance(value, int)}
    hot = {f"master.{name}" for name in fields_of(HotConfig.__annotations__["master"]) if not name.endswith("_s")}
    limits |= {name: getattr(MasterTuning(), name.removeprefix("master.")) for name in hot}
    spec = fields(CrawlSpec, whole=True)
    limits |= {
        name: value
        for name, value in spec.items()
        if re.search(r"\.(max_\w+|\w+_timeout_s|(?:host_)?attempts|host_slots|\w+_bytes)$", name)
    }
    streams = StreamSettings()
    limits |= {
        f"StreamSettings.{name}": getattr(streams, name)
        for name in StreamSettings.__struct_fields__
        if re.search(r"_bytes$|_per_subject$|^max_|_count$", name)
    }
    return limits | dict(constants())


def fields_of(kind: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = kind.__struct_fields__
    return names


def resolved(name: str) -> Any:
    """The value of a constant that is told although its name does not say that it is a bound."""
    module, _, constant = name.rpartition(".")
    return getattr(importlib.import_module(module), constant)


def test_every_limit_stands_in_the_document_with_its_value() -> None:
    told = {name: default for name, (default, _) in rows().items()}
    limits = expected()
    limits |= {name: resolved(name) for name in told.keys() - limits.keys()}
    assert told == {name: "none" if value is None else str(value) for name, value in limits.items()}


def test_every_row_is_a_row() -> None:
    """One that the tables' pattern does not read would be left unchecked."""
    lines = [line for line in TABLES.splitlines() if line.startswith("|") and not re.match(r"\| limit|\|-", line)]
    assert len(lines) == len(rows())


@pytest.mark.parametrize("test", sorted({test for _, test in rows().values()}))
def test_the_tests_that_are_named_exist(test: str) -> None:
    assert (ROOT / "tests" / f"{test}.py").is_file()


def test_what_is_kept_for_how_long_is_named() -> None:
    for name in HotConfig.__annotations__["retention"].__struct_fields__:
        assert f"`{name}`" in TEXT
