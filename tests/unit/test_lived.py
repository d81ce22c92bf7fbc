"""Bounds on promises count the time that a machine ran."""

import os
import signal
import subprocess
import sys
import time

from tests.support.lived import LONGEST_S, living
from tests.support.orb_command import ROOT

LIVES = """
import time
from tests.support.lived import living

with living() as lived:
    print("begun", flush=True)
    while lived() < 0.5:
        time.sleep(0.01)
    print(lived(), flush=True)
"""


def test_what_passes_is_lived() -> None:
    with living() as lived:
        begun = time.monotonic()
        while lived() < 0.3:
            time.sleep(0.01)
        assert time.monotonic() - begun >= 0.3 - LONGEST_S


def test_a_stop_is_not_lived() -> None:
    with subprocess.Popen([sys.executable, "-c", LIVES], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        time.sleep(1)
        process.send_signal(signal.SIGCONT)
        assert 0.5 <= float(process.stdout.readline()) < 0.9
