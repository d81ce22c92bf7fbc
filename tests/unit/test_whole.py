"""What a command was asked for: a file is there whole or not at all, and an error is a sentence."""

from pathlib import Path

import pytest

from cli.terminal.atomic_output import written_whole
from cli.terminal.exits import Environment, Usage


def test_a_file_appears_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"of before")
    with written_whole(path) as out:
        out.write(b"all")
        assert path.read_bytes() == b"of before"
    assert path.read_bytes() == b"all"


def test_what_was_begun_and_failed_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with written_whole(tmp_path / "out") as out:
            out.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_begun_or_ended_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Usage, match=r"cannot write .*: No such file or directory"), written_whole(tmp_path / "a" / "b"):
        pass
    (tmp_path / "folder").mkdir()
    with pytest.raises(Environment, match=r"cannot write all of .*folder"), written_whole(tmp_path / "folder") as out:
        out.write(b"all")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
