"""`orb up` under way: a test reads where everything is, and ends, stops and kills what belongs to it."""

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from shared.runtime.supervise import dying_with
from tests.support.api.cluster_clients import Patient
from tests.support.engines.ports import own_address
from tests.support.processes.orb_command import ROOT, command_line

WAIT_S: Final = 120.0
ENDED_S: Final = 30.0
_LOOK_S: Final = 0.1


@dataclass(slots=True)
class UpProcess:
    """The command, and what it said when it was ready."""

    process: "subprocess.Popen[str]"
    folder: Path
    facts: dict[str, Any] = field(default_factory=dict)
    key: str | None = None

    @property
    def address(self) -> str:
        """The first master's API."""
        return str(self.facts["api"][0])

    def family(self) -> list[psutil.Process]:
        """Every process it started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, name: str) -> psutil.Process:
        """A member by its id, or an engine by its program."""
        for child in self.family():
            with suppress(psutil.Error):  # it has just ended
                words = child.cmdline()
                if name in words or (words and Path(words[0]).name == name):
                    return child
        raise AssertionError(f"there is no {name} among {self.family()}")

    def ask(self, method: str, path: str, body: Any = None, *, at: int = 0) -> httpx.Response:
        """Ask a master with the admin key; as its clients do, wait while no master leads."""
        headers = {"Authorization": f"Bearer {self.key}"}
        with httpx.Client(transport=Patient(), headers=headers, timeout=20) as client:
            return client.request(method, f"{self.facts['api'][at]}{path}", json=body)

    def owners(self) -> Counter[str]:
        """How many partitions each master owns."""
        partitions: dict[str, str | None] = self.ask("GET", "/v1/cluster").json()["partitions"]
        return Counter(owner or "" for owner in partitions.values())

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait until it is so; what cannot be asked yet is not so."""
        deadline = time.monotonic() + WAIT_S
        while True:
            with suppress(httpx.TransportError, KeyError):
                if true():
                    return
            assert time.monotonic() < deadline, f"waited {WAIT_S:g} s until {what}: {self.errors()}"
            time.sleep(_LOOK_S)

    def wait_ready(self) -> None:
        """Until it says so; AssertionError with what it said instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.facts = json.loads(line) if line else {}
        assert "api" in self.facts, f"it ended with {self.process.wait(WAIT_S)}: {self.errors()}"
        self.key = self.facts["admin_key"] or self.key

    def says(self, *lines: str) -> None:
        """Wait until it has said to people what these lines say."""
        for line in lines:
            self.until(lambda line=line: line in self.errors(), f"it says: {line}")  # type: ignore[misc]  # bound now

    def errors(self) -> str:
        """What it said to people so far."""
        return (self.folder.parent / f"{self.folder.name}.err").read_text()

    def interrupted(self) -> int:
        """Ctrl-C, and its exit code; nothing that it started may be left."""
        family = self.family()
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(WAIT_S)
        assert psutil.wait_procs(family, ENDED_S)[1] == []
        return code

    def killed(self) -> None:
        """SIGKILL to the command alone; what it started must end by itself."""
        family = self.family()
        assert len(family) >= 4
        self.process.kill()
        assert psutil.wait_procs(family, ENDED_S)[1] == []
        self.process.wait(WAIT_S)


@contextmanager
def upped(
    folder: Path, *arguments: str, key: str | None = None, ready: bool = True, settings: Mapping[str, str] | None = None
) -> Iterator[UpProcess]:
    """`orb up --json` for the block; a block's end leaves nothing of it behind."""
    if "--allow-net" not in arguments:  # sites of tests are on loopback
        arguments = (*arguments, "--allow-net", "127.0.0.0/8")
    if "--http" not in arguments:
        arguments = (*arguments, "--http", f"{own_address()}:0")
    with (folder.parent / f"{folder.name}.err").open("w") as errors:
        process = subprocess.Popen(
            [*dying_with(os.getpid()), *command_line("up", "--dir", folder, "--json", *arguments)],
            cwd=ROOT,
            env={**os.environ, **(settings or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    up = UpProcess(process, folder, key=key)
    try:
        if ready:
            up.wait_ready()
        yield up
    finally:
        family = up.family() if process.poll() is None else []
        process.kill()
        process.communicate(timeout=WAIT_S)
        psutil.wait_procs(family, ENDED_S)
