"""An `orb crawl` under way, whose processes a test can find, stop and kill one by one."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import psutil

from shared.runtime.supervise import dying_with
from tests.support.processes.orb_command import ROOT, command_line

Role = Literal["broker", "master", "worker"]
_SIGNS: Final[Mapping[Role, str]] = {"broker": "nats-server", "master": "_master", "worker": "_worker"}


def write_spec(path: Path, spec: Mapping[str, Any]) -> Path:
    """A spec file, with loopback opened; JSON is YAML."""
    path.write_text(json.dumps({"egress": {"allow": ["127.0.0.0/8"]}, **spec}))
    return path


class Running:
    """`orb crawl` on the folder `out`, started again by `start` as often as a test likes.

    `settings` are environment variables for every process. A block's end leaves no process behind.
    """

    def __init__(self, out: Path, *arguments: str | Path, settings: Mapping[str, str] | None = None) -> None:
        self.out = out
        self.starts = 0
        self._arguments = arguments
        self._settings = dict(settings or {})
        self._said = out.with_name(f"{out.name}.said")
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Running {self.out.name} starts={self.starts} ended={self.ended}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill_all()

    def start(self) -> None:
        """Begin, or go on."""
        self.starts += 1
        command = command_line("crawl", *self._arguments, "--out", self.out, "--json", "--no-progress")
        with self._said.open("ab") as said, self._stdout.open("wb") as stdout:
            self._process = subprocess.Popen(
                [*dying_with(os.getpid()), *command],
                cwd=ROOT,
                env={**os.environ, **self._settings},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=said,
                start_new_session=True,
            )

    @property
    def command(self) -> psutil.Process:
        """The process of the command itself."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    @property
    def ended(self) -> bool:
        """Whether the command has ended."""
        return self._process is None or self._process.poll() is not None

    def of(self, role: Role) -> list[psutil.Process]:
        """The living processes with a role."""
        try:
            return [child for child in self.command.children(recursive=True) if _plays(child, _SIGNS[role])]
        except psutil.NoSuchProcess:
            return []

    def wait_for(self, role: Role, timeout_s: float = 30.0) -> list[psutil.Process]:
        """The processes with a role as soon as there is one; the command must not end meanwhile."""
        found: list[psutil.Process] = []

        def living() -> bool:
            found[:] = self.of(role)
            return bool(found)

        self.wait_until(living, f"a {role} lives", timeout_s)
        return found

    def wait_until(self, true: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        """Wait for a condition; AssertionError after `timeout_s` or when the command ends first."""
        deadline = time.monotonic() + timeout_s
        while not true():
            if self.ended:
                raise AssertionError(f"the crawl ended before {what}:\n{self.last_words()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {timeout_s} s until {what}:\n{self.last_words()}")
            time.sleep(0.01)

    def kill_all(self) -> None:
        """SIGKILL to the command and all that it started, at once; returns when all have ended."""
        assert self._process is not None
        victims: list[psutil.Process] = []
        if not self.ended:
            victims = [*self.command.children(recursive=True), self.command]
        for victim in victims:
            kill(victim)
        self._process.wait(30)
        _, alive = psutil.wait_procs(victims, 30)
        assert not alive, f"{alive} outlived SIGKILL"

    def kill_command(self) -> None:
        """SIGKILL to the command alone; returns when it and all that it started have ended."""
        assert self._process is not None
        children = self.command.children(recursive=True)
        kill(self.command)
        self._process.wait(30)
        _, alive = psutil.wait_procs(children, 30)
        assert not alive, f"{alive} outlived the command that started them"

    def finish(self, timeout_s: float = 120.0, code: int = 0) -> dict[str, Any]:
        """The summary with which the command ends."""
        assert self._process is not None
        try:
            ended = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the crawl did not end within {timeout_s} s:\n{self.last_words()}") from None
        assert ended == code, f"the crawl ended with {ended} and not {code}:\n{self.last_words()}"
        summary: dict[str, Any] = json.loads(self._stdout.read_bytes())
        return summary

    def last_words(self) -> str:
        """The end of what the command and its processes said."""
        parts = [_tail(self._said)]
        parts += [f"--- {log.name}\n{_tail(log)}" for log in sorted((self.out / "logs").glob("*.log"))]
        return "\n".join(parts)

    @property
    def _stdout(self) -> Path:
        return self.out.with_name(f"{self.out.name}.json")


def kill(process: psutil.Process, number: int = signal.SIGKILL) -> bool:
    """Send a signal; False when it has ended already."""
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


def _plays(process: psutil.Process, sign: str) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    # The launcher of the broker becomes the broker by exec: it plays no role before.
    return bool(words) and (words[-1] == sign or words[0].endswith(sign))


def _tail(path: Path, size: int = 3_000) -> str:
    return path.read_bytes()[-size:].decode(errors="replace") if path.exists() else ""
