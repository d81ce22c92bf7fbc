"""The migrations make the schema that the code expects, once, and refuse one they do not know."""

import asyncio
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from shared.adapters.sql.engine.access_schema import metadata
from shared.adapters.sql.engine.migrate import HEAD, upgrade, upgrade_sqlite
from shared.adapters.sql.engine.sqlite import sqlite_engine
from shared.adapters.sql.frontier.store import SqliteStore
from shared.adapters.sql.frontier.url_compression import without_host
from shared.domain.errors import Unusable

ROOT = Path(__file__).resolve().parents[2]


def migrated(path: Path) -> Path:
    """A file that every migration was applied to, one after the other."""
    engine = sqlite_engine(path)
    with engine.begin() as connection:
        upgrade(connection, "0001")
    upgrade_sqlite(engine)
    engine.dispose()
    return path


def made_in_one_go(path: Path) -> Path:
    """A file that was empty when it was opened."""
    engine = sqlite_engine(path)
    upgrade_sqlite(engine)
    engine.dispose()
    return path


def rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """The rows of every table that has any."""
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: found for name in tables if (found := connection.execute(f"SELECT * FROM {name}").fetchall())}


def statements(path: Path) -> dict[str, tuple[str, ...]]:
    """Every table's and index's own text, by name: its clauses in any order, without spacing and quotes."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {
        name: tuple(sorted(re.sub(r'[\s"()]+', " ", clause).strip() for clause in sql.split(",")))
        for name, sql in rows
        if name != "sqlite_sequence"
    }


def words(path: Path) -> dict[str, list[str]]:
    return {name: sorted(" ".join(clauses).split()) for name, clauses in statements(path).items()}


def test_the_migrations_make_the_tables_of_the_metadata(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{migrated(tmp_path / 'a.db')}", poolclass=NullPool)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_what_a_comparison_of_metadata_does_not_see_is_the_same_too(tmp_path: Path) -> None:
    """WITHOUT ROWID, AUTOINCREMENT and the conditions of partial indexes stand only in the statements themselves."""
    by_migration = words(migrated(tmp_path / "a.db"))
    in_one_go = words(made_in_one_go(tmp_path / "b.db"))
    assert by_migration == in_one_go
    assert rows(tmp_path / "a.db") == rows(tmp_path / "b.db") == {"alembic_version": [(HEAD,)]}
    for table in ("urls", "queues", "fetches", "producers"):
        assert {"WITHOUT", "ROWID"} <= set(by_migration[table]), table
    for table in ("crawls", "dead_letters"):
        assert "AUTOINCREMENT" in by_migration[table], table
    for index in ("urls_queued", "urls_waiting", "urls_seeds", "queues_ready", "crawls_name", "crawls_uncollected"):
        assert "WHERE" in by_migration[index], index


@pytest.mark.parametrize("made", [migrated, made_in_one_go])
def test_upgrading_again_changes_nothing(tmp_path: Path, made: Callable[[Path], Path]) -> None:
    path = made(tmp_path / "a.db")
    before = path.read_bytes()
    made_in_one_go(path)
    assert path.read_bytes() == before


def test_new_file_is_made_without_alembic(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from shared.adapters.sql.engine.sqlite import sqlite_engine;"
        " from shared.adapters.sql.engine.migrate import upgrade_sqlite;"
        " upgrade_sqlite(sqlite_engine(Path(sys.argv[1])));"
        " print(*sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.db")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "alembic" not in done.stdout.split()


def test_a_schema_newer_than_the_program_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = migrated(tmp_path / "a.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    with pytest.raises(Unusable, match=r"9999.*newer Orbweaver"):
        asyncio.run(SqliteStore.open(path))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]


def test_a_cluster_older_than_0009_goes_on_keeping_urls_as_masters_of_its_release_read_them(tmp_path: Path) -> None:
    """What such a master sends is what the release before sends: it names no column that came since."""
    path = tmp_path / "a.db"
    engine = sqlite_engine(path)
    with engine.begin() as connection:
        upgrade(connection, "0008")
        connection.exec_driver_sql(
            "INSERT INTO cluster (id, partitions, epoch, public_suffixes, created_at_ms) VALUES (1, 4, 1, '', 0)"
        )
    upgrade_sqlite(engine)
    with engine.begin() as connection:
        assert not without_host(connection)
        connection.exec_driver_sql("DELETE FROM cluster")
    engine.dispose()
    asyncio.run(_made_in(path))
    engine = sqlite_engine(path)
    with engine.begin() as connection:
        assert without_host(connection), "one that no master of that release can be part of"
    engine.dispose()


async def _made_in(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.open_cluster(4, "", 0)
    await store.close()


_OPEN = """
import asyncio, sys
from pathlib import Path
from shared.adapters.sql.frontier.store import SqliteStore
async def story():
    store = await SqliteStore.open(Path(sys.argv[1]))
    print(await store.open_cluster(int(sys.argv[2]), "", 0), flush=True)
    await store.close()
sys.stdin.readline()
asyncio.run(story())
"""


def test_processes_that_open_a_new_database_at_once_agree(tmp_path: Path) -> None:
    openers = [
        subprocess.Popen(
            [sys.executable, "-c", _OPEN, str(tmp_path / "a.db"), str(partitions)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for partitions in (4, 8, 16)
    ]
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("go\n")
        opener.stdin.flush()
    answers = [opener.communicate(timeout=60) for opener in openers]
    assert [opener.returncode for opener in openers] == [0, 0, 0], answers
    assert len({out for out, _ in answers}) == 1, answers
    assert words(tmp_path / "a.db") == words(migrated(tmp_path / "b.db"))
