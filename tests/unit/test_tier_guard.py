"""The guard of tests/unit fails a test that starts a process or opens a network socket or a database."""

import multiprocessing
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest


def bound(method: str) -> None:
    """Call a method of a new socket with an address of this machine."""
    with socket.socket() as made:
        getattr(made, method)(("127.0.0.1", 0))


@pytest.mark.parametrize(
    "start",
    [
        partial(subprocess.run, [sys.executable, "-c", ""], check=True),
        lambda: os.fork(),
        lambda: multiprocessing.get_context("spawn").Process().start(),
        partial(bound, "bind"),
        partial(bound, "connect"),
        lambda: sqlite3.connect(":memory:"),
    ],
)
def test_guard_in_unit_test_refuses_processes_sockets_and_databases(start: Callable[[], object]) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"a unit test opens a .*: move it to tests/integration"):
        start()
