"""pywb, a replay tool, in an environment of its own: where it is, and a server of it that a test asks."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest

PATIENCE_S: Final = 60.0
_ENVIRONMENT: Final = Path(__file__).parents[3] / ".pywb"


def pywb_folder() -> Path:
    """The folder of pywb's programs; without one the test is skipped, or fails where CI is set."""
    found = shutil.which("wayback", path=f"{_ENVIRONMENT / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        reason = "pywb is not installed: python3 -m venv .pywb && .pywb/bin/pip install pywb"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return Path(found).parent


class Pywb:
    """A running pywb."""

    def __init__(self, address: str, log: Path) -> None:
        self.address = address
        self._log = log

    def replayed(self, collection: str, url: str) -> httpx.Response:
        """The capture of `url` as the site sent it, without rewriting."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return httpx.get(f"{self.address}/{collection}/id_/{url}", timeout=30)
            except httpx.TransportError:
                assert time.monotonic() < deadline, self._log.read_text()
                time.sleep(0.1)


@contextmanager
def pywb(folder: Path, command: Sequence[str], environment: Mapping[str, str], port: int) -> Iterator[Pywb]:
    """Run the command of a pywb on `port` in `folder`."""
    log = folder / "pywb.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, env={**os.environ, **environment}, stdout=out, stderr=out)
    try:
        yield Pywb(f"http://127.0.0.1:{port}", log)
    finally:
        process.terminate()
        process.wait(20)
