"""The folder of a cluster: nobody else's files are touched, and one database belongs to it for good."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.local.cluster_folder import ClusterFolder, Remembered, database_of, shown
from cli.local.crawl_folder import CrawlFolder
from cli.terminal.exits import Environment, Usage
from shared.adapters.local.private_folder import closing
from shared.adapters.objects.local import LocalSegments

URL = "postgresql://orb:secret@db.example:5432/orb?sslmode=require&password=secret"
SHOWN = "postgresql://orb@db.example:5432/orb?sslmode=require"


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    made = ClusterFolder(tmp_path / "orb.cluster")
    made.make()
    return made


def test_an_empty_or_own_folder_is_taken(folder: ClusterFolder) -> None:
    with folder.held():
        pass
    folder.make()
    folder.remember(Remembered(database="cluster.db"))
    (folder.path / "notes").touch()
    folder.make()


def test_a_folder_with_other_files_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    with pytest.raises(Usage, match=r"files that are no cluster's \(letters\)"):
        ClusterFolder(tmp_path).make()
    assert [entry.name for entry in tmp_path.iterdir()] == ["letters"]


@pytest.fixture
def open_to_all() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_to_all")
def test_a_new_cluster_folder_is_closed_to_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ClusterFolder(tmp_path / "a" / "orb.cluster")
    folder.make()
    assert [path.stat().st_mode & 0o777 for path in (folder.path, folder.path.parent)] == [0o700, 0o700]
    folder.make()
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("open_to_all")
def test_a_cluster_folder_that_others_may_read_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a cluster"
    path.mkdir()
    ClusterFolder(path).make()
    assert f"other users of this machine may read {path}" in capsys.readouterr().err
    path.chmod(0o700)
    ClusterFolder(path).make()
    assert capsys.readouterr().err == ""
    assert closing(tmp_path / "a cluster") is None
    path.chmod(0o750)
    assert closing(path) == f"chmod 700 '{path}'"


@pytest.mark.usefixtures("open_to_all")
def test_the_folder_of_a_local_crawl_follows_the_umask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CrawlFolder(tmp_path / "out").make()
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755
    LocalSegments(tmp_path / "out" / "archive").create("a.warc.gz")
    assert (tmp_path / "out" / "archive").stat().st_mode & 0o777 == 0o755
    LocalSegments(tmp_path / "private", private=True).create("a.warc.gz")
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700
    assert capsys.readouterr().err == ""


def refused_late(folder: ClusterFolder) -> None:
    folder.remember(Remembered(database="cluster.db"))
    for made in (folder.logs, folder.archive):
        made.mkdir()
    folder.database.touch()
    raise Usage("no")


def test_a_start_that_is_refused_leaves_nothing_that_it_made(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for path in (tmp_path / "a" / "b", tmp_path / "there"):
        folder = ClusterFolder(path)
        folder.make()
        with pytest.raises(Usage, match="no"), folder.held(), folder.begun():
            refused_late(folder)
        assert [entry.name for entry in tmp_path.iterdir() if entry.name != "there"] == []
        assert list((tmp_path / "there").iterdir()) == []
        assert (tmp_path / "there").exists()


def test_disk_without_space_for_etcd_log_is_reported_before_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else etcd ends with a panic, behind a database that was made and a key that was shown."""
    free = [100 << 20]
    monkeypatch.setattr(ClusterFolder, "free_bytes", lambda self: free[0])
    folder = ClusterFolder(tmp_path / "there" / "orb.cluster")
    with pytest.raises(Environment, match=r"only 100 MiB are free on the disk of .* and 160 are needed; .* --dir\."):
        folder.make()
    assert not (tmp_path / "there").exists()
    log = folder.etcd / "data" / "member" / "wal"
    log.mkdir(parents=True)
    folder.remember(Remembered(database="cluster.db"))
    folder.make()
    free[0] = 20 << 20
    ahead = log / "0.tmp"
    ahead.touch()  # there was no room for it

    def refused() -> None:
        with pytest.raises(Environment, match=r"only 20 MiB are free on the disk of .* and 96 are needed"):
            folder.make()

    refused()
    ahead.write_bytes(b"begun, and there was no room for the rest")
    refused()
    with ahead.open("r+b") as file:  # made, and etcd was killed
        os.posix_fallocate(file.fileno(), 0, 64_000_000)
        folder.make()
        later = ahead.rename(log / "1.tmp")  # after the first file of its log was full: a start makes the other one
        refused()
    later.unlink()


def test_a_cluster_that_is_there_outlives_a_start_that_is_refused(folder: ClusterFolder) -> None:
    folder.remember(Remembered(database="cluster.db"))
    folder.database.touch()
    with pytest.raises(Usage, match="no"), folder.held(), folder.begun():
        raise Usage("no")
    assert folder.mark.exists()
    assert folder.database.exists()


def test_a_second_start_is_told_who_is_at_work(folder: ClusterFolder) -> None:
    with (
        folder.held(),
        pytest.raises(Environment, match=rf"another `orb up` is at work in .* \(process {os.getpid()}\)"),
        folder.held(),
    ):
        pass


def test_what_is_remembered_comes_back(folder: ClusterFolder) -> None:
    assert folder.remembered() is None
    kept = Remembered(database=SHOWN, http=(8081, 8090), nats=4222, key_shown_at="2026-01-02T03:04:05+00:00")
    folder.remember(kept)
    assert folder.remembered() == kept
    folder.mark.write_text("{")
    with pytest.raises(Environment, match=r"cannot read .*cluster\.json"):
        folder.remembered()


def test_the_folders_own_file_is_the_database_unless_another_is_told(folder: ClusterFolder) -> None:
    assert database_of(folder, None) == str(folder.path / "cluster.db")
    assert database_of(folder, URL) == URL
    with pytest.raises(Usage, match="postgresql://"):
        database_of(folder, "elsewhere.db")


def test_a_password_is_neither_kept_nor_shown(folder: ClusterFolder) -> None:
    assert shown(folder, URL) == SHOWN
    assert shown(folder, "postgresql:///orb?host=/run/pg") == "postgresql:///orb?host=/run/pg"
    assert shown(folder, str(folder.database)) == "cluster.db"


def test_a_folder_never_meets_another_database_than_its_own(folder: ClusterFolder) -> None:
    folder.remember(Remembered(database=shown(folder, URL)))
    folder.etcd.mkdir()
    assert database_of(folder, URL) == URL
    with pytest.raises(Usage, match="give it again with --database"):
        database_of(folder, None)
    with pytest.raises(Usage, match="choose another folder"):
        database_of(folder, "postgresql://orb@db.example/other")
    folder.remember(Remembered(database="cluster.db"))
    with pytest.raises(Usage, match="choose another folder"):
        database_of(folder, URL)


def test_a_database_that_never_answered_binds_no_folder(folder: ClusterFolder) -> None:
    folder.remember(Remembered(database="postgresql://orb@db.exmaple/orb"))
    assert database_of(folder, URL) == URL
    with pytest.raises(Usage, match="give it again with --database"):
        database_of(folder, None)
