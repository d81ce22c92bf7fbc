"""`orb test`, `lint`, `faults`, `bench`, `lock`: tools for developers, in a clone only (the wheel has no tests)."""

import argparse
from importlib import import_module
from pathlib import Path
from typing import Final

from cli.terminal.exits import Environment

_ROOT: Final = Path(__file__).resolve().parents[2]


def configure(parser: argparse.ArgumentParser) -> None:
    """Accept any arguments, to pass them to the developer tool that the command runs."""
    # argparse excludes a leading option from REMAINDER. With this prefix nothing looks like an option.
    parser.prefix_chars = "\0"
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="ARGUMENT")


def run(arguments: argparse.Namespace) -> int:
    if not (_ROOT / "tests").is_dir() or not (_ROOT / "pyproject.toml").is_file():
        raise Environment(f"`orb {arguments.command}` works in a clone of the repository only.")
    code: int = import_module("tests.support.developer_commands").run(arguments.command, arguments.rest)
    return code
