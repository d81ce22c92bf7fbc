"""Masters and workers of test clusters, forked by the product's fork server: they need no start of Python."""

import asyncio
import atexit
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final

from cli.local.fork_server import ForkedProcess, ForkServer
from tests.support.processes.orb_command import ROOT

_SERVER: Final = """\
import socket, sys
from cli.local.forked_role import serve
from cli.local.up import IMPORTED
serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), IMPORTED)
"""
_LOOK_S: Final = 0.01


class MemberProcess:
    """A forked member, with the methods of a Popen object that tests use."""

    def __init__(self, forked: ForkedProcess) -> None:
        self._forked = forked
        self.pid: Final = forked.pid

    @property
    def returncode(self) -> int | None:
        return self._forked.returncode

    def poll(self) -> int | None:
        return self._forked.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; raise TimeoutExpired if the member runs for `timeout` more seconds."""
        if timeout is None:
            return self._forked.wait()
        deadline = time.monotonic() + timeout
        while (status := self._forked.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self._forked), timeout)
            time.sleep(_LOOK_S)
        return status

    def send_signal(self, number: int) -> None:
        self._forked.send_signal(number)


def fork_member(role: str, environment: Mapping[str, str], log: Path) -> MemberProcess:
    """Fork `orb ROLE`, a child of this process that writes to `log`. Raise AssertionError if the server cannot."""
    with log.open("ab") as out, ThreadPoolExecutor(1) as thread:  # the caller may run a loop
        forked = thread.submit(asyncio.run, _server().fork([role], environment, out.fileno(), ())).result()
    assert forked is not None, "the fork server of the tests failed: its log line says why"
    return MemberProcess(forked)


@cache
def _server() -> ForkServer:
    """Start the fork server of this process, which ends with it. It is a program of its own, as tests have threads."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(theirs.fileno()), str(os.getpid())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
    server = ForkServer(process, ours)
    atexit.register(server.close)
    return server
