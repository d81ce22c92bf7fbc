"""What becomes of a bundled engine whose parent is killed outright, so that it cannot tidy up."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil

from tests.support.processes.orb_command import ROOT

_PROGRAM: Final = """
import asyncio, importlib, sys, time
from pathlib import Path
server = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(Path(sys.argv[3]))
asyncio.run(server.start())
print("pid", server.pid, flush=True)
time.sleep(3600)
"""


def dies_with_its_parent(module: str, name: str, folder: Path) -> None:
    """The engine that `name` of `module` starts in the folder ends with its parent, and is in no group with it: a
    terminal's interrupt does not reach it."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, module, name, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        line = next(line for line in parent.stdout if line.startswith("pid "))
        server = psutil.Process(int(line.split()[1]))
        assert os.getpgid(server.pid) != os.getpgid(parent.pid)
        parent.kill()
    assert psutil.wait_procs([server], timeout=30)[1] == []
