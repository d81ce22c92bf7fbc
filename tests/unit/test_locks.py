"""The lock files say what pyproject.toml asks for, with hashes and without naming a host."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUNTIME: list[str] = PROJECT["project"]["dependencies"]
GROUPS: dict[str, list[str]] = PROJECT["dependency-groups"]

ASKED = {
    "requirements.lock": RUNTIME,
    "requirements-dev.lock": [*RUNTIME, *GROUPS["dev"]],
    "requirements-launcher.lock": GROUPS["launcher"],
    "requirements-build.lock": GROUPS["build"],
}
PIN = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(?: ; [^\\]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$"
)


def entries(lock: str) -> list[str]:
    """The lock's logical lines, each with its continuation lines."""
    return re.split(r"\n(?=\S)", (ROOT / lock).read_text().strip())


def pins(lock: str) -> dict[str, Version]:
    matches = [PIN.match(entry) for entry in entries(lock)]
    return {canonicalize_name(match["name"]): Version(match["version"]) for match in matches if match}


@pytest.mark.parametrize("lock", ASKED)
def test_every_line_of_a_lock_is_a_pin_with_hashes(lock: str) -> None:
    assert [entry for entry in entries(lock) if not PIN.match(entry)] == []


@pytest.mark.parametrize("lock", ASKED)
def test_lock_satisfies_what_the_project_asks_for(lock: str) -> None:
    """Renew with `./orb lock` where this fails."""
    locked = pins(lock)
    for text in ASKED[lock]:
        asked = Requirement(text)
        if asked.marker is not None and not asked.marker.evaluate():
            continue
        version = locked.get(canonicalize_name(asked.name))
        assert version is not None, f"{lock} lacks {asked.name}"
        assert asked.specifier.contains(version, prereleases=True), f"{lock} has {asked.name} {version}, not {asked}"


def test_what_users_run_is_what_was_tested() -> None:
    runtime, dev = pins("requirements.lock"), pins("requirements-dev.lock")
    assert runtime.items() <= dev.items()


def test_image_is_built_from_developer_tools_and_project_requirements() -> None:
    build, dev = pins("requirements-build.lock"), pins("requirements-dev.lock")
    assert build.items() <= dev.items()
    assert GROUPS["build"] == PROJECT["build-system"]["requires"]


def test_a_dropped_dependency_leaves_the_lock() -> None:
    """Every pin of the runtime lock is asked for, by the project or by another pin that is installed here."""
    from importlib.metadata import PackageNotFoundError, requires

    reached: set[str] = set()
    ahead = [Requirement(text) for text in RUNTIME]
    while ahead:
        asked = ahead.pop()
        name = canonicalize_name(asked.name)
        if name in reached:
            continue
        reached.add(name)
        try:
            ahead += [Requirement(text) for text in requires(asked.name) or ()]
        except PackageNotFoundError:  # an optional or another platform's package: it asks for nothing here
            continue
    assert set(pins("requirements.lock")) - reached == set()
