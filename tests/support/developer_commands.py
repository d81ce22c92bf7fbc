"""The commands `orb test`, `lint`, `faults`, `bench` and `lock`, which `cli.dev.develop` passes on."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from cli.terminal.exits import Environment, Exit, Usage

_ROOT: Final = Path(__file__).resolve().parents[2]

_CORES: Final = len(os.sched_getaffinity(0))
_FOR_SHORT: Final = ("-n", str(_CORES + max(1, _CORES // 2)), "--dist", "worksteal")
_FOR_ALL: Final = ("-n", str(2 * _CORES), "--dist", "worksteal")
"""Twice as many processes as cores: a test of a cluster mostly waits, for delays, elections and grants. With half as
many more, a quarter of the CPU time of two cores was unused."""

_NOT_SLOW: Final = ("-m", "not slow")
_SHORT: Final = ("-m", "not slow and (smoke or not (e2e or faults or long))", "--hypothesis-profile", "short")

_MEMORY: Final = Path("/dev/shm")
_MEMORY_FREE: Final = 4 << 30
"""Free bytes of memory from which the short set keeps its temporary files there. It uses up to 1.5 GB."""

_EXPLORING: Final = ("--seed", "--rounds")
"""With one of these, `orb faults` injects random faults into a cluster instead of running the tests."""

_LINT: Final = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("lint-imports", "--no-logo"),
)

_COMPILE: Final = (
    "pip", "compile", "--universal", "--generate-hashes", "--no-header", "--no-annotate", "--python-version", "3.11",
)  # fmt: skip
_LOCKS: Final = (
    ("pyproject.toml", "--group", "dev", "--output-file", "requirements-dev.lock"),
    ("pyproject.toml", "--constraints", "requirements-dev.lock", "--output-file", "requirements.lock"),
    ("--group", "pyproject.toml:launcher", "--output-file", "requirements-launcher.lock"),
    (
        "--group", "pyproject.toml:build", "--constraints", "requirements-dev.lock",
        "--output-file", "requirements-build.lock",
    ),
    ("deploy/terraform/provider/pyproject.toml", "--output-file", "deploy/terraform/provider/requirements.lock"),
)  # fmt: skip


def run(command: str, rest: list[str]) -> int:
    """Run the command with the arguments `rest`; return its exit code. Raise Usage or Environment."""
    match command:
        case "test":
            return _test(rest)
        case "faults" if any(word.partition("=")[0] == "--soak" for word in rest):
            return _python("-m", "tests.support.faults.soak", *rest)
        case "faults" if any(word.partition("=")[0] in _EXPLORING for word in rest):
            return _python("-m", "tests.support.faults.exploration", *rest)
        case "faults":
            return _python("-m", "pytest", "-m", "faults", *rest)
        case "bench":
            return _bench(rest)
        case "lint":
            return _lint()
        case "lock":
            return _lock(rest)
        case other:
            raise AssertionError(other)


def _python(*arguments: str, **added: str) -> int:
    """Run Python in the clone's root without the launcher's import path, as if started by hand. Let it write bytecode,
    since tests start hundreds of processes. `added` are variables of its environment."""
    without = {"PYTHONPATH", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE"}
    environment = {name: value for name, value in os.environ.items() if name not in without} | added
    return subprocess.run([sys.executable, *arguments], cwd=_ROOT, env=environment, check=False).returncode


def _test(rest: list[str]) -> int:
    """Run the short set. With `--all`, or if `rest` selects by path or marker, omit only the slow tests.

    The short set keeps temporary files in memory where it can: it then takes a sixth less. `--all` uses the disk.
    """
    selected = any(word.startswith("-m") or (_ROOT / word.partition("::")[0]).exists() for word in rest)
    if selected or "--all" in rest:
        return _python("-m", "pytest", *_FOR_ALL, *_NOT_SLOW, *(word for word in rest if word != "--all"))
    command = ("-m", "pytest", *_FOR_SHORT, *_SHORT, *rest)
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _MEMORY_FREE:
        return _python(*command)
    with tempfile.TemporaryDirectory(prefix="orb-test-", dir=_MEMORY) as folder:
        Path(folder).chmod(0o755)  # PostgreSQL runs as another user if the tests run as root
        return _python(*command, TMPDIR=folder)


def _bench(rest: list[str]) -> int:
    """Run the benchmark that `rest` names, a module of tests/benchmarks, with the arguments after it."""
    known = sorted(path.stem for path in (_ROOT / "tests" / "benchmarks").glob("[!_]*.py"))
    match rest:
        case [name, *others] if name in known:
            return _python("-m", f"tests.benchmarks.{name}", *others)
        case [name, *_]:
            raise Usage(f"there is no benchmark {name!r}; there is {', '.join(known)}.")
        case _:
            print("\n".join(known))
            return Exit.OK


def _lint() -> int:
    """Run every check, even after one has failed; return 1 if any did."""
    tools = Path(sys.executable).parent
    failed = [name for name, *rest in _LINT if subprocess.run([tools / name, *rest], cwd=_ROOT, check=False).returncode]
    if _python("-m", "tests.support.prose"):
        failed.append("prose")
    if failed:
        print(f"orb lint: {', '.join(dict.fromkeys(failed))} found something.", file=sys.stderr)
        return 1
    return Exit.OK


def _lock(rest: list[str]) -> int:
    """Update the lock files. Without `--upgrade`, a pinned version stays if it still fits."""
    for lock in _LOCKS:
        if _python("-m", "uv", *_COMPILE, "--quiet", *rest, *lock) != 0:
            raise Environment("the lock files could not be updated; see uv's message above.")
    return Exit.OK
