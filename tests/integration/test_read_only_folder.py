"""show, export and warc on a folder that cannot be written: on a read-only mount, or without the right to write."""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cli.terminal.exits import Exit
from shared.adapters.sql.engine.read_only import ReadFile
from shared.domain.errors import Transient, Unusable
from tests.support.archive.crawl_folder import SEED, StoredCrawl, made
from tests.support.processes.orb_command import ROOT, command_line

_WITHOUT_RIGHTS = ("setpriv", "--bounding-set", "-all", "--inh-caps", "-all") if os.geteuid() == 0 else ()


@pytest.fixture(params=["mount", "rights"])
def unwritable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """Return where a folder is to lie, and what runs a command that cannot write there."""
    folder = tmp_path / "a.crawl"
    if request.param == "mount":
        mount = f'mount --bind "{folder}" "{folder}" && mount -o remount,ro,bind "{folder}" && exec "$@"'
        probe = subprocess.run(["unshare", "-rm", "mount", "--bind", tmp_path, tmp_path], capture_output=True)
        if probe.returncode:
            pytest.skip("this machine lets nothing be mounted")
        yield folder, ["unshare", "-rm", "sh", "-c", mount, "sh"]
        return
    yield folder, ["sh", "-c", f'chmod a-w "{folder}" && exec {" ".join(_WITHOUT_RIGHTS)} "$@"', "sh"]
    folder.chmod(0o755)


def ran(prefix: list[str], *arguments: str | Path, code: int = Exit.OK) -> tuple[str, str]:
    line = [*prefix, *command_line(*arguments)]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False, timeout=60)
    assert ended.returncode == code, ended.stderr
    return ended.stdout, ended.stderr


def names(crawl: StoredCrawl) -> set[str]:
    return {entry.name for entry in crawl.path.iterdir()}


def test_a_folder_that_cannot_be_written_is_read_in_full(unwritable: tuple[Path, list[str]]) -> None:
    folder, prefix = unwritable
    crawl = made(folder)
    before = names(crawl)
    assert not {"crawl.db-wal", "crawl.db-shm"} & before
    assert f"{len(crawl.pages)}, " in ran(prefix, "show", folder)[0]
    assert len(ran(prefix, "export", "pages", folder)[0].splitlines()) == len(crawl.pages)
    assert ran(prefix, "warc", folder, SEED)[0]
    assert names(crawl) == before, "nothing was written"


def test_a_folder_in_use_is_read_with_what_its_log_holds(unwritable: tuple[Path, list[str]]) -> None:
    """Read as immutable, it would lack what the crawl has just written."""
    folder, prefix = unwritable
    made(folder)
    with closing(sqlite3.connect(folder / "crawl.db", isolation_level=None)) as crawl:
        crawl.execute("UPDATE crawls SET name = 'renamed just now'")
        assert (folder / "crawl.db-wal").stat().st_size
        assert '"crawl": "renamed just now"' in ran(prefix, "show", folder, "--json")[0]


def test_a_copied_log_without_its_index_is_refused_with_what_to_do(tmp_path: Path) -> None:
    crawl, copied = made(tmp_path / "live.crawl"), tmp_path / "copied.crawl"
    with closing(sqlite3.connect(crawl.path / "crawl.db", isolation_level=None)) as live:
        live.execute("UPDATE crawls SET name = 'renamed just now'")
        shutil.copytree(crawl.path, copied)
    with pytest.raises(Unusable, match="Copy the folder to a place that can be written"):
        ReadFile(copied / "crawl.db")._immutable()


def test_a_crawl_that_begins_while_its_file_is_read_is_noticed(tmp_path: Path) -> None:
    path = made(tmp_path / "a.crawl").path / "crawl.db"
    file = ReadFile(path)
    with closing(file._immutable()) as reader:
        assert reader.execute("SELECT count(*) FROM crawls").fetchone() == (1,)
        file.check()
        with closing(sqlite3.connect(path, isolation_level=None)) as crawl:
            crawl.execute("UPDATE crawls SET name = 'renamed just now'")
            with pytest.raises(Transient, match="a crawl has just begun to write"):
                file.check()
        with pytest.raises(Transient, match="ask again"):  # it has ended: the file itself is another
            file.check()
