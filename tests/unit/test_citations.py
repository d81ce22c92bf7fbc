"""Tests and modules of tests/ that pages, comments and docstrings cite exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = re.compile(r"\btests/[\w/*.-]*[\w*](?:::\w+| -k \w+)?")
MODULE = re.compile(r"\btests\.support(?:\.\w+)+")
SOURCES = ("*.md", "docs/**/*.md", "*.toml", "{}/**/*.py", "{}/**/*.c")
CODE = ("api", "workers", "shared", "cli", "tests", "alembic")


def pages() -> Iterator[Path]:
    """Yield every file that may cite a test, but this one."""
    patterns = [pattern.format(code) for pattern in SOURCES for code in (CODE if "{}" in pattern else ("",))]
    yield from sorted({path for pattern in patterns for path in ROOT.glob(pattern)} - {Path(__file__)})


def resolves(citation: str) -> bool:
    """Return True if the files of a citation exist, and hold the test that it names (`::name` or a part, `-k part`)."""
    place, _, test = citation.partition("::")
    place, _, part = place.partition(" -k ")
    files = list(ROOT.glob(place))
    if not test and not part:
        return bool(files)
    definition = rf"def {test}\b" if test else rf"def test_\w*{part}"
    return any(re.search(definition, path.read_text("utf-8")) for path in files)


def is_module(citation: str) -> bool:
    """Return True if a dotted name is a module below tests/support, or a name in one."""
    for name in (citation, citation.rpartition(".")[0]):
        if (ROOT / name.replace(".", "/")).with_suffix(".py").is_file() or (ROOT / name.replace(".", "/")).is_dir():
            return name != "tests.support"
    return False


def test_cited_tests_exist() -> None:
    cited = {(match[0], page) for page in pages() for match in FILE.finditer(page.read_text("utf-8"))}
    assert len(cited) > 50
    assert [f"{page.relative_to(ROOT)}: {name}" for name, page in sorted(cited) if not resolves(name)] == []


def test_cited_support_modules_exist() -> None:
    cited = {(match[0], page) for page in pages() for match in MODULE.finditer(page.read_text("utf-8"))}
    assert len(cited) > 50
    assert [f"{page.relative_to(ROOT)}: {name}" for name, page in sorted(cited) if not is_module(name)] == []


@pytest.mark.parametrize(
    "citation",
    [
        "tests/unit/test_gone.py",
        "tests/unit/test_robots_rules.py -k gone",
        "tests/unit/test_robots_rules.py::test_gone",
    ],
)
def test_citation_of_absent_test_does_not_resolve(citation: str) -> None:
    assert not resolves(citation)
    assert not is_module("tests.support.gone")


def test_citation_of_test_and_name_part_resolves() -> None:
    assert resolves("tests/unit/test_robots_rules.py -k hostile")
    assert resolves("tests/unit/test_limits_doc.py::test_every_row_is_a_row")
