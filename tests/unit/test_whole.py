"""What a command was asked for: a file is there whole or not at all, and an error is a sentence."""

import errno
import fcntl
import os
from contextlib import ExitStack, suppress
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


def test_a_linked_file_is_written_and_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "file").write_bytes(b"of before")
    with written_whole(tmp_path / "link") as out:
        out.write(b"all")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"all"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with written_whole(tmp_path / "pipe") as out:
        out.write(b"all")
    assert os.read(reader, 10) == b"all"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "pipe"]


@pytest.mark.parametrize("below", ["file/x", "x" * 300, "loop"])
def test_a_place_that_no_file_can_have_is_one_sentence(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"of before")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(Usage, match=r"cannot write .*"), written_whole(tmp_path / below):
        pass


def test_what_was_begun_and_failed_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with written_whole(tmp_path / "out") as out:
            out.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failed", [False, True])
def test_file_that_another_command_writes_is_refused(failed: bool, tmp_path: Path) -> None:
    """The second command truncated the file that the first one then published with holes."""
    place = tmp_path / "out"

    def write() -> None:
        with written_whole(place) as out:
            out.write(b"first" * 100_000)
            with pytest.raises(Environment, match=r"another command is writing .*out: wait"), written_whole(place):
                pass
            if failed:
                raise KeyboardInterrupt

    if failed:
        with pytest.raises(KeyboardInterrupt):
            write()
        assert list(tmp_path.iterdir()) == []
    else:
        write()
        assert place.read_bytes() == b"first" * 100_000
    with written_whole(place) as out:
        out.write(b"second")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("out", b"second")]


@pytest.mark.parametrize("failed", [False, True])
def test_file_begun_when_another_command_ends_is_not_mixed_with_its(
    failed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, lock = tmp_path / "out", fcntl.flock
    first = ExitStack()
    first.enter_context(written_whole(place)).write(b"first" * 100_000)

    def end_before(fd: int, operation: int) -> None:
        """End the first command between the second one's `open` and `flock`."""
        monkeypatch.setattr(fcntl, "flock", lock)
        with suppress(KeyboardInterrupt), first:
            if failed:
                raise KeyboardInterrupt
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", end_before)
    with written_whole(place) as out:
        out.write(b"second")
        assert not place.exists() if failed else place.read_bytes() == b"first" * 100_000
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("out", b"second")]


def test_rest_of_a_killed_command_is_used_again_and_a_link_is_not(tmp_path: Path) -> None:
    (tmp_path / ".out.part").write_bytes(b"of the killed command")
    with written_whole(tmp_path / "out") as out:
        out.write(b"all")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("out", b"all")]
    (tmp_path / ".out.part").symlink_to("out")
    with pytest.raises(Usage, match="cannot write"), written_whole(tmp_path / "out"):
        pass
    assert (tmp_path / "out").read_bytes() == b"all"


def test_what_cannot_be_begun_or_ended_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Usage, match=r"cannot write .*: No such file or directory"), written_whole(tmp_path / "a" / "b"):
        pass
    with pytest.raises(Environment, match=r"cannot write all of .*folder"), written_whole(tmp_path / "folder"):
        (tmp_path / "folder").mkdir()
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_output_that_is_a_folder_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    begun = []
    with pytest.raises(Usage, match=r"cannot write .*: it is a folder"), written_whole(tmp_path):
        begun.append(tmp_path)
    assert begun == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_file_is_written_where_files_cannot_be_locked(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_locks(held: int, operation: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", without_locks)
    with written_whole(tmp_path / "out") as out:
        out.write(b"all")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("out", b"all")]
