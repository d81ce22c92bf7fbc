"""A command with a fork server, which starts roles as it is asked on standard input; they say what they are."""

import asyncio
import ctypes
import gc
import json
import os
import random
import signal
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import structlog
from structlog.testing import capture_logs

import cli.local.crawl
import cli.local.up
import cli.main
from cli.local.fork_server import ForkedProcess, ForkServer, forking
from cli.local.supervisor import RoleProcess

MODULES: Final = {"crawl": cli.local.crawl.IMPORTED, "cluster": cli.local.up.IMPORTED}
_GET_PDEATHSIG: Final = 2
_STATE_S: Final = 60.0
_BOUND: Final = {
    *("socket.socket", "ssl.SSLContext", "select.epoll", "sqlite3.Connection", "sqlalchemy.engine.base.Engine"),
    *("concurrent.futures.thread.ThreadPoolExecutor", "grpc.aio._channel.Channel", "grpc._channel.Channel"),
    *("pycurl.Curl", "pycurl.CurlMulti"),
    *("uvloop.Loop", "asyncio.unix_events._UnixSelectorEventLoop", "nats.aio.client.Client"),
}  # fmt: skip


def role(argv: Sequence[str] | None = None) -> int:
    """Stand in for `cli.main.main`: say what this process is, and end at SIGTERM."""
    path = Path(os.environ["STATE"])
    gc.unfreeze()
    alive = [thing for thing in gc.get_objects() if not (isinstance(thing, socket.socket) and thing.fileno() < 0)]
    kinds = {f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in alive}
    death = ctypes.c_int()
    ctypes.CDLL(None).prctl(_GET_PDEATHSIG, ctypes.byref(death), 0, 0, 0)
    listed = {name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_open(name)}
    signal.signal(signal.SIGTERM, lambda *_: None)
    state = {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "sid": os.getsid(0),
        "group": os.getpgrp() == os.getpid(),
        "role": os.environ.pop("OF_ROLE"),
        "environment": {**os.environ, "LC_CTYPE": "", "STATE": ""},
        "arguments": sys.argv[1:],
        "signals": {number: str(signal.getsignal(number)) for number in (1, 2, 13, 17)},
        "death": death.value,
        "directory": os.getcwd(),
        "threads": len(os.listdir("/proc/self/task")),
        "open": {("lock" if target.endswith("/lock") else name): target for name, target in listed.items()},
        "random": random.random(),
        "uuid": uuid.uuid4().hex,
        "bound": sorted(kinds & _BOUND),
        "modules": sorted(sys.modules),
    }
    path.with_suffix(".part").write_text(json.dumps(state))
    path.with_suffix(".part").rename(path)
    signal.sigwait({signal.SIGTERM})
    print("role ends")
    return 7


def _is_open(name: str) -> bool:
    return os.path.exists(f"/proc/self/fd/{name}") or os.path.islink(f"/proc/self/fd/{name}")


def command(folder: str, *modules: str) -> None:
    """Do what is asked until standard input ends. `modules`: the server's, or the name of a command that has one."""
    cli.main.main = role
    names = [name for module in modules for name in MODULES.get(module, (module,))]
    with forking(names) as forks:
        asyncio.run(_Asked(Path(folder), forks).serve())


class _Asked:
    def __init__(self, folder: Path, forks: ForkServer | None) -> None:
        assert forks is not None
        self._folder = folder
        self._forks = forks
        self._roles: dict[str, RoleProcess] = {}
        self._failed: list[Any] = []
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)

    async def serve(self) -> None:
        structlog.reset_defaults()
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await self._do(*json.loads(line))), flush=True)

    async def _do(self, verb: str, name: str, *arguments: str) -> Any:
        match verb:
            case "start" | "exec":
                return await self._start(name, arguments, self._forks if verb == "start" else None)
            case "signal":
                return self._roles[name].signal(signal.SIGTERM)
            case "exited":
                return await self._roles[name].exited()
            case "server":
                return self._forks.pid
            case "server-ended":
                return await self._forks.ended()
            case "close":
                self._forks.close()
                return await self._forks.ended()
            case "failed":
                return json.dumps(self._failed)
        raise AssertionError(verb)

    async def _start(self, name: str, arguments: Sequence[str], forks: ForkServer | None) -> dict[str, Any]:
        state = self._folder / f"{name}.state"
        settings = {"STATE": os.fspath(state), "OF_ROLE": name}
        log = self._folder / f"{name}.log"
        made = RoleProcess(name, arguments, log, settings, without={"TAKEN"}, inherit=(self._lock,), forks=forks)
        with capture_logs() as logs:
            await made.start()
        self._failed += logs
        self._roles[name] = made
        deadline = time.monotonic() + _STATE_S
        while not state.exists():
            assert made.pid is not None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            await asyncio.sleep(0.01)
        return {**json.loads(state.read_text()), "forked": isinstance(made._process, ForkedProcess)}
