"""A guard of the tier: a unit test starts no process, opens no network socket and no database."""

import multiprocessing.process
import os
import socket
import sqlite3
import subprocess
from collections.abc import Callable
from typing import NoReturn

import pytest

GUARDED = (
    (subprocess.Popen, "__init__", "a process"),
    (multiprocessing.process.BaseProcess, "start", "a process"),
    (os, "fork", "a process"),
    (os, "posix_spawn", "a process"),
    (socket.socket, "bind", "a network socket"),
    (socket.socket, "connect", "a network socket"),
    (socket.socket, "connect_ex", "a network socket"),
    (sqlite3, "connect", "a database"),
)


def refusal(what: str) -> Callable[..., NoReturn]:
    """Return a function that fails the test for opening `what`."""

    def refuse(*_: object, **__: object) -> NoReturn:
        pytest.fail(f"a unit test opens {what}: move it to tests/integration or tests/contract")

    return refuse


@pytest.fixture(autouse=True)
def pure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test when it starts a process or opens a network socket or a database."""
    for place, name, what in GUARDED:
        monkeypatch.setattr(place, name, refusal(what))
