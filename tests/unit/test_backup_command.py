"""`orb backup --dir` is of a cluster that runs; of one that does not it says so."""

import argparse
import fcntl
import json
from pathlib import Path

import pytest

from cli.admin import backup
from cli.local.cluster_folder import ClusterFolder, Remembered
from cli.local.local_cluster import BROKER
from cli.terminal.exits import Environment
from shared.adapters.nats.accounts import NatsUser, accounts_of
from shared.settings import ClusterMasterSettings


class Taken(Exception):
    pass


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    """As a cluster leaves it that has ended."""
    found = ClusterFolder(tmp_path / "up")
    found.nats.mkdir(parents=True)
    found.remember(Remembered(database="cluster.db", nats=1))
    (found.nats / "nats.conf").write_text(json.dumps({"accounts": accounts_of([NatsUser("master", password="m")])}))
    found.lock_file.write_text(json.dumps({"pid": 1, "since": 0}))
    return found


def test_the_cluster_of_a_backup_must_run(folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    async def take(settings: ClusterMasterSettings, into: Path) -> None:
        raise Taken

    monkeypatch.setattr(backup, "take", take)
    parser = argparse.ArgumentParser()
    backup.configure(parser)
    arguments = parser.parse_args(["--dir", str(folder.path), str(folder.path.parent / "b")])
    with pytest.raises(Environment) as ended:
        backup.run(arguments)
    assert f"is not running, but a backup needs a running one: start it with `orb up --dir {folder.path}`" in (
        str(ended.value)
    )
    with folder.lock_file.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Taken):
            backup.run(arguments)


def test_the_broker_is_called_by_its_name_where_people_read_of_it() -> None:
    assert BROKER == "NATS"
