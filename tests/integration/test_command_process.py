"""The command `orb` as a process: what it imports, and how it ends when its output cannot be written."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.terminal.exits import Exit
from tests.support.processes.orb_command import ROOT, command_line, export
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web


def test_help_needs_no_engine() -> None:
    code = "import sys; from cli.main import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint({"nats", "sqlalchemy", "pycurl", "pydantic", "rich", "asyncio"})


def test_start_of_a_crawl_loads_no_database_and_no_drawing() -> None:
    """The processes are started first: SQLAlchemy alone takes longer to load than all else of the command."""
    code = (
        "import sys; from cli.main import main; main(['crawl', '--help']);"
        " import cli.local.crawl, cli.local.local_run, cli.local.logs, cli.local.finalize; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "structlog" in loaded
    assert loaded.isdisjoint({"sqlalchemy", "rich", "pygments"})


def test_reader_that_leaves_early_causes_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)  # before anything is written: what fits into a pipe meets no end of it
    with open(writer, "w") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "orb", "version"], cwd=ROOT, stdout=gone, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_stream_fails_no_command(closed: str) -> None:
    done = _with_closed(closed, "version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Orbweaver ") is (closed == "2>&-")


@pytest.mark.long
@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_crawl_with_a_closed_standard_stream_finishes(closed: str, web: Callable[..., Web], tmp_path: Path) -> None:
    origin, out = web(SyntheticSite(pages=3)).origins[0], tmp_path / "a.crawl"
    seed = ("crawl", f"{origin}/", "--allow-net", "127.0.0.0/8", "--delay", "0", "--workers", "1", "--json")
    done = _with_closed(closed, *seed, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if closed == "2>&-":
        assert json.loads(done.stdout)["end"] == "finished"
    assert list(export("pages", out))


def _with_closed(closed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `orb` from a shell with the redirections `closed`."""
    script = f'exec "$@" {closed}'
    command = ["sh", "-c", script, "sh", *command_line(*arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arguments", [("version",), ("openapi",)])
def test_a_full_disk_under_the_output_is_one_sentence(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "orb", *arguments],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    said = "the output was cut short (No space left on device); make room where it goes, and run the command again."
    assert done.stderr == f"orb: {said}\n"
    assert done.returncode == Exit.ENVIRONMENT
