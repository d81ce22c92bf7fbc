"""The migrations make the schema that the code expects, once, and refuse one they do not know."""

import ast
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

from cli.terminal.exits import Exit
from shared.adapters.sql.engine.access_schema import metadata
from shared.adapters.sql.engine.migrate import HEAD, TABLES_FILE, upgrade, upgrade_sqlite
from shared.adapters.sql.engine.sqlite import sqlite_engine
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.errors import Unusable
from tests.support.database.sqlite_tables import script
from tests.support.later_release import LATER, revisions

ROOT = Path(__file__).resolve().parents[2]


def migrated(path: Path) -> Path:
    """A file that every migration was applied to, one after the other."""
    engine = sqlite_engine(path)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE not_ours (id)")  # only an empty file is made without the migrations
        upgrade(connection)
        connection.exec_driver_sql("DROP TABLE not_ours")
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


def test_script_for_an_empty_file_is_that_of_the_metadata() -> None:
    assert TABLES_FILE.read_text("utf-8") == script(), "write it anew: python -m tests.support.database.sqlite_tables"


@pytest.mark.parametrize("made", [migrated, made_in_one_go])
def test_upgrading_again_changes_nothing(tmp_path: Path, made: Callable[[Path], Path]) -> None:
    path = made(tmp_path / "a.db")
    before = path.read_bytes()
    made_in_one_go(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["a?b", "50%20off", "a#b"])
def test_folder_name_with_signs_of_urls_holds_its_database(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    made_in_one_go(folder / "a.db")
    assert list(tmp_path.iterdir()) == [folder]
    assert rows(folder / "a.db") == {"alembic_version": [(HEAD,)]}


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
        connection.execute("UPDATE alembic_version SET version_num = ?", (LATER,))
        connection.commit()
    with pytest.raises(Unusable, match=f"{LATER}.*newer Orbweaver"):
        asyncio.run(SqliteStore.open(path))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(LATER,)]


def test_head_is_the_newest_migration_and_each_is_named_as_its_file() -> None:
    """Databases of development versions are known by a bare number. Alembic takes the beginning of a name for it, so
    no such database may reach Alembic."""
    assert revisions()[-1] == HEAD
    assert {path.stem for path in (ROOT / "alembic" / "versions").glob("*.py")} == set(revisions())
    for number, revision in enumerate(revisions(), 1):
        assert re.fullmatch(f"{number:04}_[a-z_]{{1,27}}", revision), "alembic_version holds 32 characters"


def test_migrations_depend_on_nothing_that_may_change() -> None:
    """A migration stays as it was released, whatever becomes of the tables that the program knows."""
    for path in (ROOT / "alembic" / "versions").glob("*.py"):
        imported = {
            node.module if isinstance(node, ast.ImportFrom) else name.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in node.names
        }
        assert imported <= {"alembic", "sqlalchemy"}, path


def of_development(folder: Path, schema: str) -> list[Path]:
    """Make the folder one of a crawl and of a cluster at once, both from before the first release."""
    (folder / "spec.json").write_text('{"seeds":[{"url":"http://a.test/"}]}')
    (folder / "cluster.json").write_text('{"database":"cluster.db","key_shown_at":"then"}')
    databases = [made_in_one_go(folder / name) for name in ("crawl.db", "cluster.db")]
    for path in databases:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE alembic_version SET version_num = ?", (schema,))
            connection.commit()
    return databases


@pytest.mark.parametrize(
    "command",
    [
        "crawl http://a.test/ --out DIR",
        "show DIR",
        "export pages DIR",
        "warc DIR http://a.test/",
        "up --dir DIR --masters 1 --workers 1 --http 127.0.0.1:0",
        "migrate --database DIR/cluster.db",
        "migrate --check --database DIR/cluster.db",
        "db check --database DIR/cluster.db",
        "db copy --from DIR/cluster.db --to DIR/new.db",
        "key create --dir DIR",
    ],
)
def test_data_from_before_the_first_release_is_refused_and_left_as_it_is(tmp_path: Path, command: str) -> None:
    databases = of_development(tmp_path, "0015")
    before = [rows(path) for path in databases]
    orb = [sys.executable, "-m", "orb", *command.replace("DIR", str(tmp_path)).split()]
    done = subprocess.run(orb, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == Exit.ENVIRONMENT, done.stderr
    (said,) = (line for line in done.stderr.splitlines() if "before the first release" in line)
    assert "(schema 0015)" in said
    assert "use a new folder or database" in said
    assert [rows(path) for path in databases] == before


def test_crawl_starts_over_in_a_folder_from_before_the_first_release(tmp_path: Path) -> None:
    """Its only seed is a private address, so the crawl ends at once without a page."""
    path, _ = of_development(tmp_path, "0015")
    orb = [sys.executable, "-m", "orb", "crawl", "--fresh", "http://127.0.0.1:1/", "--out", str(tmp_path)]
    done = subprocess.run(orb, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == Exit.NOTHING_FETCHED, done.stderr
    assert rows(path)["alembic_version"] == [(HEAD,)]


@pytest.mark.parametrize("schema", [f"{number:04}" for number in range(1, 16)])
def test_schema_of_development_is_never_taken_for_a_released_one(tmp_path: Path, schema: str) -> None:
    path, _ = of_development(tmp_path, schema)
    with pytest.raises(Unusable, match=rf"before the first release \(schema {schema}\)"):
        asyncio.run(SqliteStore.open(path))


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
