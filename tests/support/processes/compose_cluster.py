"""The cluster of compose.yaml from the programs that are installed here: its own environment, commands and files.

What a container would give is given by rewriting text: a service's name and port become a free port of the loopback,
the target of each mount becomes the folder that is mounted. Everything else is taken as it is written, certificates by
`deploy/certificates`. PostgreSQL is the one exception: the wheel's was built without TLS, so a front speaks it (with
the certificate of the service), and its configuration is not used.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from shared.adapters.etcd.server import find_executable as find_etcd
from shared.adapters.nats.server import find_executable as find_nats
from shared.runtime.supervise import dying_with
from shared.tls import TlsSettings, client_context
from tests.support.api.cluster_clients import Patient
from tests.support.engines.ports import free_ports
from tests.support.engines.postgres_tls_proxy import tls_front
from tests.support.processes.orb_command import ROOT, command_line

_COMPOSE: Final = ROOT / "compose.yaml"
_MADE: Final = "./deploy/secrets/"
_ENGINES: Final = ("etcd-1", "etcd-2", "etcd-3", "nats-1", "nats-2", "nats-3")
_MEMBERS: Final = ("master-1", "master-2", "worker-1", "worker-2")
_PLACE: Final = re.compile(r"(?P<host>0\.0\.0\.0|127\.0\.0\.1|localhost|[a-z]+-\d|postgres):(?P<port>\d{4,5})\b")
_OURS: Final = ("ORB_", "ETCD_", "NATS_")


class Composed:
    """The services; `database` is the name of the one that stands for the service's own, `settings` are variables of
    masters and workers beside those of the file."""

    def __init__(self, folder: Path, database: str, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.services: dict[str, dict[str, Any]] = yaml.safe_load(_COMPOSE.read_text("utf-8"))["services"]
        self._database = database
        self._settings = dict(settings)
        self._ports: dict[tuple[str, str], int] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        subprocess.run([ROOT / "deploy" / "certificates", folder / "secrets"], check=True, stdout=subprocess.DEVNULL)

    def port(self, service: str, port: int | str) -> int:
        """Where a port of a service is here."""
        place = (service, str(port))
        if place not in self._ports:
            (self._ports[place],) = free_ports(1)
        return self._ports[place]

    def files(self, service: str) -> TlsSettings:
        """The certificates of a service."""
        own = self.folder / "secrets" / service
        return TlsSettings(own / "ca.pem", own / "tls.pem", own / "tls.key")

    # --- processes ----------------------------------------------------------------------------------------------------

    def start(self, service: str) -> None:
        """Run its command with its environment and its files."""
        environment, command = self._environment(service), self._told(service, *self.services[service]["command"])
        with self.log(service).open("ab") as log:
            self._processes[service] = subprocess.Popen(
                [*dying_with(os.getpid()), *command],
                cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def start_members(self) -> None:
        """Masters and workers, until every master is ready."""
        for service in _MEMBERS:
            self.start(service)
        for master in ("master-1", "master-2"):
            self.wait_until(lambda master=master: self.answers(master), f"{master} is ready")  # type: ignore[misc]  # bound now

    def orb(self, service: str, *words: str | Path) -> str:
        """Another command where a service has its settings and certificates (`docker compose run SERVICE WORDS`); what
        it said. AssertionError when it does not end well."""
        ended = subprocess.run(
            self._told(service, *map(str, words)),
            cwd=ROOT, env=self._environment(service), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, (words, ended.stdout, ended.stderr)
        return ended.stdout + ended.stderr

    def check(self, service: str) -> str:
        """Run its healthcheck; what it complains of, nothing when it is well. AssertionError where this machine has no
        such program as the image has."""
        word, program, *rest = self.services[service]["healthcheck"]["test"]
        assert word == "CMD"
        ours = {"python": sys.executable, "etcdctl": str(find_etcd().with_name("etcdctl"))}
        found = ours.get(program) or shutil.which(program)
        assert found is not None, f"{program} is not installed"
        ended = subprocess.run(
            [found, *(self.here(service, word) for word in rest)],
            env={"PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        return f"{ended.returncode}: {ended.stdout}{ended.stderr}" if ended.returncode else ""

    def _environment(self, service: str) -> dict[str, str]:
        declared = self.services[service]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        for file in declared.get("env_file", []):
            lines = (line.partition("=") for line in (ROOT / file).read_text().splitlines() if line[:1].isalpha())
            environment |= {name: self.here(service, value) for name, _, value in lines}
        environment |= {name: self.here(service, value) for name, value in declared["environment"].items()}
        return environment | (self._settings if service in _MEMBERS else {})

    def _told(self, service: str, *words: str) -> list[str]:
        command = [self.here(service, word) for word in words]
        match service.split("-")[0]:
            case "etcd":
                return [str(find_etcd()), *command[1:]]
            case "nats":
                return [str(find_nats()), *command]
            case _:
                return command_line(*command)

    def kill(self, service: str) -> None:
        """SIGKILL."""
        process = self._processes.pop(service)
        process.kill()
        process.wait(30)

    def running(self, service: str) -> bool:
        """Whether its process lives."""
        return self._processes[service].poll() is None

    def log(self, service: str) -> Path:
        """What it says."""
        return self.folder / f"{service}.log"

    def stop(self) -> None:
        """End them all, at once."""
        for service in list(self._processes):
            self.kill(service)

    # --- text ---------------------------------------------------------------------------------------------------------

    def here(self, service: str, text: str) -> str:
        """Return the environment of a service, rewritten for this machine."""

        def place(found: re.Match[str]) -> str:
            host = found["host"]
            return f"127.0.0.1:{self.port(host if host in self.services else service, found['port'])}"

        text = _PLACE.sub(place, text).replace("/orb?", f"/{self._database}?")
        for volume in self.services[service]["volumes"]:
            source, target = volume.split(":")[:2]
            text = re.sub(rf"(?<![\w./-]){re.escape(target)}(?![\w-])", str(self._mounted(service, source)), text)
        return text

    def _mounted(self, service: str, source: str) -> Path:
        """The folder here; files of settings in it are rewritten, those of engines are read where they lie."""
        if source.startswith(_MADE):
            return self.folder / "secrets" / source.removeprefix(_MADE)
        if not source.startswith("./"):
            folder = self.folder / "volumes" / source
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return folder
        if source != "./deploy/orb":
            return ROOT / source
        folder = self.folder / "orb" / service
        if not folder.exists():
            folder.mkdir(parents=True)
            for file in (ROOT / source).iterdir():
                (folder / file.name).write_text(self.here(service, file.read_text("utf-8")))
        return folder

    # --- what operators see -------------------------------------------------------------------------------------------

    def client(self, master: str, key: str | None = None) -> httpx.Client:
        """A client of a master, with an operator's certificate."""
        return httpx.Client(
            base_url=f"https://127.0.0.1:{self.port(master, 8081)}",
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            transport=Patient(verify=client_context(self.files("operator"))),
            timeout=20,
        )

    def wait_until(self, true: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
        """Wait for it; AssertionError with what the services said last when it does not come, or one has ended."""
        deadline = time.monotonic() + timeout_s
        while not true():
            ended = [service for service in self._processes if not self.running(service)]
            if ended or time.monotonic() > deadline:
                words = "\n".join(f"--- {log.name}\n{log.read_text()[-2500:]}" for log in self.folder.glob("*.log"))
                raise AssertionError(f"waited until {what}; ended: {ended}\n{words}")
            time.sleep(0.1)

    def answers(self, master: str, path: str = "/readyz") -> bool:
        """Whether it says 200."""
        with self.client(master) as client:
            try:
                return client.get(path).status_code == 200
            except httpx.HTTPError:
                return False


@contextmanager
def composed(folder: Path, database: str, socket: Path, **settings: str) -> Iterator[Composed]:
    """All that crawls, ready; `socket` is where the PostgreSQL is that has the database of that name."""
    with engines(folder, database, socket, **settings) as cluster:
        cluster.start_members()
        yield cluster


@contextmanager
def engines(folder: Path, database: str, socket: Path, **settings: str) -> Iterator[Composed]:
    """The same without its masters and workers."""
    cluster = Composed(folder, database, settings)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        stack.enter_context(_front(socket, cluster))
        for service in _ENGINES:
            cluster.start(service)
        yield cluster


@contextmanager
def _front(socket: Path, cluster: Composed) -> Iterator[None]:
    """PostgreSQL's own port over TLS, served by a thread."""
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            port = cluster.port("postgres", 5432)
            await stack.enter_async_context(tls_front(socket, cluster.files("postgres"), port))
            loops.append(asyncio.get_running_loop())
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        assert ready.wait(30), "the front of PostgreSQL does not start"
        yield
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(60)
    assert not thread.is_alive(), "the front of PostgreSQL does not end"
