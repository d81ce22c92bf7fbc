"""What a fault turns is turned where the product looks: its wall clock, its disks, and the database's disk."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import asyncpg

from tests.support.engines.postgres import PostgresServer
from tests.support.faults.engine_faults import FLUSH_MS
from tests.support.faults.member_controls import MemberControls
from tests.support.processes.orb_command import ROOT

MEMBER = """
import os, sys, time
from pathlib import Path
from sqlalchemy import text
from shared.adapters.sql.engine.sqlite import sqlite_engine
from shared.adapters.local.clock import SystemClock
from tests.support.faults.member_controls import MemberControls
MemberControls(Path(sys.argv[1])).install()
clock, began = SystemClock(), time.monotonic()
elapsed = clock.elapsed()
with open(sys.argv[2], "wb") as file:
    os.fdatasync(file.fileno())
synced = time.monotonic()
engine = sqlite_engine(Path(sys.argv[2] + ".db"))
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE t (n)"))
with engine.begin() as connection:
    connection.execute(text("INSERT INTO t VALUES (1)"))
committed = time.monotonic()
with engine.begin() as connection:
    connection.execute(text("SELECT * FROM t")).all()
read = time.monotonic()
print(clock.unix_ms() - time.clock_gettime(time.CLOCK_REALTIME) * 1000, synced - began)
print(committed - synced, read - committed)
"""

WRITER = """
import asyncio, sys
from pathlib import Path
import structlog
from sqlalchemy import text
from shared.adapters.sql.engine.sqlite import SqliteThreads
from shared.domain.errors import ResourceFull
from tests.support.faults.member_controls import MemberControls
dials = MemberControls(Path(sys.argv[1]))
dials.install()
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))

async def main():
    threads = SqliteThreads(Path(sys.argv[2]))
    rows = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)"
        " INSERT INTO t SELECT zeroblob(1000) FROM n"
    )
    fewer = "DELETE FROM t WHERE rowid > 400"

    async def tried(statement):
        try:
            await threads.write(lambda c: c.execute(text(statement)).close())
        except ResourceFull:
            return "refused"
        return "taken"

    async def there():
        return await threads.read(lambda c: c.execute(text("SELECT count(*) FROM t")).scalar())

    await tried("CREATE TABLE t (b)")
    for full, statement in ((False, rows), (True, rows), (True, fewer), (True, rows), (False, rows)):
        dials.turn(full=full)
        print(await tried(statement), await there(), threads.disk_full(), flush=True)
    await threads.close()

asyncio.run(main())
"""


def test_a_members_wall_clock_and_its_disks_are_where_they_were_turned_to(tmp_path: Path) -> None:
    dials = MemberControls(tmp_path / "dials")
    dials.turn(clock_s=-60.0, sync_s=0.3, commit_s=2.0)
    said = subprocess.run(
        [sys.executable, "-c", MEMBER, tmp_path / "dials", tmp_path / "file"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    off_ms, synced_s, committed_s, read_s = map(float, said.split())
    assert -90_000 < off_ms < -30_000  # the two clocks are looked at one after the other
    assert synced_s >= 0.3
    assert committed_s >= 2.0
    assert read_s < committed_s


def test_file_that_may_not_grow_refuses_new_pages_until_allowed(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", WRITER, tmp_path / "dials", tmp_path / "file.db"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said.splitlines() == [
        "taken 500 False", "refused 500 True", "taken 400 True", "refused 400 True", "taken 900 True",
    ]  # fmt: skip


def test_a_turn_is_seen_by_whoever_looks_and_holds_until_the_next(tmp_path: Path) -> None:
    hand, member = MemberControls(tmp_path / "dials"), MemberControls(tmp_path / "dials")
    assert (member.clock_s, member.sync_s) == (0.0, 0.0)
    hand.turn(clock_s=60.0)
    assert (member.clock_s, member.sync_s) == (60.0, 0.0)
    hand.turn(sync_s=0.5)
    assert (MemberControls(tmp_path / "dials").clock_s, member.sync_s) == (0.0, 0.5)
    hand.turn(commit_s=0.25)
    assert (member.sync_s, member.commit_s, member.full) == (0.0, 0.25, False)
    hand.turn(full=True)
    assert (member.commit_s, member.full) == (0.0, True)


def test_slow_database_delays_every_commit_until_reset(postgres_server: PostgresServer) -> None:
    async def slow(connection: asyncpg.Connection) -> bool:
        """Whether each of five commits took its time: one does on any machine, now and then."""
        took_s = []
        for _ in range(5):
            began = time.monotonic()
            await connection.execute("INSERT INTO t VALUES (1)")
            took_s.append(time.monotonic() - began)
        return min(took_s) >= FLUSH_MS / 1000

    async def run() -> None:
        connection = await asyncpg.connect(await postgres_server.database(empty=True))
        try:
            await connection.execute("CREATE TABLE t (n integer)")
            postgres_server.slow_down(FLUSH_MS)
            try:
                async with asyncio.timeout(30):  # it reads its configuration when it gets to it
                    while not await slow(connection):
                        pass
            finally:
                postgres_server.slow_down(0)
            async with asyncio.timeout(30):
                while await slow(connection):
                    pass
        finally:
            await connection.close()

    asyncio.run(run())
