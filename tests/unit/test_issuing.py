"""What commands say of a database that does not answer."""

import socket
from pathlib import Path

import pytest

from cli.exits import Exit
from cli.issuing import unreached
from cli.main import main
from shared.domain.errors import NoRoom, Transient


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
    said = unreached(database, Transient("the connection was refused"))
    assert said.startswith(f"the connection was refused. The database is {database}: ")
    assert f"check that PostgreSQL listens at {place} and that" in said


@pytest.mark.parametrize("words", [("key", "create"), ("db", "check")])
def test_a_command_that_finds_no_database_says_which_setting_names_it_and_makes_none(
    words: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen there
        port = nobody.getsockname()[1]
        away = f"postgresql://orb:secret@127.0.0.1:{port}/orb"
        assert main([*words, "--database", away]) == Exit.ENVIRONMENT
        told = capsys.readouterr().err
        assert f"The database is postgresql://orb@127.0.0.1:{port}/orb by --database" in told
        assert f"listens at 127.0.0.1, port {port}," in told
        monkeypatch.setenv("ORB_DATABASE", away)
        assert main([*words]) == Exit.ENVIRONMENT
        assert "ORB_DATABASE: check that" in capsys.readouterr().err
    assert main([*words, "--database", "nosuch.db"]) in (Exit.USAGE, Exit.ENVIRONMENT)
    told = capsys.readouterr().err
    assert f"there is no database {tmp_path / 'nosuch.db'}: name the one that the masters are told" in told
    assert list(tmp_path.iterdir()) == []


def test_a_database_without_room_is_told_with_what_to_do() -> None:
    for database in ("postgresql://orb@db/orb", "/var/orb/orb.db"):
        said = unreached(database, NoRoom("the disk is full, and all goes on"))
        assert said == f"the disk of the database {database} is full: make room there, and run the same command again."
