"""A test run that is ended from outside leaves none of its processes behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from shared.runtime.supervise import dying_with
from tests.support.processes.orb_command import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

PATIENCE_S = 60.0
RUN = """
import json, os, time
import psutil
from tests.support.processes.cluster import cluster
from tests.support.processes.crawl_process import Running
from tests.support.web.synthetic_site import SyntheticSite

def test_that_never_ends(tmp_path, web, postgres_server):
    origin = web(SyntheticSite(pages=10)).origins[0]
    crawl = Running(tmp_path / "out", f"{origin}/", "--allow-net", "127.0.0.0/8", "--delay", "60")
    with cluster(tmp_path) as made, crawl:
        made.master("m1")
        made.worker("w1")
        made.wait_until(lambda: made.leader() == "m1", "it leads")
        crawl.wait_for("worker")
        started = psutil.Process().children(recursive=True)
        with open(int(os.environ["TELLING"]), "w") as telling:
            json.dump([str(postgres_server.folder), *(process.pid for process in started)], telling)
        time.sleep(3600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_what_a_test_started_ends_when_the_process_that_runs_it_is_killed(
    tmp_path: Path, postgres_programs: Path, number: signal.Signals
) -> None:
    module = tmp_path / "test_endless.py"
    module.write_text(RUN)
    told, telling = os.pipe()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest",
               f"--rootdir={ROOT}", f"--basetemp={tmp_path / 'run'}", str(module)]  # fmt: skip
    with (
        (tmp_path / "said").open("wb") as said,
        subprocess.Popen(
            [*dying_with(os.getpid()), *command],
            cwd=ROOT, env={**os.environ, "TELLING": str(telling)}, pass_fds=(telling,),
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
        ) as run,
    ):  # fmt: skip
        os.close(telling)
        with open(told, "rb") as pipe:
            line = pipe.read()
        assert line, (tmp_path / "said").read_text()
        folder, *pids = json.loads(line)
        family = [psutil.Process(pid) for pid in pids]
        try:
            assert len(family) >= 10, family
            run.send_signal(number)
            assert run.wait(PATIENCE_S) == -number
            assert psutil.wait_procs(family, PATIENCE_S)[1] == []
        finally:
            run.kill()
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(family, PATIENCE_S)
            shutil.rmtree(folder)  # whose fixture has not come to its end
