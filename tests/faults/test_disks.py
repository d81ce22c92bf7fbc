"""A disk that was filled has no room for whoever writes there, and room again when it is emptied."""

import asyncio
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import text

from cli.admin.key_issue import first_key
from cli.main import main
from cli.terminal.exits import Exit
from shared.adapters.sql.engine.sqlite import SqliteThreads
from shared.domain.errors import ResourceFull
from shared.runtime.supervise import dying_with
from tests.support.engines.postgres import PostgresServer
from tests.support.faults.disks import database, filled, of_tables, small
from tests.support.processes.orb_command import ROOT, command_line

PATIENCE_S = 30.0


def test_database_on_full_disk_refuses_writes_and_keeps_its_rows(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    rows = "INSERT INTO t SELECT repeat(md5(i::text), 30) FROM generate_series(1, 2000) i"

    async def told(url: str, statement: str) -> str:
        connection = await asyncpg.connect(url)
        try:
            return str(await connection.execute(statement))
        finally:
            await connection.close()

    with ExitStack() as stack:
        small(stack, tmp_path, 1)
        tables = of_tables(stack, postgres_server)
        url = database(stack, postgres_server, tables)
        asyncio.run(told(url, "CREATE TABLE t (x text)"))
        assert asyncio.run(told(url, rows)) == "INSERT 0 2000"
        with filled(tables), pytest.raises(asyncpg.DiskFullError):
            asyncio.run(told(url, rows))
        assert asyncio.run(told(url, rows)) == "INSERT 0 2000"
        assert asyncio.run(told(url, "DELETE FROM t")) == "DELETE 4000"
    assert not tables.is_mount()


def test_orb_up_with_full_database_says_what_to_do_and_leaves_nothing(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    disk, folder = tmp_path / "disk", tmp_path / "cluster"
    disk.mkdir()
    with ExitStack() as stack:
        small(stack, disk, 1)
        tables = of_tables(stack, postgres_server)
        url = database(stack, postgres_server, tables)
        line = command_line("up", "--dir", str(folder), "--http", "127.0.0.1:0", "--database", url)
        with filled(tables):
            up = subprocess.run(
                [*dying_with(os.getpid()), *line], cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
            )
        assert up.returncode == 4, up.stderr
        assert "is full: make room there, and run the same command again." in up.stderr.splitlines()[-1]
        assert "Traceback" not in up.stderr
        assert not folder.exists()
        assert asyncio.run(first_key(url)) is not None, "there is room again"


def test_sqlite_file_on_full_disk_refuses_writes_and_keeps_its_rows(
    tmp_path: Path,
) -> None:
    rows = text(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)"
        " INSERT INTO t SELECT zeroblob(1000) FROM n"
    )

    async def story() -> None:
        threads = SqliteThreads(tmp_path / "t.db")

        async def there() -> object:
            return await threads.read(lambda c: c.execute(text("SELECT count(*) FROM t")).scalar())

        await threads.write(lambda c: c.execute(text("CREATE TABLE t (b)")).close())
        await threads.write(lambda c: c.execute(rows).close())
        with filled(tmp_path):
            for _ in range(3):
                with pytest.raises(ResourceFull, match="disk that holds the database is full: make room there"):
                    await threads.write(lambda c: c.execute(rows).close())
            assert (await there(), threads.disk_full()) == (500, True)
        await threads.write(lambda c: c.execute(rows).close())
        assert await there() == 1000
        await threads.close()

    with ExitStack() as stack:
        small(stack, tmp_path, 16)
        asyncio.run(story())


@pytest.mark.parametrize("words", [("key", "create"), ("db", "check")])
def test_a_command_on_a_file_whose_disk_is_full_says_which_and_what_to_do(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        small(stack, tmp_path, 4)
        file = tmp_path / "c.db"
        assert asyncio.run(first_key(str(file))) is not None
        with filled(tmp_path):
            assert main([*words, "--database", f"sqlite://{file}"]) == Exit.ENVIRONMENT
        assert capsys.readouterr().err == (
            f"orb: the disk of the database {file} is full: make room there, and run the same command again.\n"
        )


def test_a_disk_is_gone_when_whoever_mounted_it_was_killed(tmp_path: Path) -> None:
    program = """
import sys, time
from contextlib import ExitStack
from pathlib import Path
from tests.support.faults.disks import mounted
with ExitStack() as stack:
    print(mounted(stack, Path(sys.argv[1]), 1), flush=True)
    time.sleep(3600)
"""
    with subprocess.Popen(
        [*dying_with(os.getpid()), sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        refused = run.stdout.readline().strip()
        if refused == "None":
            assert tmp_path.is_mount()
        run.kill()
    deadline = time.monotonic() + PATIENCE_S
    while tmp_path.is_mount():
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.02)
    if refused != "None":
        pytest.skip(f"no small disk can be mounted: {refused}")
