"""A loop that stands still is told of from outside of it, and given up where nothing is to be hoped for."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest

from shared.adapters.local.clock import SystemClock
from shared.runtime.stalls import StallWatch

CLOCK = SystemClock()
ROOT = Path(__file__).resolve().parents[2]


def test_a_loop_that_stands_still_is_told_of_while_it_does_and_afterwards() -> None:
    """The loop is blocked until the watch says so: only a watch from outside of it can."""
    said: list[str] = []
    noticed = threading.Event()

    def stuck(where: str) -> None:
        said.append(where)
        noticed.set()

    async def story() -> list[float]:
        stood: list[float] = []
        over = asyncio.Event()

        def told(seconds: float) -> None:
            stood.append(seconds)
            over.set()

        with StallWatch(CLOCK, told, least_s=0.2, every_s=0.01, stuck=stuck).watching():
            async with asyncio.timeout(30):
                while not any("noticed.wait" in where for where in said):  # the machine may stand still elsewhere, too
                    noticed.clear()
                    over.clear()
                    await asyncio.sleep(0.05)
                    assert noticed.wait(30)  # the whole loop waits
                    await over.wait()
        return stood

    stood = asyncio.run(story())
    assert min(stood) >= 0.2
    assert any("noticed.wait" in where for where in said), "the log says where the loop stands"


def test_the_watch_ends_with_its_block_even_when_it_has_just_begun_to_ask() -> None:
    async def story() -> None:
        for _ in range(50):
            with StallWatch(CLOCK, lambda _: None, least_s=60.0, every_s=0.0).watching():
                await asyncio.sleep(0)

    asyncio.run(story())
    assert not [thread for thread in threading.enumerate() if thread.name == "stall-watch"]


def test_loop_idle_for_long_is_given_up_and_timely_one_is_not() -> None:
    given_up = threading.Event()

    async def story(still: threading.Event, dead_s: float, patience_s: float) -> None:
        watch = StallWatch(
            CLOCK,
            lambda _: None,
            least_s=0.01,
            every_s=0.01,
            stuck=lambda _: still.set(),
            dead_s=dead_s,
            dead=given_up.set,
        )
        with watch.watching():
            await asyncio.sleep(0.05)
            assert still.wait(30)
            given_up.wait(patience_s)
            await asyncio.sleep(0.05)

    asyncio.run(story(threading.Event(), 60.0, 0.0))
    assert not given_up.is_set()
    asyncio.run(story(threading.Event(), 0.3, 30.0))
    assert given_up.is_set()


def test_a_process_is_killed_whose_loop_runs_in_circles() -> None:
    circles = """
import asyncio, sys
from shared.adapters.local.clock import SystemClock
from shared.runtime.stalls import StallWatch

async def main():
    with StallWatch(SystemClock(), print, least_s=0.2, every_s=0.05, dead_s=0.5).watching():
        await asyncio.sleep(0.1)
        while True:
            pass

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", circles], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert ended.returncode == -signal.SIGKILL
    assert "event_loop.blocked" in ended.stdout, "it says where"
    assert "process.aborted" in ended.stdout


def test_a_process_is_killed_whose_loop_stands_at_a_log_that_nobody_reads() -> None:
    chatter = """
import asyncio, os
from shared.runtime import stalls
from shared.adapters.local.clock import SystemClock

stalls._SAYING_S = 0.2

async def main():
    with stalls.StallWatch(SystemClock(), print, least_s=0.2, every_s=0.05, dead_s=0.5).watching():
        await asyncio.sleep(0.1)
        while True:
            print("x" * 1000, flush=True)

asyncio.run(main())
"""
    unread, written = os.pipe()
    with closing(os.fdopen(unread, "rb")):
        process = subprocess.Popen([sys.executable, "-c", chatter], cwd=ROOT, stdout=written)
        os.close(written)
        try:
            assert process.wait(50) == -signal.SIGKILL
        finally:
            process.kill()
            process.wait()


def _own_processes() -> bool:
    """Whether this user may make a name space in which a process is the first."""
    try:
        return subprocess.run(["unshare", "-Urpf", "true"], capture_output=True, timeout=30).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not _own_processes(), reason="this machine makes no name spaces of processes for this user")
def test_the_first_process_of_a_container_ends_as_well() -> None:
    """The kernel keeps such a process from every signal of its own."""
    code = "from shared.runtime import stalls; stalls._kill(); print('alive')"
    command = ["unshare", "-Urpf", sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert ended.returncode == 128 + signal.SIGKILL
    assert "alive" not in ended.stdout


HELD = """
import asyncio, ctypes, sys, threading
from shared.runtime import stalls
from shared.adapters.local.clock import SystemClock

stalls.STALLED_S, stalls.DEAD_S, stalls._LAST = 0.3, 0.3, {last}

def circles():
    ctypes.PyDLL(None).pause()  # a C call that holds the interpreter's lock, and never returns

async def main():
    with stalls.ending_where_it_stands(SystemClock()):
        await asyncio.sleep(0.1)
        circles()
"""


@pytest.mark.skipif(not _own_processes(), reason="this machine makes no name spaces of processes for this user")
def test_first_process_of_a_container_ends_while_the_lock_is_held() -> None:
    """The kernel keeps such a process from signals without a handler."""
    code = HELD.format(last=1) + "asyncio.run(main())"
    command = ["unshare", "-Urpf", sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert (ended.returncode, "in circles" in ended.stderr) == (signal.SIGALRM, True)


def test_process_ends_while_the_lock_is_held_and_no_log_is_read() -> None:
    """The stacks go to a pipe that is full, which must not be waited for."""
    unread, written = os.pipe()
    with closing(os.fdopen(unread, "rb")):
        os.set_blocking(written, False)
        with suppress(BlockingIOError):
            while True:
                os.write(written, b"x" * 4096)
        os.set_blocking(written, True)
        code = HELD.format(last=1) + "asyncio.run(main())"
        process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=written, stdout=subprocess.DEVNULL)
        os.close(written)
        try:
            assert process.wait(50) == signal.SIGALRM
        finally:
            process.kill()
            process.wait()


@pytest.mark.long
def test_process_stopped_beyond_watchdog_time_survives() -> None:
    """The first timer fires at once when it continues; the second one leaves it time to show a sign of life."""
    code = (
        HELD.format(last=4)
        + """
async def story():
    with stalls.ending_where_it_stands(SystemClock()):
        print("begun", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    with stalls.ending_where_it_stands(SystemClock()):
        await asyncio.sleep(0.1)
    print("alive", [thread.name for thread in threading.enumerate() if thread.name == "stall-watch"])

asyncio.run(story())
"""
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGSTOP)
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.5)  # longer than the first timer
        process.send_signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(4.5)  # longer than the second one
        said, _ = process.communicate("\n", timeout=50)
        assert (process.returncode, said.splitlines()[-1]) == (0, "alive []")
    finally:
        process.kill()
        process.wait()


MASTER = """
import asyncio
import uvloop
import api.main

async def work(stop, up):
    await asyncio.sleep(0.1)
    circles()

uvloop.run(api.main.until_signalled(work))
"""
WORKER = """
import asyncio
import workers.main
from shared.settings import WorkerSettings

async def run(settings, stop):
    await asyncio.sleep(0.1)
    circles()

workers.main.run = run
workers.main.serve(WorkerSettings(id="w-1", dir="/nowhere", nats_url="nats://127.0.0.1:1"))
"""


@pytest.mark.long
@pytest.mark.parametrize("member", [MASTER, WORKER], ids=["master", "worker"])
def test_member_with_spinning_loop_ends_to_be_restarted(member: str) -> None:
    sooner = """
from shared.runtime import stalls

# Where it stands is said once, and not of a moment in which the machine stood still.
stalls.STALLED_S, stalls.DEAD_S = 1.5, 0.3

def circles():
    while True:
        pass
"""
    code = sooner + member
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert "in circles" in ended.stdout + ended.stderr, "it says where"


@pytest.mark.parametrize("member", [MASTER, WORKER], ids=["master", "worker"])
def test_member_ends_while_a_c_call_holds_the_lock(member: str) -> None:
    """No thread of Python can run then, and so no watch that is one."""
    ended = subprocess.run(
        [sys.executable, "-c", HELD.format(last=1) + member], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert ended.returncode == signal.SIGALRM, ended.stderr
    assert "in circles" in ended.stderr, "it says where"
