"""A clone builds its tag scanner where it can and scans in Python where it cannot; what is stale or broken never runs.

The clones here hold the product's own code and a real compiler, or what stands in for one.
"""

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from tests.support.sanitizer_run import NoSanitizer, struck
from tests.support.scanners import compiled_scanner

REPOSITORY = Path(__file__).resolve().parents[2]
SHOW = "import os; from workers.parse.compiled import chosen; print(chosen(os.environ))"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The code that set-up builds with, in a folder whose name wants quoting."""
    root = tmp_path / "a clone"
    for name in ("cli/__init__.py", "cli/dev/native.py", "shared/__init__.py", "shared/domain/__init__.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, root / name)
    shutil.copy(REPOSITORY / "shared" / "domain" / "errors.py", root / "shared" / "domain")
    shutil.copytree(REPOSITORY / "workers", root / "workers", ignore=shutil.ignore_patterns("__pycache__"))
    return root


def python(clone: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run this Python without any package, as the launcher runs it for the clone."""
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=clone.parent,
        env={**os.environ, "PYTHONPATH": str(clone), "PYTHONSAFEPATH": "1", "ORB_TAG_SCANNER": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def built(clone: Path) -> list[Path]:
    return sorted((clone / ".venv" / "orb-compiled").glob("*"))


def test_set_up_builds_with_standard_library_and_rebuilds_changed_source(
    clone: Path,
) -> None:
    compiled_scanner()
    done = python(clone, "-m", "cli.dev.native")
    assert done.returncode == 0, done.stderr
    (first,) = built(clone)
    assert first.name.endswith(EXTENSION_SUFFIXES[0])
    assert python(clone, "-c", SHOW).stdout == "compiled\n"
    source = clone / "workers" / "parse" / "tags.c"
    source.write_text(source.read_text() + "/* changed */\n")
    assert python(clone, "-c", SHOW).stdout == (
        "python (the compiled one is not built for this source and this Python)\n"
    )
    assert python(clone, "-m", "cli.dev.native").returncode == 0
    (second,) = built(clone)
    assert second.name != first.name
    assert python(clone, "-c", SHOW).stdout == "compiled\n"


def test_a_build_for_another_python_is_not_loaded(clone: Path) -> None:
    compiled_scanner()
    assert python(clone, "-m", "cli.dev.native").returncode == 0
    (path,) = built(clone)
    path.rename(path.with_name(path.name.replace(EXTENSION_SUFFIXES[0], ".cpython-399-x86_64-linux-gnu.so")))
    assert python(clone, "-c", SHOW).stdout.startswith("python (")


def test_a_file_that_is_no_library_is_not_run(clone: Path) -> None:
    compiled_scanner()
    assert python(clone, "-m", "cli.dev.native").returncode == 0
    (path,) = built(clone)
    path.write_bytes(b"no library")
    shown = python(clone, "-c", SHOW).stdout
    assert shown.startswith("python (the compiled one cannot be loaded: ")


def test_without_a_compiler_or_with_a_broken_one_python_scans_and_says_why(clone: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "empty"
    nothing.mkdir()
    assert python(clone, "-m", "cli.dev.native", PATH=str(nothing), CC="").returncode == 1
    assert python(clone, "-c", SHOW).stdout == "python (there is no C compiler (cc, gcc, clang))\n"
    broken = nothing / "cc"
    broken.write_text("#!/bin/sh\necho 'tags.c:1: error: this compiler is broken'\nexit 1\n")
    broken.chmod(0o755)
    assert python(clone, "-m", "cli.dev.native", PATH=str(nothing), CC="").returncode == 1
    assert python(clone, "-c", SHOW).stdout == (
        "python (the C compiler failed: tags.c:1: error: this compiler is broken)\n"
    )


def test_what_was_compiled_and_does_not_work_is_not_kept(clone: Path) -> None:
    compiled_scanner()
    source = clone / "workers" / "parse" / "tags.c"
    source.write_text(source.read_text().replace('{"title", RAW | TITLE}', '{"title", RAW}'))
    assert python(clone, "-m", "cli.dev.native").returncode == 1
    assert [path.name for path in built(clone)] == ["reason.txt"]
    assert python(clone, "-c", SHOW).stdout.startswith("python (what was compiled does not work: it found ")


def test_the_setting_forces_either_scanner_and_refuses_what_it_does_not_know(clone: Path) -> None:
    assert python(clone, "-c", SHOW, ORB_TAG_SCANNER="python").stdout == "python (ORB_TAG_SCANNER=python)\n"
    assert "there is no compiled tag scanner" in python(clone, "-c", SHOW, ORB_TAG_SCANNER="compiled").stderr
    assert "is auto, python or compiled, not 'fast'" in python(clone, "-c", SHOW, ORB_TAG_SCANNER="fast").stderr


@pytest.mark.timeout(600)
def test_sanitizers_object_to_no_random_document(short: bool) -> None:
    """Without gcc and its sanitizers nothing is tested; `tests.support.sanitizer_run` runs as long as one likes."""
    try:
        done = struck(seed=int.from_bytes(os.urandom(3)), documents=2000 if short else 20_000)
    except NoSanitizer as problem:
        if os.environ.get("CI"):
            pytest.fail(str(problem))
        pytest.skip(str(problem))
    assert done.returncode == 0, done.stderr
