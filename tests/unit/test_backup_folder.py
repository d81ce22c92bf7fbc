"""The folder of a backup: there whole or not at all, and of one command at a time."""

import os
from pathlib import Path

import pytest

from cli.admin.backup_folder import Manifest, NewBackup, Part, new_backup
from cli.terminal.exits import Environment, Usage


def fill(backup: NewBackup) -> None:
    parts: list[Part] = []
    for file in ("reports.gz", "items.gz", "events.gz", "tables/urls.gz"):
        with backup.part(file) as part:
            part.add(file)
            parts.append(part.end())
    reports, items, events, urls = parts
    backup.finish(
        Manifest(
            id="1", cluster="c", taken_at_ms=1, schema="1", store="sqlite", epoch=1, partitions=1,
            tables={"urls": urls}, numbers={}, reports=reports, items=items, events=events,
        )
    )  # fmt: skip


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


WHOLE = ["b/events.gz", "b/items.gz", "b/manifest.json", "b/reports.gz", "b/tables/urls.gz"]


def test_backup_is_private_and_replaces_the_rest_of_a_killed_command(tmp_path: Path) -> None:
    rest = tmp_path / ".b.part"
    (rest / "tables").mkdir(parents=True)
    for name in ("lock", "old.gz", "tables/old.gz"):
        (rest / name).touch()
    with new_backup(tmp_path / "b") as backup:
        fill(backup)
        assert not (tmp_path / "b").exists()
    assert files(tmp_path) == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert os.stat(tmp_path / "b").st_mode & 0o777 == 0o700
    with pytest.raises(Usage, match="already exists"), new_backup(tmp_path / "b"):
        pass
    assert files(tmp_path) == WHOLE


def test_backup_that_failed_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with new_backup(tmp_path / "b") as backup:
            fill(backup)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_folder_that_another_backup_writes_is_refused_and_kept(tmp_path: Path) -> None:
    """Two commands removed the files of each other."""
    with new_backup(tmp_path / "b") as backup:
        fill(backup)
        busy = rf"another `orb backup` is at work in .*b\.part \(process {os.getpid()}\); let it finish"
        with pytest.raises(Environment, match=busy), new_backup(tmp_path / "b"):
            pass
    assert files(tmp_path) == WHOLE


def test_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(Environment, match=r"cannot write the backup .*Not a directory"),
        new_backup(tmp_path / "file/b"),
    ):
        pass
    assert files(tmp_path) == ["file"]


def test_link_at_the_place_of_the_unfinished_backup_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").touch()
    (tmp_path / ".b.part").symlink_to("mine")
    with pytest.raises(Environment, match=r"\.b\.part is a link; remove it"), new_backup(tmp_path / "b"):
        pass
    assert (tmp_path / "mine/file").exists()
