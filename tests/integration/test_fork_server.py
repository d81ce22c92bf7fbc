"""Roles of a command are forked from a process that has only imported, and are what roles started by exec are."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from shared.runtime.supervise import dying_with
from tests.support.processes.orb_command import ROOT

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs prctl(2)")

WAIT_S: Final = 60.0
COMMAND: Final = """
import sys
from tests.support.processes.fork_server_command import command
command(*sys.argv[1:])
"""


PATCH: Final = """
import os
if "STATE" in os.environ:
    import cli.main
    from tests.support.processes.fork_server_command import role
    cli.main.main = role
"""
"""Lets a role that was started by exec do what a forked one does."""


@contextmanager
def command(folder: Path, *modules: str) -> Iterator["Command"]:
    """A command of one thread, as the process that runs the tests is none."""
    (folder / "sitecustomize.py").write_text(PATCH)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "OF_COMMAND": "1", "TAKEN": "1"}
    with subprocess.Popen(
        [*dying_with(os.getpid()), sys.executable, "-c", COMMAND, str(folder), *modules],
        cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield Command(process, folder)
        finally:
            process.kill()


class Command:
    """The command of `tests.support.processes.fork_server_command`, which does what it reads."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self.process = process
        self.folder = folder

    def ask(self, verb: str, name: str = "", *arguments: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([verb, name, *arguments]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the command has ended"
        return json.loads(line)

    def start(self, name: str, *arguments: str) -> dict[str, Any]:
        """Start a role; return what it says of itself."""
        state: dict[str, Any] = self.ask("start", name, *arguments)
        return state


def test_forked_role_is_what_a_role_started_by_exec_is(tmp_path: Path) -> None:
    with command(tmp_path) as run:
        first, second = run.start("first", "_worker", "x y"), run.start("second", "_worker", "x y")
        executed = run.ask("exec", "third", "_worker", "x y")
        assert [state["forked"] for state in (first, second, executed)] == [True, True, False]
        for state in (first, second):
            same = ("ppid", "environment", "arguments", "signals", "death", "directory", "threads", "group")
            assert {name: state[name] for name in same} == {name: executed[name] for name in same}
            assert state["sid"] == state["pid"]
            process = psutil.Process(state["pid"])
            assert process.ppid() == run.process.pid
            assert process.cmdline()[1:] == ["-m", "orb", "_worker", "x", "y"]
        log = os.fspath(tmp_path / "first.log")
        assert first["open"] == {"0": "/dev/null", "1": log, "2": log, "lock": os.fspath(tmp_path / "lock")}
        assert first["role"] == "first"
        assert first["environment"]["OF_COMMAND"] == "1"
        assert "TAKEN" not in first["environment"]
        assert len({state["random"] for state in (first, second, executed)}) == 3
        assert len({state["uuid"] for state in (first, second, executed)}) == 3


def test_exit_status_of_a_forked_role_is_known(tmp_path: Path) -> None:
    with command(tmp_path) as run:
        started = [run.start(name) for name in ("a", "b", "c")]
        assert all(state["forked"] for state in started)
        os.kill(started[0]["pid"], signal.SIGKILL)
        os.kill(started[1]["pid"], signal.SIGTERM)
        run.ask("signal", "c")
        assert [run.ask("exited", name) for name in ("a", "b", "c")] == [-signal.SIGKILL, 7, 7]
        assert "role ends" in (tmp_path / "c.log").read_text()


def test_roles_and_fork_server_die_with_the_command(tmp_path: Path) -> None:
    with command(tmp_path) as run:
        family = [psutil.Process(run.start(name)["pid"]) for name in ("a", "b")]
        family.append(psutil.Process(run.ask("server")))
        run.process.kill()
        assert psutil.wait_procs(family, WAIT_S)[1] == []


def test_roles_outlive_their_fork_server_and_new_ones_are_started_by_exec(tmp_path: Path) -> None:
    with command(tmp_path) as run:
        before = run.start("before")
        os.kill(run.ask("server"), signal.SIGKILL)
        assert run.ask("server-ended") == -signal.SIGKILL
        after = run.start("after")
        assert (before["forked"], after["forked"]) == (True, False)
        assert after["ppid"] == run.process.pid
        os.kill(before["pid"], signal.SIGTERM)
        assert run.ask("exited", "before") == 7


def test_fork_server_that_was_stopped_by_its_command_leaves_the_roles(tmp_path: Path) -> None:
    with command(tmp_path) as run:
        role = run.start("role")
        assert run.ask("close") in (0, -signal.SIGKILL)
        assert psutil.Process(role["pid"]).ppid() == run.process.pid
        assert {child.pid for child in psutil.Process(run.process.pid).children()} == {role["pid"]}


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()", "2 threads"),
        ("import socket\nkept = socket.socket()", "open descriptors"),
        ("raise ValueError('of this module')", "of this module"),
    ],
)
def test_fork_server_whose_imports_do_more_does_not_fork(tmp_path: Path, module: str, reason: str) -> None:
    (tmp_path / "does_more.py").write_text(module)
    with command(tmp_path, "does_more") as run:
        assert not run.start("role")["forked"]
        assert reason in run.ask("failed")


@pytest.mark.parametrize("of", ["crawl", "cluster"])
def test_fork_server_has_only_imported(tmp_path: Path, of: str) -> None:
    """At its forks it has one thread, no open file, and no object that is bound to an engine."""
    with command(tmp_path, of) as run:
        state = run.start("role")
        assert state["forked"], run.ask("failed")
        assert state["threads"] == 1
        assert state["bound"] == []
        assert {"api.main", "workers.main"} <= set(state["modules"])
        assert ("grpc" in state["modules"]) == (of == "cluster")
