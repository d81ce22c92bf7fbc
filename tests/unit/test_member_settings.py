"""What the processes of a cluster are told: by flags, by the environment, and never shown with its secrets."""

import argparse
from pathlib import Path

import pytest

from cli import member
from shared.adapters.etcd.settings import TlsSettings, etcd_of
from shared.domain.errors import Unusable
from shared.settings import ClusterMasterSettings, ClusterWorkerSettings, from_environment, listed

TOLD = {"ORB_ID": "m1", "ORB_ETCD": "http://a:1, http://b:2,", "ORB_NATS_URL": "nats://a", "ORB_DATABASE": "x.db"}


def parsed(role: str, *flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"orb {role}")
    member.configure(parser)
    return parser.parse_args(flags, argparse.Namespace(command=role))


def test_flags_go_over_the_environment() -> None:
    told = member.told(parsed("master", "--id", "m2", "--partitions", "16"), TOLD)
    settings = from_environment(ClusterMasterSettings, told)
    assert (settings.id, settings.partitions, settings.database) == ("m2", 16, "x.db")


def test_a_worker_knows_no_database() -> None:
    with pytest.raises(SystemExit):
        parsed("worker", "--database", "x.db")
    told = member.told(parsed("worker", "--id", "w1", "--dir", "here"), TOLD)
    assert from_environment(ClusterWorkerSettings, told).dir == Path("here")


def test_endpoints_are_separated_by_commas() -> None:
    settings = from_environment(ClusterMasterSettings, TOLD)
    assert etcd_of(settings).endpoints == ("http://a:1", "http://b:2")
    assert etcd_of(settings).tls is None
    assert listed(" , ") == ()
    secured = from_environment(ClusterMasterSettings, {**TOLD, "ORB_ETCD_CA": "ca.pem"})
    assert etcd_of(secured).tls == TlsSettings(Path("ca.pem"))


@pytest.mark.parametrize("kind", [ClusterMasterSettings, ClusterWorkerSettings])
def test_secrets_are_not_shown(kind: type[ClusterMasterSettings] | type[ClusterWorkerSettings]) -> None:
    secrets = {"ORB_NATS_TOKEN": "hush", "ORB_ETCD_PASSWORD": "hush", "ORB_DATABASE": "postgresql://me:hush@db/orb"}
    assert "hush" not in repr(from_environment(kind, {**TOLD, "ORB_DIR": "d", **secrets}))


@pytest.mark.parametrize("name", ["", "-m1", "m/1", "m" * 65])
def test_a_name_that_is_no_key_is_refused_at_once(name: str) -> None:
    with pytest.raises(Unusable, match="id"):
        from_environment(ClusterMasterSettings, {**TOLD, "ORB_ID": name})
