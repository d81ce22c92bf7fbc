"""Three NATS servers for a test, on deploy/nats/nats.conf: each with a certificate, in folders of the test's own."""

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shared.adapters.nats.server import find_executable
from shared.supervise import dying_with
from shared.tls import TlsSettings
from tests.support.certificates import Certificate, authority, signed
from tests.support.orb_command import ROOT

CONFIG: Final = ROOT / "deploy" / "nats" / "nats.conf"
SERVERS: Final = 3
_START_S: Final = 60.0
_TRIES: Final = 3


def free_ports(count: int) -> list[int]:
    """Ports that nobody has at the moment."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [port.getsockname()[1] for port in held]
    finally:
        for port in held:
            port.close()


@dataclass(slots=True)
class NatsServer:
    """One of them; killed and started again it keeps ports and store."""

    folder: Path
    port: int
    monitor: int
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"tls://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*dying_with(os.getpid()), find_executable(), "--config", CONFIG],
                env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def healthy(self) -> bool:
        """Whether it has a leader for every stream it keeps. AssertionError when it has ended."""
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError((self.folder / "log").read_text()[-2000:])
        connection = http.client.HTTPConnection("127.0.0.1", self.monitor, timeout=2)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(30)
            self.process = None


@dataclass(frozen=True, slots=True)
class NatsCluster:
    """The servers, their CA, and the certificate of a client."""

    servers: list[NatsServer]
    ca: Certificate
    client: Certificate

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    @property
    def tls(self) -> TlsSettings:
        return TlsSettings(self.ca.cert, self.client.cert, self.client.key)

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + _START_S
        while not all(server.healthy() for server in self.servers):
            assert time.monotonic() < deadline, f"NATS is not healthy within {_START_S} s"
            time.sleep(0.05)


@contextmanager
def nats_cluster(folder: Path, ca: Certificate | None = None) -> Iterator[NatsCluster]:
    """The cluster for the block, with certificates of `ca` or of a CA of its own."""
    folder.mkdir(exist_ok=True)
    ca = ca or authority(folder)
    server, client = signed(folder, ca, "nats"), signed(folder, ca, "client")
    for last in (False,) * (_TRIES - 1) + (True,):
        made = NatsCluster(_servers(folder, ca, server), ca, client)
        try:
            for each in made.servers:
                each.start()
            try:
                made.wait_until_healthy()
            except AssertionError as error:  # somebody was quicker to take a port
                if last or "address already in use" not in str(error):
                    raise
                continue
            yield made
            return
        finally:
            for each in made.servers:
                each.kill()


def _servers(folder: Path, ca: Certificate, own: Certificate) -> list[NatsServer]:
    clients, routes, monitors = (free_ports(SERVERS) for _ in range(3))
    every = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
    return [
        NatsServer(
            folder / f"nats-{number}",
            clients[number],
            monitors[number],
            {
                "NATS_NAME": f"nats-{number}",
                "NATS_LISTEN": f"127.0.0.1:{clients[number]}",
                "NATS_ROUTE": f"127.0.0.1:{routes[number]}",
                "NATS_MONITOR": f"127.0.0.1:{monitors[number]}",
                "NATS_ROUTES": f"[{every}]",
                "NATS_STORE": str(folder / f"nats-{number}" / "store"),
                "NATS_CA": str(ca.cert),
                "NATS_CERT": str(own.cert),
                "NATS_KEY": str(own.key),
            },
        )
        for number in range(SERVERS)
    ]
