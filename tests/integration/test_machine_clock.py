"""Bounds on promises count the time that a machine ran."""

import os
import signal
import subprocess
import sys
import threading
import time

from tests.support.machine_clock import living
from tests.support.processes.orb_command import ROOT

LIVES = """
import os, signal, time
from tests.support.machine_clock import living

with living() as lived:
    while lived() < 0.2:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGSTOP)
    while lived() < 0.5:
        time.sleep(0.01)
    print(lived(), flush=True)
"""


def test_every_processor_is_watched_from_itself() -> None:
    with living():
        watching = [thread for thread in threading.enumerate() if thread.name.startswith("lived-")]
        ours = [thread.native_id for thread in watching if thread.native_id is not None]
        while any(len(os.sched_getaffinity(thread)) > 1 for thread in ours):
            time.sleep(0.01)
        assert {number for thread in ours for number in os.sched_getaffinity(thread)} == os.sched_getaffinity(0)


def test_what_passes_is_lived() -> None:
    begun = time.monotonic()
    with living() as lived:
        while lived() < 0.3:
            time.sleep(0.01)
        assert time.monotonic() - begun >= 0.3


def test_a_stop_is_not_lived() -> None:
    with subprocess.Popen([sys.executable, "-c", LIVES], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        time.sleep(1)
        process.send_signal(signal.SIGCONT)
        assert 0.5 <= float(process.stdout.readline()) < 0.9
