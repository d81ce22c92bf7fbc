"""What commands say of a database that does not answer, refuses them or is full; and how the first key is made."""

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from cli.admin import database as database_command
from cli.admin import key
from cli.admin import key_issue as issuing
from cli.admin.key_issue import first_key, unreached
from cli.local import logs, up
from cli.main import main
from cli.terminal.exits import Exit
from shared.domain.errors import DiskFull, ResourceFull, Transient, Unusable
from shared.domain.ops.access import ApiKey, digest_of

NO_ROOM = ResourceFull(
    "the disk that holds the database is full: make room there, and all goes on (database or disk is full)"
)
FULL = DiskFull("the disk that holds the database is full: make room there, and all goes on (disk I/O error)")


class Refused(Exception):
    """As the server's answer with this code."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("no")
        self.sqlstate = sqlstate


def because(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("database", "place"),
    [
        ("postgresql://orb@db/orb", "db, port 5432,"),
        ("postgresql://orb@db:6000/orb", "db, port 6000,"),
        ("postgresql:///orb", "this machine's socket, port 5432,"),
        ("postgresql://orb@db1:5432,db2:5433/orb", "db1:5432,db2:5433,"),
    ],
)
def test_a_database_that_does_not_answer_is_told_with_its_place(database: str, place: str) -> None:
    said = unreached(database, because(Transient("the connection was refused"), ConnectionRefusedError()))
    assert said.startswith(f"the connection was refused. The database is {database}: ")
    assert f"check that PostgreSQL listens at {place} and that" in said


@pytest.mark.parametrize(
    ("error", "is_shut_out"),
    [
        *((because(Transient("no"), Refused(code)), code == "08006") for code in ("08006", "25006", "55P03")),
        *((because(Unusable("no"), Refused(code)), code != "42501") for code in ("28P01", "3D000", "42501")),
        (because(Unusable("a newer schema"), ValueError("no such revision")), False),
        (Unusable("the database holds no tables of Orbweaver"), False),
    ],
)
def test_only_who_is_shut_out_is_told_to_look_at_the_servers_door(error: Exception, *, is_shut_out: bool) -> None:
    said = unreached("postgresql://orb@db/orb", error, "--database")
    assert said.startswith(f"{error}. The database is postgresql://orb@db/orb, from --database")
    assert ("check that PostgreSQL listens" in said) == is_shut_out
    assert ("run the same command again" in said) == (is_shut_out or isinstance(error, Transient))


@pytest.mark.parametrize("words", [("key", "create"), ("db", "check"), ("migrate",)])
def test_command_without_database_names_the_setting_and_creates_none(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen there
        port = nobody.getsockname()[1]
        away = f"postgresql://orb:secret@127.0.0.1:{port}/orb"
        assert main([*words, "--database", away]) == Exit.ENVIRONMENT
        told = capsys.readouterr().err
        assert f"The database is postgresql://orb@127.0.0.1:{port}/orb, from --database: check that" in told
        assert f"listens at 127.0.0.1, port {port}," in told
        monkeypatch.setenv("ORB_DATABASE", away)
        assert main([*words]) == Exit.ENVIRONMENT
        assert ", from ORB_DATABASE: check that" in capsys.readouterr().err
    if words == ("migrate",):  # which makes one
        return
    assert main([*words, "--database", "nosuch.db"]) in (Exit.USAGE, Exit.ENVIRONMENT)
    told = capsys.readouterr().err
    assert f"there is no database {tmp_path / 'nosuch.db'}: name the one that the masters use" in told
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_a_file_of_settings_names_is_told_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "orb.yaml"
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        settings.write_text(f"\ndatabase: postgresql://orb@127.0.0.1:{nobody.getsockname()[1]}/orb\n")
        assert main(["db", "check", "--config", str(settings)]) == Exit.ENVIRONMENT
    assert f"/orb, from {settings}:2: check that" in capsys.readouterr().err


def test_of_a_copy_the_side_that_does_not_answer_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The log of this process would go to a stream that ends with the test.
    monkeypatch.setattr("cli.admin.database.configure_logging", lambda *_: None)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        away = f"postgresql://orb:secret@127.0.0.1:{nobody.getsockname()[1]}/orb"
        here = str(tmp_path / "here.db")
        for source, target, by in ((away, here, "--from"), (here, away, "--to")):
            assert main(["db", "copy", "--from", source, "--to", target]) == Exit.ENVIRONMENT
            told = capsys.readouterr().err
            assert f"/orb, from {by}: check that" in told
            assert "secret" not in told
    assert list(tmp_path.iterdir()) == []


def raising(error: Exception) -> Any:
    async def refused(*_: object) -> NoReturn:
        raise error

    return refused


@pytest.mark.parametrize("error", [NO_ROOM, FULL])
@pytest.mark.parametrize("form", ["{}", "sqlite:{}", "sqlite://{}"])
def test_a_file_without_room_is_told_by_its_path_with_what_to_do(
    error: Exception,
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "c.db"
    file.touch()
    monkeypatch.setattr(key, "new_key", raising(error))
    monkeypatch.setattr(database_command, "examined", raising(error))
    for words in (("key", "create"), ("db", "check")):
        assert main([*words, "--database", form.format(file)]) == Exit.ENVIRONMENT
        assert capsys.readouterr().err == (
            f"orb: the disk of the database {file} is full: make room there, and run the same command again.\n"
        )


def test_a_cluster_whose_file_has_no_room_is_told_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "orb.cluster"
    monkeypatch.setattr(up, "first_key", raising(NO_ROOM))
    monkeypatch.setattr(logs, "log_to", lambda folder: None)
    assert main(["up", "--dir", str(folder), "--http", "127.0.0.1:0"]) == Exit.ENVIRONMENT
    assert f"the disk of the database {folder / 'cluster.db'} is full: make room" in capsys.readouterr().err
    assert not folder.exists()


def test_a_server_without_room_is_told_without_its_password() -> None:
    said = unreached("postgresql://orb:secret@db/orb", NO_ROOM)
    assert said == (
        "the disk of the database postgresql://orb@db/orb is full: make room there, and run the same command again."
    )


def test_a_file_that_is_locked_or_none_is_told_by_its_path() -> None:
    for error, then in ((Transient("it is locked"), ": run the same command again."), (Unusable("it is none"), ".")):
        assert unreached("/var/c.db", error, "--dir") == f"{error}. The database is /var/c.db, from --dir{then}"


def test_key_of_the_command_has_a_free_name_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = str(tmp_path / "c.db")
    assert asyncio.run(first_key(database)) is not None
    words = ["key", "create", "--database", database]
    assert [main(words), main(words), main([*words, "--name", "ci", "--role", "viewer"])] == [Exit.OK] * 3
    assert len(set(capsys.readouterr().out.split())) == 3
    assert main([*words, "--name", "ci"]) == Exit.USAGE
    assert "there is a key 'ci' already: choose another --name." in capsys.readouterr().err
    for name in ("No Name", "", "a" * 64, "-a"):
        assert main([*words, f"--name={name}"]) == Exit.USAGE
        assert "lower-case letters, digits and inner hyphens" in capsys.readouterr().err


# --- the first key ----------------------------------------------------------------------------------------------------


class Kept:
    """A catalog. Of the tries to open it and to write to it, those that are numbered end as they are told to."""

    def __init__(self, opened: Mapping[int, Exception], added: Mapping[int, Exception]) -> None:
        self.keys: list[ApiKey] = []
        self.opened = self.added = 0
        self._opened, self._added = opened, added

    @asynccontextmanager
    async def open(self, database: str) -> AsyncIterator["Kept"]:
        self.opened += 1
        if self.opened in self._opened:
            raise self._opened[self.opened]
        yield self

    async def add_first_key(self, key: ApiKey) -> bool:
        self.added += 1
        error = self._added.get(self.added)
        if isinstance(error, ResourceFull):
            raise error
        if not self.keys:
            self.keys.append(key)
        if error is not None:
            raise error
        return key in self.keys


def run(story: Coroutine[Any, Any, str | None]) -> str | None:
    return asyncio.run(asyncio.wait_for(story, 30))


LOST = Transient("the answer was lost", retry_in=0.0)


def test_a_first_key_whose_answer_was_lost_is_the_one_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept({2: LOST}, {1: LOST, 2: LOST})
    monkeypatch.setattr(issuing, "_catalog", kept.open)
    shown = run(first_key("c.db"))
    assert shown is not None
    assert [each.digest for each in kept.keys] == [digest_of(shown)]
    assert run(first_key("c.db")) is None


def test_start_does_not_wait_for_a_failing_or_full_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = dict.fromkeys(range(1, 100), LOST)
    for kept, added in ((Kept({1: LOST}, {}), 0), (Kept({}, {1: NO_ROOM}), 1), (Kept({}, every), 5)):
        monkeypatch.setattr(issuing, "_catalog", kept.open)
        with pytest.raises(Transient):
            run(first_key("c.db"))
        assert kept.added == added
