"""A master stopped inside a SQLite transaction is ended by the next leader, and no other process is."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from api.members.eviction import WAITED_S, Eviction
from shared.adapters.sql.engine.lock_holder import lock_holder
from shared.adapters.sql.engine.sqlite import SqliteThreads
from shared.runtime.supervise import dying_with

_HOLDS = """
import os, signal, sqlite3, sys
from pathlib import Path
from shared.adapters.sql.engine.lock_holder import write_note
path = Path(sys.argv[1])
if sys.argv[2] == "noted":
    write_note(path, "former", 1)
connection = sqlite3.connect(path, isolation_level=None)
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("BEGIN IMMEDIATE")
connection.execute("INSERT INTO t VALUES (1)")
print("holds", flush=True)
if sys.argv[3] == "stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
sys.stdin.read()
"""


@contextmanager
def holder(path: Path, noted: str = "noted", stopped: str = "stopped") -> Iterator["subprocess.Popen[str]"]:
    """A process inside a transaction on the file."""
    command = [*dying_with(os.getpid()), sys.executable, "-c", _HOLDS, str(path), noted, stopped]
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        if stopped == "stopped":
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Path]:
    """A file in WAL mode with a table, open in this process as in a master."""
    path = tmp_path / "orb.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (n INTEGER)")
    yield path
    connection.close()


def eviction(path: Path, *, lives: bool = False, leads: bool = True, waited_s: float = WAITED_S) -> Eviction:
    return Eviction(path, waited_s=lambda: waited_s, leads=lambda: leads, lives=lambda member, started: lives)


def test_former_master_stopped_inside_a_transaction_is_killed(database: Path) -> None:
    async def story() -> int:
        threads = SqliteThreads(database)
        try:
            evicting = Eviction(
                database, waited_s=threads.write_waits_s, leads=lambda: True, lives=lambda member, started: False
            )
            watch = asyncio.create_task(evicting.run())
            # Without the eviction the busy timeout ends this write.
            found: int = await threads.write(lambda c: c.exec_driver_sql("SELECT count(*) FROM t").scalar_one())
            watch.cancel()
            return found
        finally:
            await threads.close()

    with holder(database) as process:
        assert asyncio.run(story()) == 0, "what it had begun is rolled back"
        assert process.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("noted", "stopped", "lives", "leads", "waited_s"),
    [
        ("unknown", "stopped", False, True, WAITED_S),
        ("noted", "running", False, True, WAITED_S),
        ("noted", "stopped", True, True, WAITED_S),
        ("noted", "stopped", False, False, WAITED_S),
        ("noted", "stopped", False, True, 0.0),
    ],
    ids=["no master", "running", "still registered", "not leading", "nothing waits"],
)
def test_holder_that_may_be_another_is_left_alone(
    database: Path, noted: str, stopped: str, lives: bool, leads: bool, waited_s: float
) -> None:
    with holder(database, noted, stopped) as process:
        assert not asyncio.run(eviction(database, lives=lives, leads=leads, waited_s=waited_s).once())
        assert process.poll() is None
        found = lock_holder(database)
        assert found is not None
        assert found.pid == process.pid


def test_asking_for_the_holder_keeps_the_locks_of_the_asker(database: Path) -> None:
    """A descriptor of the file that this process closed would drop its own locks."""
    connection = sqlite3.connect(database, isolation_level=None, timeout=0)
    other = sqlite3.connect(database, isolation_level=None, timeout=0)
    connection.execute("BEGIN IMMEDIATE")
    found = lock_holder(database)
    assert found is not None
    assert found.pid == os.getpid()
    assert not asyncio.run(eviction(database).once())
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    connection.execute("ROLLBACK")
    assert lock_holder(database) is None
    connection.close()
    other.close()


def test_note_of_an_earlier_process_of_the_same_number_is_no_master(database: Path) -> None:
    with holder(database, "unknown") as process:
        (database.parent / f"{database.name}-master-{process.pid}").write_bytes(
            b'{"member":"former","started_at_ms":1,"pid":%d,"ticks":"1","boot":"another"}' % process.pid
        )
        found = lock_holder(database)
        assert found is not None
        assert (found.note, found.stopped) == (None, True)
        assert not asyncio.run(eviction(database).once())
