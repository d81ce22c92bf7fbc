"""Everything has its room: a file, an import or a name in the wrong place fails here.

The tables are the layout of the project. A new room is a decision: it changes a table here and the documents with it.
"""

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ("api", "workers", "shared", "cli")
MODULE_LINES = 450
DECISION_LINES = 40
PACKAGE_FILES = 25
TEST_NAME = 72

TOP_LEVEL = {
    *CODE, "orb", "orb.py", "hatch_build.py", "alembic", "tests", "docs", "deploy", "openapi",
    ".ci", ".git", ".gitignore", ".github", "compose.yaml", "Makefile", "pyproject.toml",
    "requirements.lock", "requirements-dev.lock", "requirements-launcher.lock", "requirements-build.lock",
    "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md",
}  # fmt: skip

ROOMS = {
    "api": {
        "schemas", "routes", "frontier", "crawls", "events", "http", "leader", "master", "members", "observe",
        "security", "server",
    },
    "workers": {"discover", "fetch", "parse", "extract"},
    "shared": {"domain", "ports", "wire", "runtime", "adapters"},
    "shared/adapters": {"nats", "etcd", "local", "sql", "objects"},
    "shared/adapters/sql": {"admin", "catalog", "engine", "frontier"},
    "shared/domain": {"archive", "crawl", "explain", "frontier", "ops", "reads", "schedules", "web"},
    "cli/ctl": {"estate"},
    "cli": {"admin", "ctl", "data", "dev", "local", "terminal"},
    "tests/benchmarks": {"peers"},
    "tests/conformance": {"cases"},
    "tests/support": {
        "api", "archive", "behaviours", "database", "engines", "faults", "processes", "recorded", "simulation",
        "terraform", "web",
    },
    "tests": {
        "unit", "contract", "integration", "conformance", "faults", "migration", "benchmarks", "e2e", "support",
    },
}  # fmt: skip
"""The packages a package may hold; those not named here hold none."""

MODULES = {
    "api": {"main", "cluster_main"},
    "workers": {
        "main", "runtime", "visit", "owner_client", "grant", "visit_crawls", "robots", "page_reading", "outlinks",
        "known_links", "archive", "report", "visit_report", "retry", "discoveries", "outcome", "membership",
        "disk_reservations", "request_slots", "stats", "metrics", "metrics_server", "drain", "revisits",
    },
    "shared": {"settings", "telemetry", "tls"},
    "shared/adapters": set[str](),
    "shared/adapters/sql": set[str](),
    "shared/domain": {"errors", "ids", "software", "suggestions"},
    "cli": {"main"},
    "tests": {"conftest"},
}  # fmt: skip
"""The modules that may lie directly in these; in all other rooms the nouns are free."""

HOMES = {
    "nats": ("shared/adapters/nats/",),
    "etcd3": ("shared/adapters/etcd/",),
    "grpc": ("shared/adapters/etcd/",),
    "sqlalchemy": ("shared/adapters/sql/", "alembic/"),
    "alembic": ("shared/adapters/sql/", "alembic/"),
    "sqlite3": ("shared/adapters/sql/",),
    "aiosqlite": ("shared/adapters/sql/",),
    "asyncpg": ("shared/adapters/sql/",),
    "psycopg": ("shared/adapters/sql/",),
    "pycurl": ("workers/fetch/",),
    "re2": ("shared/domain/crawl/patterns.py",),
    "httpx": ("api/", "cli/"),
    "fastapi": ("api/",),
    "warcio": (),
    "starlette": ("api/",),
    "api": ("api/", "cli/", "orb.py"),
    "workers": ("workers/", "cli/", "orb.py"),
    "cli": ("cli/", "orb.py"),
    "orb": (),
    "tests": (),
}
"""Where a library or room may be imported; also in modules import-linter does not see (orb.py, alembic/)."""

COMPILED = {"workers/parse/tags.c"}
"""What is not in Python: the twin of a module in Python that scans where this one is not built."""

GENERATED = {"shared/adapters/sql/engine/sqlite_tables.sql"}
"""What `tests.support.database.sqlite_tables` writes."""

VAGUE = {"manager", "helper", "util", "handler", "processor", "base", "common", "misc"}


def modules(*rooms: str) -> Iterator[Path]:
    for room in rooms:
        yield from sorted((ROOT / room).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """The top-level names `path` imports, anywhere in it, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from ((name.name.partition(".")[0], node.lineno) for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0], node.lineno
            case _:
                pass


def test_top_level_holds_only_what_is_known() -> None:
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    found = {entry.name for entry in ROOT.iterdir() if not any(fnmatch(entry.name, pattern) for pattern in ignored)}
    assert found - TOP_LEVEL == set()


@pytest.mark.parametrize("room", [*CODE, "tests"])
def test_rooms_hold_only_their_rooms_and_modules(room: str) -> None:
    strangers = []
    for path in sorted((ROOT / room).rglob("*")):
        parent = relative(path.parent)
        if "__pycache__" in path.parts:
            continue
        if path.is_dir():
            at_home = path.name in ROOMS.get(parent, ()) or not any(path.rglob("*.*"))
        elif path.suffix == ".py":
            at_home = path.name == "__init__.py" or path.stem in MODULES.get(parent, {path.stem})
        else:
            # Data lies beside the tests that read it.
            at_home = room == "tests" or relative(path) in COMPILED | GENERATED
        if not at_home:
            strangers.append(relative(path))
    assert strangers == [], "nothing of this name has its place here (see the tables of this test)"


def test_no_package_outgrows_its_reader() -> None:
    sizes: dict[str, int] = {}
    for path in modules(*CODE, "tests/support"):
        sizes[relative(path.parent)] = sizes.get(relative(path.parent), 0) + 1
    assert {package: size for package, size in sizes.items() if size > PACKAGE_FILES} == {}


def test_every_room_is_a_package_that_tells_its_story() -> None:
    silent = []
    for path in modules(*CODE, "tests"):
        package = path.parent / "__init__.py"
        if not package.is_file() or not ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))):
            silent.append(relative(package))
    assert sorted(set(silent)) == []


def test_every_module_says_what_it_is_for() -> None:
    paths = [*modules(*CODE, "alembic"), ROOT / "orb.py"]
    assert [relative(path) for path in paths if not ast.get_docstring(ast.parse(path.read_text("utf-8")))] == []


def test_migrations_do_not_shadow_the_library() -> None:
    assert list((ROOT / "alembic").rglob("__init__.py")) == []


def test_no_module_outgrows_its_reader() -> None:
    paths = [*modules(*CODE, "alembic", "tests"), *(ROOT / path for path in COMPILED)]
    sizes = {relative(path): path.read_text("utf-8").count("\n") for path in paths}
    assert {path: size for path, size in sizes.items() if size > MODULE_LINES} == {}


def test_modules_are_named_for_what_they_are() -> None:
    vague = []
    for path in modules(*CODE, "alembic", "tests"):
        words = {
            word.removesuffix("s") for part in path.relative_to(ROOT).with_suffix("").parts for word in part.split("_")
        }
        if words & VAGUE:
            vague.append(relative(path))
    assert vague == []


def test_libraries_and_rooms_are_imported_only_where_they_are_at_home() -> None:
    strangers = []
    for path in [*modules(*CODE, "alembic"), ROOT / "orb.py"]:
        for name, line in imported(path):
            homes = HOMES.get(name)
            if homes is not None and not relative(path).startswith(homes):
                strangers.append(f"{relative(path)}:{line} imports {name}")
    assert strangers == []


def test_tests_lie_in_their_tier() -> None:
    """Test modules are test_*.py in a tier, and only there; pytest would not find the others."""
    strangers = []
    for path in modules("tests"):
        tier = path.relative_to(ROOT / "tests").parts[0]
        is_test = path.name.startswith("test_")
        if path.name in {"__init__.py", "conftest.py"} or tier in {"support", "benchmarks"}:
            wrong = is_test
        else:
            wrong = not is_test
        if wrong:
            strangers.append(relative(path))
    assert strangers == []


def test_names_of_tests_are_short() -> None:
    """`test_<subject>_<condition>_<result>`; a docstring says what does not fit."""
    definition = re.compile(rf"def (test_\w{{{TEST_NAME - 4},}})\(")
    found = [(relative(path), definition.findall(path.read_text("utf-8"))) for path in modules("tests")]
    assert [(path, names) for path, names in found if names] == []


def test_decisions_are_short_numbered_once_and_indexed() -> None:
    decisions = sorted((ROOT / "docs" / "decisions").iterdir())
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    numbers = []
    for path in decisions:
        name = re.fullmatch(r"(\d{4})-[a-z0-9-]+\.md", path.name)
        assert name is not None, f"{path.name} is not NNNN-some-words.md"
        numbers.append(name[1])
        lines = path.read_text("utf-8").splitlines()
        assert len(lines) <= DECISION_LINES, f"{path.name} has {len(lines)} lines"
        assert lines[0].startswith(f"# {name[1]}"), f"{path.name} does not begin with its number"
        assert f"decisions/{path.name}" in index, f"docs/README.md does not list {path.name}"
    assert len(numbers) == len(set(numbers))
