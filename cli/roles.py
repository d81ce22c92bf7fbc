"""`orb _master` and `orb _worker`: the processes of a local crawl, started by `orb crawl` and by nobody else.

They die with the command that started them, whatever ends it: on Linux the kernel sees to it.
"""

import argparse
import ctypes
import os
import signal
import sys
from typing import Final

from cli.exits import Environment

PARENT: Final = "ORB_STARTED_BY"
"""The variable that holds the process id of the command."""

_PR_SET_PDEATHSIG: Final = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """No arguments: the settings are in the environment."""


def run(arguments: argparse.Namespace) -> int:
    _die_with_parent()
    match arguments.command:
        case "_master":
            import api.main

            return api.main.main()
        case _:
            import workers.main

            return workers.main.main()


def _die_with_parent() -> None:
    """Have the kernel kill this process when its starter ends; end at once when that has happened already."""
    starter = os.environ.get(PARENT)
    if starter is None:
        return
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(starter):
        raise Environment("the command that started this process has ended.")
