"""The `orb` command as a user runs it: a process of its own, judged by its exit code and its output."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[3]


ENTRY: Final = "orb"


def command_line(*arguments: str | Path, entry: str = ENTRY) -> list[str]:
    """The command line of `orb` with `arguments`, run from a clone by this interpreter; by another module `entry` where
    that does something first."""
    return [sys.executable, "-m", entry, *map(str, arguments)]


def orb(*arguments: str | Path, code: int = 0, timeout_s: float = 60.0) -> bytes:
    """What `orb` wrote to standard output; AssertionError with its errors when it does not end with `code`."""
    ended = subprocess.run(
        command_line(*arguments),
        cwd=ROOT,
        capture_output=True,
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if ended.returncode != code:
        said = ended.stderr.decode(errors="replace")[-4000:]
        raise AssertionError(f"orb {arguments[0]} ended with {ended.returncode} and not {code}:\n{said}")
    return ended.stdout


def export(kind: str, folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of `orb export KIND FOLDER --format jsonl`."""
    for line in orb("export", kind, folder, "--format", "jsonl").splitlines():
        row: dict[str, Any] = json.loads(line)
        yield row
