"""Three NATS servers for a test, on deploy/nats/nats.conf, in folders of the test's own.

As on machines of their own each has an address, and a certificate for that one alone.
"""

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shared.adapters.nats.server import find_executable
from shared.runtime.supervise import dying_with
from shared.tls import TlsSettings
from tests.support.engines.certificates import Certificate, authority, signed
from tests.support.engines.ports import free_ports
from tests.support.processes.orb_command import ROOT

CONFIG: Final = ROOT / "deploy" / "nats" / "nats.conf"
SERVERS: Final = 3
_START_S: Final = 60.0
_TRIES: Final = 3


@dataclass(slots=True)
class NatsServer:
    """One of them; killed and started again it keeps ports and store."""

    folder: Path
    address: str
    port: int
    monitor: int
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"tls://{self.address}:{self.port}"

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*dying_with(os.getpid()), find_executable(), "--config", CONFIG],
                env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def healthy(self) -> bool:
        """Whether it has a leader for every stream it keeps. AssertionError when it has ended."""
        return self._look("/healthz") is not None

    def neighbours(self) -> set[str]:
        """The names of the servers with which it speaks. AssertionError when it has ended."""
        return {route["remote_name"] for route in json.loads(self._look("/routez") or '{"routes": []}')["routes"]}

    def _look(self, path: str) -> bytes | None:
        """What its monitor answers; None where that is not 200."""
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError((self.folder / "log").read_text()[-2000:])
        connection = http.client.HTTPConnection("127.0.0.1", self.monitor, timeout=2)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.read() if answer.status == 200 else None
        except OSError:
            return None
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
        self._wait_until(lambda server: server.healthy(), "healthy")

    def wait_until_acquainted(self) -> None:
        """Until every server speaks with every other."""
        self._wait_until(lambda server: len(server.neighbours()) == len(self.servers) - 1, "acquainted")

    def _wait_until(self, true: Callable[[NatsServer], bool], what: str) -> None:
        deadline = time.monotonic() + _START_S
        while not all(true(server) for server in self.servers):
            assert time.monotonic() < deadline, f"NATS is not {what} within {_START_S} s"
            time.sleep(0.05)


@contextmanager
def nats_cluster(folder: Path, ca: Certificate | None = None, *, told: int = SERVERS) -> Iterator[NatsCluster]:
    """Run a cluster for the block, with certificates of `ca` or its own CA. Each has addresses of the first `told`."""
    folder.mkdir(exist_ok=True)
    ca = ca or authority(folder)
    client = signed(folder, ca, "client", "DNS:master-1")
    for last in (False,) * (_TRIES - 1) + (True,):
        made = NatsCluster(_servers(folder, ca, told), ca, client)
        try:
            for each in made.servers:
                each.start()
            try:
                made.wait_until_healthy()
            except AssertionError as error:  # another process was quicker to take a port
                if last or "address already in use" not in str(error):
                    raise
                continue
            yield made
            return
        finally:
            for each in made.servers:
                each.kill()


def _servers(folder: Path, ca: Certificate, told: int) -> list[NatsServer]:
    addresses = [f"127.0.0.{number}" for number in range(1, SERVERS + 1)]
    own = [signed(folder, ca, f"nats-{number}", f"IP:{address}") for number, address in enumerate(addresses)]
    clients, routes, monitors = (free_ports(SERVERS) for _ in range(3))
    every = [f"{address}:{port}" for address, port in zip(addresses, routes, strict=True)]
    return [
        NatsServer(
            folder / f"nats-{number}",
            address,
            clients[number],
            monitors[number],
            {
                "NATS_NAME": f"nats-{number}",
                "NATS_LISTEN": f"{address}:{clients[number]}",
                "NATS_ROUTE": every[number],
                "NATS_ADVERTISE": every[number],
                "NATS_MONITOR": f"127.0.0.1:{monitors[number]}",
                "NATS_ROUTES": "[" + ", ".join(f'"nats://{other}"' for other in every[:told]) + "]",
                "NATS_STORE": str(folder / f"nats-{number}" / "store"),
                "NATS_CA": str(ca.cert),
                "NATS_CERT": str(own[number].cert),
                "NATS_KEY": str(own[number].key),
            },
        )
        for number, address in enumerate(addresses)
    ]
