"""The meter of the benchmarks counts all that a command does, also what it does behind its back."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.processes.resource_meter import Measured

ROOT = Path(__file__).resolve().parents[2]

BURN = "import time\nwhile time.process_time() < 0.4: pass\n"

DAEMON = f"""
import os, sys
if os.fork():
    sys.exit(0)
os.setsid()
if os.fork():
    os._exit(0)
{BURN}
"""

HELD = """
import time
block = b"x" * (200 << 20)
time.sleep(3)  # who takes the samples may stand still for one
"""


def measure(folder: Path, program: str) -> Measured:
    report = folder / "report.json"
    command = [
        sys.executable,
        "-m",
        "tests.support.processes.resource_meter",
        str(report),
        sys.executable,
        "-c",
        program,
    ]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    return Measured(**json.loads(report.read_text()))


def test_the_time_of_a_daemon_that_outlives_its_parent_is_counted(tmp_path: Path) -> None:
    measured = measure(tmp_path, DAEMON)
    assert measured.returncode == 0
    assert measured.cpu_s >= 0.4
    assert measured.left_behind == 0


def test_the_time_of_a_grandchild_is_counted(tmp_path: Path) -> None:
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}], check=True)"
    assert measure(tmp_path, program).cpu_s >= 0.4


def test_the_peak_is_the_sum_over_the_tree(tmp_path: Path) -> None:
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {HELD!r}], check=True)"
    assert measure(tmp_path, program).peak_rss >= 200 << 20


def test_a_failure_is_reported(tmp_path: Path) -> None:
    assert measure(tmp_path, "import sys; sys.exit(7)").returncode == 7
