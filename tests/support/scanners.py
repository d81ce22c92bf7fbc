"""The two tag scanners, for tests that run with both."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from cli.dev.native import CannotBuild, build
from workers.parse import charset, html
from workers.parse.compiled import chosen
from workers.parse.start_tags import ScanTags
from workers.parse.tags import scan_tags as python_scan_tags


def compiled_scanner() -> ScanTags:
    """Return the compiled scanner; skip the test where set-up could build none, fail it in CI."""
    choice = chosen({})
    if choice.scan is None:
        _without(choice.reason)
    return choice.scan


def built(folder: Path, *flags: str, suffix: str = ".so") -> Path:
    """Return the scanner built into `folder`; skip the test where nothing can be built, fail it in CI."""
    try:
        return build(folder, suffix, *flags)
    except CannotBuild as problem:
        _without(str(problem))


def each_scanner(request: pytest.FixtureRequest) -> Iterator[ScanTags]:
    """Let pages be parsed by the scanner that the fixture's parameter names."""
    scan = compiled_scanner() if request.param == "compiled" else python_scan_tags
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html, "scan_tags", scan)
        patch.setattr(charset, "scan_tags", scan)
        yield scan


def _without(reason: str) -> NoReturn:
    reason = f"no compiled tag scanner: {reason}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
