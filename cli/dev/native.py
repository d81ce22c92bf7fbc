"""Builds the compiled tag scanner of `workers.parse`. It needs only a C compiler and Python's headers.

The set-up of a clone runs `python -m cli.dev.native` with the Python of .venv. The build of the wheel calls `build`.
The compiled file is tested in a separate process before it gets its final name. So workers never load a file that does
not work.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

from workers.parse.compiled import BUILT, FLAGS, REASON, SOURCE, load, stem

COMPILERS: Final = ("cc", "gcc", "clang")
PATIENCE_S: Final = 120.0
_TRIAL: Final = b'<title>x</title><a href="1"><!-- <a href=2> --><script><a href=3></script><a rel=x href=4>'
_TRY: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from cli.dev.native import try_out; sys.exit(try_out(sys.argv[2]))"
)


class CannotBuild(Exception):
    """Raised if the tag scanner cannot be built. The message says what is missing or does not work."""


def build(folder: Path, suffix: str, *flags: str) -> Path:
    """Compile the tag scanner to a file in `folder`, test it, and return the path of the file.

    `suffix` is the end of the file's name. `flags` are additional flags of the compiler. With a sanitizer flag the file
    is not tested. Raise CannotBuild if the file cannot be built or does not work.
    """
    command = [*_compiler(), *FLAGS, *flags, f"-I{_headers()}", str(SOURCE)]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / f"tags{suffix}"
        _run([*command, "-o", str(made)], "the C compiler failed")
        if not any("sanitize" in flag for flag in flags):  # such a file loads only beside its runtime library
            trial = [sys.executable, "-I", "-c", _TRY, str(SOURCE.parents[2]), str(made)]
            _run(trial, "what was compiled does not work")
        return made.replace(folder / f"{stem()}{suffix}")


def build_in_clone() -> Path:
    """Build the tag scanner of a clone, after removing older builds. Return the path of the file.

    If the build fails, write the reason to a file in the same folder, and raise CannotBuild.
    """
    BUILT.mkdir(parents=True, exist_ok=True)
    for old in BUILT.iterdir():
        if old.is_file():
            old.unlink()
    try:
        return build(BUILT, EXTENSION_SUFFIXES[0])
    except CannotBuild as problem:
        (BUILT / REASON).write_text(f"{problem}\n", encoding="utf-8")
        raise


def _compiler() -> Sequence[str]:
    """Return the command that runs the C compiler: the variable `CC`, else the first of COMPILERS on the path.

    Raise CannotBuild if there is none.
    """
    if named := os.environ.get("CC", ""):
        return shlex.split(named)
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        raise CannotBuild(f"there is no C compiler ({', '.join(COMPILERS)})")
    return [found]


def _headers() -> str:
    folder = sysconfig.get_path("include")
    if not (Path(folder) / "Python.h").is_file():
        raise CannotBuild(f"Python's headers are not installed ({folder})")
    return folder


def _run(command: Sequence[str], failing: str) -> None:
    """Run `command` until it ends. If it fails, raise CannotBuild with a line of its output.

    `failing` is the beginning of the error's message: it says what failed.
    """
    try:
        done = subprocess.run(
            command,
            cwd=SOURCE.parents[2],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBuild(f"{failing}: {error}") from None
    if done.returncode:
        lines = done.stdout.strip().splitlines() or [f"exit code {done.returncode}"]
        raise CannotBuild(f"{failing}: {next((line for line in lines if 'error' in line), lines[-1])}")


def try_out(path: str) -> str | None:
    """Scan a small page with the compiled tag scanner in the file `path`. Return None if the result is correct.

    Otherwise return a text with the wrong result. Raise an exception if the file cannot be loaded.
    """
    scan = load(Path(path))(_TRIAL)
    return None if scan == ([b"1"], [b"a rel=x href=4>"], [1], b"x", False) else f"it found {scan!r}"


def main() -> int:
    try:
        print(build_in_clone())
    except (CannotBuild, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
