"""What the processes of a cluster are told: by flags, by the environment, and never shown with its secrets."""

import argparse
import json
import os
from pathlib import Path

import pytest

from cli.local import member
from cli.main import main
from cli.terminal.exits import Usage
from cli.terminal.settings import KINDS, in_file
from shared.adapters.etcd.settings import etcd_of
from shared.adapters.nats.settings import StreamSettings, streams_of
from shared.domain.errors import Unusable
from shared.domain.ids import MAX_PARTITIONS
from shared.settings import (
    ClusterMasterSettings,
    ClusterWorkerSettings,
    from_environment,
    listed,
    masked,
    without_password,
)
from shared.tls import TlsSettings

TOLD = {"ORB_ID": "m1", "ORB_ETCD": "http://a:1, http://b:2,", "ORB_NATS_URL": "nats://a", "ORB_DATABASE": "x.db"}

SECRETS = {
    "ORB_NATS_TOKEN": "hush",
    "ORB_NATS_PASSWORD": "hush",
    "ORB_ETCD_PASSWORD": "hush",
    "ORB_DATABASE": "postgresql://me:hush@db/orb",
}


def parsed(role: str, *flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"orb {role}")
    member.configure(parser)
    return parser.parse_args(flags, argparse.Namespace(command=role))


def written(path: Path, text: str) -> Path:
    """A settings file."""
    path.write_text(text)
    return path


# --- who goes first ---------------------------------------------------------------------------------------------------


def test_flags_go_over_the_environment() -> None:
    settings = member.master_settings(parsed("master", "--id", "m2", "--partitions", "16"), TOLD)
    assert (settings.id, settings.partitions, settings.database) == ("m2", 16, "x.db")


def test_flags_override_variables_then_file_then_defaults(tmp_path: Path) -> None:
    path = written(
        tmp_path / "orb.yaml", "id: by-file\ngrant_s: 9\npartitions: 3\nlog_level: error\npools: [default, eu]\n"
    )
    environment = {**TOLD, "ORB_ID": "by-variable", "ORB_PARTITIONS": "5"}
    settings = member.master_settings(parsed("master", "--config", str(path), "--id", "by-flag"), environment)
    assert (settings.id, settings.partitions, settings.grant_s) == ("by-flag", 5, 9.0)
    assert (settings.log_level, settings.pools, settings.member_ttl_s) == ("error", "default,eu", 15.0)
    named = member.master_settings(parsed("master"), {**environment, "ORB_CONFIG": str(path)})
    assert (named.id, named.log_level) == ("by-variable", "error")


@pytest.mark.parametrize("role", ["master", "worker"])
def test_every_setting_but_the_secrets_has_a_flag(role: str) -> None:
    secrets = {"nats_password", "nats_token", "etcd_password"}
    assert set(member.flags_of(role)) == set(KINDS[role].__struct_fields__) - secrets


# --- files ------------------------------------------------------------------------------------------------------------


def test_file_errors_are_listed_together_with_line_and_meaning(tmp_path: Path) -> None:
    path = written(
        tmp_path / "orb.yaml", "etcd: http://a\npatitions: 3\nmax_visits: 8\nlog-level: info\ngrant_s: {x: 1}\nhttp:\n"
    )
    with pytest.raises(Usage) as refused:
        in_file("master", path)
    assert str(refused.value).splitlines() == [
        f"{path}:2: there is no setting 'patitions' of a master. Did you mean partitions?",
        f"{path}:3: max_visits is a setting of a worker, not of a master.",
        f"{path}:4: there is no setting 'log-level' of a master. Did you mean log_level?",
        f"{path}:5: grant_s must be a single value, or a list of single values.",
    ]


def test_json_file_indented_with_tabs_is_read_with_its_lines(tmp_path: Path) -> None:
    path = written(tmp_path / "orb.json", '{\n\t"id": "m1",\n\t"partitions": 3\n}\n')
    values = in_file("master", path)
    assert {name: (value.text, value.place) for name, value in values.items()} == {
        "id": ("m1", f"{path}:2"), "partitions": ("3", f"{path}:3"),
    }  # fmt: skip
    with pytest.raises(Usage, match=r"orb\.json:3: there is no setting 'patitions' of a master"):
        in_file("master", written(path, '{\n\t"id": "m1",\n\t"patitions": 3\n}\n'))


@pytest.mark.parametrize(
    "more", ['"pools"\n: "eu"', f'"pools": {"[" * 900}{"]" * 900}', f'"{"x" * 2000}": 1', '"pools": "\x7f"']
)
def test_json_file_that_yaml_cannot_compose_has_no_line_in_errors(tmp_path: Path, more: str) -> None:
    path = written(tmp_path / "orb.json", '{"patitions": 3, ' + more + "}")
    with pytest.raises(Usage) as refused:
        in_file("master", path)
    assert str(refused.value).splitlines()[0].startswith(f"{path}: there is no setting 'patitions' of a master.")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- id: m1", "must be a mapping"),
        ("id: [", "orb.yaml:1:6: this is not YAML"),
        ("id: a\nid: b", "orb.yaml:2:1: .*is repeated in this mapping"),
    ],
)
def test_what_is_no_settings_file_is_refused_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(Usage, match=said):
        in_file("worker", written(tmp_path / "orb.yaml", text))


def test_a_file_that_is_not_there_is_an_error_and_an_empty_one_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="cannot read the configuration"):
        in_file("worker", tmp_path / "none.yaml")
    assert in_file("worker", written(tmp_path / "orb.yaml", "# nothing\n")) == {}


def test_everything_that_is_wrong_is_told_with_the_place_where_it_was_said(tmp_path: Path) -> None:
    path = written(tmp_path / "orb.yaml", "\nmember_ttl_s: soon\n")
    with pytest.raises(Usage) as refused:
        member.master_settings(
            parsed("master", "--config", str(path), "--partitions", "0"), {"ORB_ID": "m/1", "ORB_ETCD": "e"}
        )
    said = str(refused.value)
    for part in (
        "id (ORB_ID): ",
        "partitions (--partitions): expected `int` >= 1",
        f"member_ttl_s ({path}:2): ",
        "no nats_url given: set --nats or ORB_NATS_URL",
        "no database given: set --database or ORB_DATABASE",
    ):
        assert part in said


# --- what is told -----------------------------------------------------------------------------------------------------


def test_a_master_may_be_told_where_the_archive_is() -> None:
    assert from_environment(ClusterMasterSettings, TOLD).archive is None
    assert member.master_settings(parsed("master", "--archive", "here/archive"), TOLD).archive == Path("here/archive")


def test_a_worker_knows_no_database() -> None:
    with pytest.raises(SystemExit):
        parsed("worker", "--database", "x.db")
    assert member.worker_settings(parsed("worker", "--id", "w1", "--dir", "here"), TOLD).dir == Path("here")


def test_endpoints_are_separated_by_commas() -> None:
    settings = from_environment(ClusterMasterSettings, TOLD)
    assert etcd_of(settings).endpoints == ("http://a:1", "http://b:2")
    assert etcd_of(settings).tls is None
    assert listed(" , ") == ()
    secured = from_environment(ClusterMasterSettings, {**TOLD, "ORB_ETCD_CA": "ca.pem"})
    assert etcd_of(secured).tls == TlsSettings(Path("ca.pem"))


@pytest.mark.parametrize("kind", [ClusterMasterSettings, ClusterWorkerSettings])
def test_secrets_are_not_shown(kind: type[ClusterMasterSettings] | type[ClusterWorkerSettings]) -> None:
    assert "hush" not in repr(from_environment(kind, {**TOLD, "ORB_DIR": "d", **SECRETS}))


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("nats_token", "hush", "********"),
        ("nats_password", "hush", "********"),
        ("etcd_password", "hush", "********"),
        ("database", "postgresql://me:hush@db/orb", "postgresql://me:********@db/orb"),
        ("database", "postgresql://me@db/orb?password=hush&sslmode=require",
         "postgresql://me@db/orb?password=********&sslmode=require"),
        ("database", "/var/lib/orb/cluster.db", "/var/lib/orb/cluster.db"),
        ("nats_url", "nats://hush@a:1,nats://me:hush@b:2,nats://c:3",
         "nats://********@a:1,nats://********@b:2,nats://c:3"),
        ("nats_url", "nats://hu/sh@a:1,nats://c:3", "nats://********@a:1,nats://c:3"),
        ("etcd", "https://me:hush@a:1, http://b:2", "https://me:********@a:1, http://b:2"),
        ("etcd", "http://b:2,https://me:hu/sh@a:1", "http://b:2,https://me:********@a:1"),
        ("address", "http://a:8081/?x=1", "http://a:8081/?x=1"),
    ],
)  # fmt: skip
def test_passwords_and_tokens_are_masked_wherever_they_stand(name: str, text: str, shown: str) -> None:
    assert masked(name, text) == shown


@pytest.mark.parametrize(
    "password", ["hu/sh", "hu?sh", "hu#sh", "hu@sh", "12/sh", "hu sh", "hu:sh", "hu://sh", "hu,sh"]
)
def test_password_with_unescaped_characters_is_hidden_whole(password: str) -> None:
    url = f"postgresql://me:{password}@db:5432/orb?sslmode=require"
    assert masked("database", url) == "postgresql://me:********@db:5432/orb?sslmode=require"
    assert without_password(url) == "postgresql://me@db:5432/orb?sslmode=require"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://db:5432/orb", "postgresql://db:5432/orb"),
        ("postgresql://me@[::1/orb", "postgresql://me@[::1/orb"),
        ("postgresql://:hush@db/orb", "postgresql://db/orb"),
        ("postgresql://me@corp:hush@a:1,b:2/orb", "postgresql://me@corp@a:1,b:2/orb"),
        ("postgresql://db:5432/orb?password=hu@sh&sslmode=require", "postgresql://db:5432/orb?sslmode=require"),
        ("postgresql://me@db/orb?sslpassword=hu sh", "postgresql://me@db/orb"),
        ("me:hush@db", "me:hush@db"),
    ],
)
def test_url_of_a_database_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_token_in_a_url_is_not_shown_either() -> None:
    assert "hush" not in repr(from_environment(ClusterMasterSettings, {**TOLD, "ORB_NATS_URL": "nats://hush@a"}))


# --- orb config show --------------------------------------------------------------------------------------------------


def printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], *flags: str
) -> tuple[int, str, str]:
    """What `orb config show` says: exit code, standard output, standard error."""
    for variable in [name for name in os.environ if name.startswith("ORB_")]:
        monkeypatch.delenv(variable)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    code = main(["config", "show", *flags])
    out, err = capsys.readouterr()
    return code, out, err


def test_each_setting_is_shown_with_where_it_was_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = written(tmp_path / "orb.yaml", "dir: /var/lib/orb\nmax_visits: 8\n")
    environment = {**TOLD, **SECRETS, "ORB_MAX_VISITS": "9"}
    code, out, _ = printed(capsys, monkeypatch, environment, "worker", "--id", "w1", "--config", str(path))
    assert code == 0
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert rows["id"] == ["w1", "flag", "--id"]
    assert rows["max_visits*"] == ["9", "environment", "ORB_MAX_VISITS"], "the star: hot configuration goes over it"
    assert rows["dir"] == ["/var/lib/orb", "file", f"{path}:1"]
    assert rows["report_s*"] == ["2.0", "default"]
    assert rows["nats_token"] == ["********", "environment", "ORB_NATS_TOKEN"]
    assert rows["etcd_user"] == ["-", "default"]
    assert "hush" not in out


def test_what_is_missing_is_shown_as_missing_and_is_an_error_in_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = printed(capsys, monkeypatch, {"ORB_ID": "m1"}, "master", "--json")
    assert code == 2
    said = json.loads(out)
    assert (said["end"], said["exit_code"]) == ("failed", 2)
    rows = {row["name"]: row for row in said["settings"]}
    assert rows["etcd"] == {"name": "etcd", "value": None, "origin": "missing", "place": "", "hot": False}
    assert rows["grant_s"]["hot"]
    assert "no etcd given: set --etcd or ORB_ETCD" in err


@pytest.mark.parametrize("name", ["", "-m1", "m/1", "m" * 65])
def test_a_name_that_is_no_key_is_refused_at_once(name: str) -> None:
    with pytest.raises(Unusable, match="id"):
        from_environment(ClusterMasterSettings, {**TOLD, "ORB_ID": name})


def test_partitions_beyond_host_number_space_are_refused_at_start() -> None:
    told = {**TOLD, "ORB_PARTITIONS": str(MAX_PARTITIONS)}
    assert from_environment(ClusterMasterSettings, told).partitions == MAX_PARTITIONS
    with pytest.raises(Unusable, match=r"partitions \(ORB_PARTITIONS\): .*<= 4096"):
        from_environment(ClusterMasterSettings, {**told, "ORB_PARTITIONS": str(MAX_PARTITIONS + 1)})


def test_what_a_master_is_told_of_nats_is_what_the_streams_are_declared_with() -> None:
    told = {
        "ORB_REPORTS_PER_PARTITION": "500",
        "ORB_POOL_VISITS": "70",
        "ORB_POOL_WORKERS": "7",
        "ORB_ROBOTS_BYTES": "2000000",
        "ORB_REPORTS_BYTES": "3000000",
    }
    streams = streams_of(from_environment(ClusterMasterSettings, {**TOLD, **told}))
    assert (streams.reports_per_subject, streams.max_ack_pending, streams.max_waiting) == (500, 70, 7)
    assert (streams.robots_bytes, streams.reports_bytes) == (2_000_000, 3_000_000)
    assert streams_of(from_environment(ClusterMasterSettings, TOLD)) == StreamSettings()
