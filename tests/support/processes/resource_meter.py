"""Run one command and measure everything that it starts.

    python -m tests.support.processes.resource_meter REPORT COMMAND...

This process makes itself the subreaper, so that whatever the command leaves behind is inherited and reaped here; when
no child is left, RUSAGE_CHILDREN is the CPU time of the whole tree: engines, workers and daemons included, exact
however short they lived. Peak memory is the largest sum of resident sets over the tree, sampled (shared pages count
once for each process).
"""

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil

PR_SET_CHILD_SUBREAPER: Final = 36
GRACE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What a command and all its descendants took. Seconds and bytes; `left_behind` had to be ended after `GRACE_S`."""

    returncode: int
    wall_s: float
    cpu_s: float
    user_s: float
    system_s: float
    peak_rss: int
    left_behind: int


class _Sampler(threading.Thread):
    """Samples the resident sets of this process's descendants until told to stop."""

    def __init__(self) -> None:
        super().__init__(name="rss-sampler", daemon=True)
        self.stop = threading.Event()
        self.peak = 0

    def run(self) -> None:
        own = psutil.Process()
        while not self.stop.wait(0.2):
            total = 0
            for child in own.children(recursive=True):
                try:
                    total += child.memory_info().rss
                except psutil.Error:
                    continue  # it ended between the two looks
            self.peak = max(self.peak, total)


def measure(command: list[str]) -> Measured:
    """Runs `command` to its end and reaps all that it started. Changes this process: call it in one of its own."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
    sampler = _Sampler()
    sampler.start()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    child = subprocess.Popen(command)
    code = child.wait()
    wall_s = time.monotonic() - started
    left = _reap_all()
    sampler.stop.set()
    sampler.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user_s, system_s = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return Measured(code, wall_s, user_s + system_s, user_s, system_s, sampler.peak, left)


def _reap_all() -> int:
    """Waits until no child is left; ends what is still there after the grace time and says how many that were."""
    deadline = time.monotonic() + GRACE_S
    ended: set[int] = set()
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return len(ended)
        if pid:
            continue
        if time.monotonic() > deadline:
            for child in psutil.Process().children():
                ended.add(child.pid)
                child.send_signal(signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(asdict(measure(sys.argv[2:]))))
