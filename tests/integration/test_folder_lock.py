"""The lock of a crawl's folder is held by all processes that inherit it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli.local.crawl_folder import CrawlFolder
from cli.local.folder_lock import holders
from cli.terminal.exits import Environment


@pytest.fixture
def folder(tmp_path: Path) -> CrawlFolder:
    made = CrawlFolder(tmp_path / "a.crawl")
    made.make()
    return made


def test_the_lock_is_held_until_the_last_heir_has_ended(folder: CrawlFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of a run whose command was killed keeps the next run out, and is named."""
    monkeypatch.setattr("cli.local.folder_lock._STRAGGLERS_S", 0.2)
    with folder.held() as lock:
        heir = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock,))
    # The command that started it is gone.
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    folder.lock_file.write_text(json.dumps({"pid": dead.pid}))
    try:
        assert holders(folder.lock_file) == [heir.pid]
        with pytest.raises(Environment, match=rf"kill -KILL {heir.pid}"), folder.held():
            pass
    finally:
        heir.communicate(b"\n")
    with folder.held():
        pass
