"""What deploy/ and compose.yaml say holds together: every file, service, metric and setting that they name exists."""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cli.local.member import flags_of
from cli.terminal.settings import KINDS, gathered, read
from tests.unit.test_metrics import documented

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
SERVICES: Final[dict[str, dict[str, Any]]] = COMPOSE["services"]
MADE: Final = "./deploy/secrets/"

TOP: Final = {"name", "services", "volumes", "secrets"}
OF_SERVICE: Final = {
    "image", "build", "command", "entrypoint", "environment", "env_file", "ports", "volumes", "secrets", "depends_on",
    "restart", "healthcheck", "stop_grace_period", "shm_size", "security_opt", "read_only", "tmpfs", "cap_drop",
}  # fmt: skip
OF_HEALTHCHECK: Final = {"test", "interval", "timeout", "start_period"}
"""The part of the compose specification that is used; a key beyond it is most likely misspelt."""


def mounts(service: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Source, target and mode of each volume."""
    for volume in service.get("volumes", []):
        source, target, *mode = volume.split(":")
        yield source, target, mode[0] if mode else "rw"


def mounted(service: dict[str, Any], path: str) -> Path | None:
    """The file of ours that a service finds at a path; None where it is not one of ours."""
    for source, target, _ in mounts(service):
        if path.startswith(f"{target}/") and source.startswith("./"):
            return ROOT / source / path.removeprefix(f"{target}/")
    return None


def test_compose_is_written_in_the_words_of_its_specification() -> None:
    assert {key for key in COMPOSE if not key.startswith("x-")} <= TOP
    for name, service in SERVICES.items():
        assert set(service) <= OF_SERVICE, name
        assert service["restart"] == "unless-stopped", name
        check = service["healthcheck"]
        assert set(check) <= OF_HEALTHCHECK, name
        assert check["test"][0] == "CMD", "no shell is needed, and some images have none"
        assert all(re.fullmatch(r"\d+s", check[part]) for part in check if part != "test"), name
        assert all(isinstance(value, str) for value in service.get("environment", {}).values()), name


def test_images_are_pinned_by_version() -> None:
    for name, service in SERVICES.items():
        image, _, tag = service["image"].rpartition(":")
        assert image, name
        assert "build" in service or re.fullmatch(r"v?\d+\.\d+(\.\d+)?(-\w+)?", tag), service["image"]
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        if line.startswith("FROM "):
            assert re.search(r":\d+\.\d+\.\d+-\S+", line), line


def test_whatever_a_service_names_is_there() -> None:
    for name, service in SERVICES.items():
        for source, _, mode in mounts(service):
            if not source.startswith("./"):
                assert source in COMPOSE["volumes"], name
            elif not source.startswith(MADE):
                assert (ROOT / source).is_dir(), source
                assert mode == "ro", source
        for secret in service.get("secrets", []):
            assert secret in COMPOSE["secrets"], name
        for file in service.get("env_file", []):
            assert (ROOT / file).is_file(), file
        for other, wanted in service.get("depends_on", {}).items():
            assert wanted == {"condition": "service_healthy"}
            assert "healthcheck" in SERVICES[other], f"{name} waits for {other}"
        for word in service.get("command", []):
            path = word.rpartition("=")[2]
            if (file := mounted(service, path)) is not None:
                assert file.is_file(), f"{name}: {word}"
    for named in (DEPLOY / "postgres" / "postgresql.conf").read_text().splitlines():
        if found := re.match(r"(?:hba|ident)_file = '(.+)'", named):
            there = mounted(SERVICES["postgres"], found[1])
            assert there is not None, named
            assert there.is_file(), named


def test_the_volumes_and_secrets_that_are_declared_are_used() -> None:
    used = {source for service in SERVICES.values() for source, _, _ in mounts(service)}
    assert set(COMPOSE["volumes"]) == {source for source in used if not source.startswith("./")}
    assert set(COMPOSE["secrets"]) == {secret for each in SERVICES.values() for secret in each.get("secrets", [])}


def test_nothing_is_published_beyond_this_machine_and_no_port_twice() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert len({port.split(":")[1] for port in published}) == len(published)


def test_every_service_with_certificates_gets_some_and_nobody_anothers() -> None:
    script = (DEPLOY / "certificates").read_text()
    (line,) = re.findall(r'^services="(.+)"$', script, re.MULTILINE)
    have = {
        name: source.removeprefix(MADE)
        for name, service in SERVICES.items()
        for source, target, _ in mounts(service)
        if target == "/certs"
    }
    assert have == {name: name for name in have}
    assert set(line.split()) == {*have, "operator"}
    files = {Path(secret["file"]) for secret in COMPOSE["secrets"].values()}
    assert all(file.name in script for file in files)
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert "/deploy/secrets/" in ignored, "keys are never committed"


def test_postgresql_is_not_taken_for_well_while_its_image_makes_the_database() -> None:
    """The image starts a server for that, which listens on the socket alone, and ends it again."""
    test = SERVICES["postgres"]["healthcheck"]["test"]
    assert test[test.index("-h") + 1] == "127.0.0.1"
    rules = [line.split() for line in (DEPLOY / "postgres" / "pg_hba.conf").read_text().splitlines() if line[:1] != "#"]
    assert [rule for rule in rules if rule[0] != "local"] == [
        ["host", "all", "all", "127.0.0.1/32", "scram-sha-256"],  # or the check would be a refusal in the log
        ["hostssl", "orb", "orb", "all", "cert", "map=masters"],
    ]


def test_what_meets_strangers_pages_can_write_to_nothing_but_the_archive() -> None:
    for name in ("worker-1", "worker-2"):
        service = SERVICES[name]
        assert (service["read_only"], service["tmpfs"], service["cap_drop"]) == (True, ["/tmp"], ["ALL"])
        assert [target for _, target, mode in mounts(service) if mode == "rw"] == ["/archive"]


@pytest.mark.parametrize("name", [name for name in SERVICES if name.startswith("nats-")])
def test_a_nats_server_is_known_by_its_name_to_those_who_check_certificates(name: str) -> None:
    environment = SERVICES[name]["environment"]
    assert environment["NATS_NAME"] == name
    assert environment["NATS_ADVERTISE"] == f"{name}:{environment['NATS_ROUTE'].rpartition(':')[2]}"
    assert f'"nats://{environment["NATS_ADVERTISE"]}"' in environment["NATS_ROUTES"]


@pytest.mark.parametrize("name", [name for name in SERVICES if name.startswith(("master", "worker"))])
def test_members_can_be_started_with_their_settings_and_speak_tls_to_all(name: str) -> None:
    service = SERVICES[name]
    role, flag, path = service["command"]
    assert flag == "--config"
    file = mounted(service, path)
    assert file is not None
    environment = {**service["environment"], "ORB_CONFIG": str(file)}
    flags = flags_of(role)
    settings = read(KINDS[role], gathered(role, flags, argparse.Namespace(), environment), flags)
    said = {field: str(getattr(settings, field)) for field in settings.__struct_fields__}
    assert all(endpoint.startswith("https://") for endpoint in said["etcd"].split(","))
    assert all(endpoint.startswith("tls://") for endpoint in said["nats_url"].split(","))
    hosts = set(re.findall(r"//(?:\w+@)?([a-z]+-?\d?):", said["etcd"] + said["nats_url"] + said.get("database", "")))
    assert hosts <= set(SERVICES)
    for which in ("etcd", "nats"):
        assert [said[f"{which}_{part}"] for part in ("ca", "cert", "key")] == [
            "/certs/ca.pem", "/certs/tls.pem", "/certs/tls.key"
        ]  # fmt: skip
    assert said["tls_client_ca"] == "/certs/ca.pem"
    assert said["id"] == name
    if role == "master":
        assert "sslmode=verify-full" in said["database"]
        assert said["address"] == f"https://{name}:8081"


# --- what is watched --------------------------------------------------------------------------------------------------


def metrics_in(expression: str) -> set[str]:
    """The metrics of ours that an expression names, without the suffixes of a histogram's parts."""
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"\borb_\w+", expression)}


def labels_in(expression: str) -> set[str]:
    """The labels that it groups or selects by."""
    grouped = re.findall(r"\bby \(([\w, ]+)\)", expression)
    selected = re.findall(r"(\w+)=~?\"", expression)
    return {label.strip() for group in grouped for label in group.split(",")} | set(selected)


def expressions() -> list[tuple[str, str]]:
    """Every expression of the rules and the dashboard, with where it stands."""
    read = [yaml.safe_load((DEPLOY / "prometheus" / name).read_text("utf-8")) for name in ("alerts.yml", "scaling.yml")]
    rules = [rule for each in read for group in each["groups"] for rule in group["rules"]]
    found = [(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules]
    board = json.loads((DEPLOY / "grafana" / "dashboards" / "orbweaver.json").read_text("utf-8"))
    found += [(panel["title"], each["expr"]) for panel in board["panels"] for each in panel.get("targets", [])]
    found += [(each["name"], each["query"]["query"]) for each in board["templating"]["list"]]
    return found


def test_every_metric_and_label_that_is_watched_exists() -> None:
    known = {**documented("Masters"), **documented("Workers")}
    besides = {"le", "instance", "job", "__name__"}  # of histograms and of Prometheus itself
    for where, expression in expressions():
        named = metrics_in(expression)
        assert named <= set(known), where
        labels = {label.strip() for name in named for label in known[name][1].split(",")}
        assert labels_in(expression) <= labels | besides, f"{where}: {expression}"
    assert len({name for _, expression in expressions() for name in metrics_in(expression)}) > 30


def test_the_dashboard_is_whole() -> None:
    board = json.loads((DEPLOY / "grafana" / "dashboards" / "orbweaver.json").read_text("utf-8"))
    sources = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/orbweaver.yml").read_text())["providers"]
    assert mounted(SERVICES["grafana"], f"{provider['options']['path']}/orbweaver.json") is not None
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {panel["datasource"]["uid"] for panel in panels if panel["type"] != "row"} == {sources[0]["uid"]}
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, f"{panel['title']} covers another"
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_prometheus_scrapes_every_member_and_finds_alertmanager() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    targets = {
        target.split(":")[0]
        for job in config["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    assert targets == {name for name in SERVICES if name.startswith(("master", "worker"))}
    assert {job["scheme"] for job in config["scrape_configs"]} == {"https"}
    (alertmanager,) = config["alerting"]["alertmanagers"]
    assert alertmanager["static_configs"][0]["targets"][0].split(":")[0] in SERVICES
    routes = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text())
    assert routes["route"]["receiver"] in {receiver["name"] for receiver in routes["receivers"]}
