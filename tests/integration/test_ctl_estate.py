"""Declared resources as files, against the real API: applied, compared, pruned, exported and applied again."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cli.main import main
from cli.terminal.exits import Exit
from shared.domain.ops.access import Role
from tests.support.api.api_server import Served, served
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server

Orb = Callable[..., str]

TEAM = """\
kind: crawl
name: docs
labels: {team: search}
start: false
spec: {seeds: [https://example.org/], budget: {max_pages: 100}}
---
name: other
labels: {team: search}
start: false
spec: {seeds: [https://example.com/]}
---
name: apart
labels: {team: ads}
start: false
spec: {seeds: [https://example.net/]}
"""
TIMES = """\
name: nightly
crawl: other
verb: start
cron: 30 2 * * *
---
name: weekly
selector: {team: search, more: "x"}
verb: refresh
every_s: 604800
"""
RULES = """\
host: Example.org
delay_s: 2.5
---
target: private.example.org
reason: the owner asked
---
config: {log_level: warning, worker: {max_visits: 8}}
"""

KEYS = ["admin", "first-admin", "operator", "viewer"]
"""The keys of a cluster from its start."""

LATE = "2090-01-01t02:00:00.5+02:00"
AWKWARD: list[tuple[str, str, dict[str, Any]]] = [
    ("PUT", "config", {"log_level": "debug", "pools": {"yes": {"max_visits": 8}, "1e3": {}}, "master": {"grant_s": 7}}),
    ("POST", "exclusions", {"target": "Bücher.example", "reason": "l'été: # \"no\" 🕷", "requested_by": "- x"}),
    ("POST", "exclusions", {"target": "https://a.test/ü/%7E?q=1", "reason": "yes", "until": LATE}),
    ("POST", "exclusions", {"target": "2001:db8::/32", "reason": "~", "withdraw": True}),
    ("PUT", "host-policies/bücher.example:8080", {"delay_s": 0.0001}),
    ("PUT", "host-policies/[2001:DB8::1]:81", {"slots": 64, "block": {"reason": "null", "until": LATE}}),
    ("PUT", "host-policies/192.0.2.1", {}),
    ("POST", "crawls", {"name": "1e3", "spec": {"seeds": ["https://a.test/"]}, "start": False}),
    ("POST", "crawls", {"name": "no", "spec": {"seeds": ["https://a.test/"]}, "desired": "paused"}),
    ("POST", "crawls", {"name": "x" * 63, "spec": {"seeds": ["https://a.test/"]}, "desired": "running"}),
    (
        "POST",
        "crawls",
        {
            "name": "runs",
            "labels": {"a": "yes", "b": "0x1F", "c": "2030-01-01", "d": "", "e": "= é & *a !b", "f": "1_0", "g": "2:0"},
            "spec": {
                "seeds": [f"https://a.test/{n}?ü={'x' * 500}" for n in range(300)]
                + [{"url": "https://b.test/", "labels": {"y": "n"}, "source": "a: b # c"}],
                "scope": {"mode": "any", "include": ["^https://[^/]+/(a|b){2}: #"]},
            },
        },
    ),
    ("PUT", "crawls/no/seed-sets/1e3", {"seeds": ["HTTPS://A.test:443", {"url": "https://b.test/", "source": "- #c"}]}),
    ("PUT", "crawls/no/seed-sets/null", {"seeds": []}),
    ("PUT", "crawls/runs/seed-sets/1e3", {"seeds": [f"https://a.test/{n}#ü" for n in range(300)]}),
    ("PUT", "api-keys/null", {"role": "viewer", "expires_at": LATE, "networks": ["::1/128", "10.1.2.3"]}),
    ("PUT", "api-keys/1e3", {"role": "admin", "expires_at": None, "networks": [], "certificate": None, "kind": "key"}),
    ("POST", "api-keys", {"name": "robot", "role": "operator", "kind": "certificate", "certificate": "dns:A.test"}),
    ("POST", "crawls", {"name": "stopped", "spec": {"seeds": ["https://a.test/"]}}),
    ("POST", "crawls/stopped/cancel", {}),
    ("POST", "schedules", {"name": "on", "crawl": "runs", "verb": "pause", "cron": "*/7 2-5 * * 1,3", "paused": True}),
    (
        "POST",
        "schedules",
        {
            "name": "0", "selector": {"a": "yes", "d": ""}, "verb": "start", "every_s": 60, "zone": "Europe/Berlin",
            "window": {"start": "22:00", "end": "06:00"}, "jitter_s": 7, "overlap": "queue", "catch_up": "last",
        },
    ),
]  # fmt: skip
"""What is put over REST, with texts that YAML takes for something else."""


@pytest.fixture
def orb(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Orb:
    """`orb ctl` at an API: its standard output, or with another exit code its errors and output."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("ORB_CONTEXT", raising=False)

    def run(at: Served, *arguments: object, code: int = Exit.OK, role: Role = Role.ADMIN) -> str:
        for name, value in at.environ(role).items():
            monkeypatch.setenv(name, value)
        ended = main(["ctl", *map(str, arguments)])
        out, err = capfd.readouterr()
        assert ended == code, err
        assert "Traceback" not in err
        return out if code == Exit.OK else err + out

    return run


@pytest.fixture
def cluster(tmp_path: Path, server: BrokerServer) -> Iterator[Served]:
    (tmp_path / "a").mkdir()
    with served(tmp_path / "a", server) as api:
        yield api


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    for name, text in (("times.yaml", TIMES), ("team.yaml", TEAM), ("rules.yml", RULES)):
        (folder / name).write_text(text)
    (folder / "README.md").write_text("no: [yaml")
    return folder


def rest(at: Served) -> httpx.Client:
    return httpx.Client(
        base_url=f"{at.url}/v1/", headers={"Authorization": f"Bearer {at.keys[Role.ADMIN]}"}, timeout=60
    )


def actions(at: Served) -> list[str]:
    """What the audit log says of changes, the oldest first."""
    with rest(at) as client:
        return [each["action"] for each in reversed(client.get("audit", params={"limit": 500}).json()["items"])]


@pytest.mark.long
def test_estate_is_applied_drifts_is_compared_and_mended(cluster: Served, orb: Orb, files: Path) -> None:
    titles = [
        "config", "exclusion/private.example.org", "host-policy/example.org", "crawl/docs", "crawl/other",
        "crawl/apart", "schedule/nightly", "schedule/weekly",
    ]  # fmt: skip
    assert orb(cluster, "diff", "-f", files, code=Exit.DIFFERENT).splitlines()[-7:] == [
        f"{title} is only in the files" for title in titles[1:]
    ]
    made = orb(cluster, "apply", "-f", files).splitlines()
    assert made == ["config configured", *(f"{title} created" for title in titles[1:])]
    assert orb(cluster, "apply", "-f", files).splitlines() == [f"{title} unchanged" for title in titles]
    assert orb(cluster, "diff", "-f", files, role=Role.VIEWER) == ""
    before = actions(cluster)

    with rest(cluster) as client:
        client.put("host-policies/example.org", json={"delay_s": 9, "slots": 1}).raise_for_status()
        client.put("exclusions/1", json={"reason": "another"}).raise_for_status()
        client.patch("crawls/docs", json={"spec": {"budget": {"max_pages": 7}}, "labels": {"team": None}})
        client.delete("schedules/weekly").raise_for_status()
        client.put("config", json={"worker": {"max_visits": 9}}).raise_for_status()
    drifted = orb(cluster, "diff", "-f", files, code=Exit.DIFFERENT)
    assert drifted.splitlines() == [
        "config differs",
        "  + log_level: warning",
        "  - worker.max_visits: 9",
        "  + worker.max_visits: 8",
        "exclusion/private.example.org differs",
        "  - reason: another",
        "  + reason: the owner asked",
        "host-policy/example.org differs",
        "  - delay_s: 9",
        "  + delay_s: 2.5",
        "  - slots: 1",
        "crawl/docs differs",
        "  + labels.team: search",
        "  - spec.budget.max_pages: 7",
        "  + spec.budget.max_pages: 100",
        "schedule/weekly is only in the files",
    ]
    mended = orb(cluster, "apply", "-f", files).splitlines()
    assert mended == [
        "config configured",
        "exclusion/private.example.org configured",
        "host-policy/example.org configured",
        "crawl/docs configured",
        "crawl/other unchanged",
        "crawl/apart unchanged",
        "schedule/nightly unchanged",
        "schedule/weekly created",
    ]
    assert orb(cluster, "diff", "-f", files) == ""
    after = actions(cluster)
    assert len(after) > len(before)
    orb(cluster, "apply", "-f", files)
    assert actions(cluster) == after, "what is as it is declared is not written again"


def test_prune_deletes_only_what_has_the_label_and_is_in_no_file(
    cluster: Served, orb: Orb, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orb(cluster, "apply", "-f", files)
    (files / "times.yaml").unlink()
    (files / "rules.yml").unlink()
    docs = TEAM.partition("---\n")[0]
    (files / "team.yaml").write_text(docs)
    drift = orb(cluster, "diff", "-f", files, "-l", "team=search", code=Exit.DIFFERENT)
    gone = ["schedule/nightly", "schedule/weekly", "crawl/other"]
    assert drift.splitlines() == [f"{title} is only in the cluster" for title in gone]
    before = actions(cluster)
    pruning = ("apply", "-f", files, "--prune", "-l", "team=search")
    assert "would be deleted" in orb(cluster, *pruning, "--dry-run")
    refused = orb(cluster, *pruning, code=Exit.USAGE)
    assert "crawl/other would be deleted: its URLs, items and counters are deleted; pages in the archive are kept" in (
        refused
    )
    assert "there is no terminal: set --yes" in refused
    assert actions(cluster) == before
    assert orb(cluster, *pruning, "--yes").splitlines() == [
        "crawl/docs unchanged", *(f"{title} deleted" for title in gone),
    ]  # fmt: skip
    with rest(cluster) as client:
        assert [each["name"] for each in client.get("crawls").json()["items"]] == ["apart", "docs"]
        assert client.get("schedules").json()["items"] == []
        assert client.get("host-policies/example.org").json()["delay_s"] == 2.5
        assert [each["target"] for each in client.get("exclusions").json()["items"]] == ["private.example.org"]
        assert client.get("config").json()["config"]["worker"]["max_visits"] == 8
    assert orb(cluster, *pruning) == "crawl/docs unchanged\n", "there is nothing to ask about"


@pytest.mark.long
def test_exported_estate_is_unchanged_there_and_the_same_on_an_empty_cluster(
    cluster: Served, orb: Orb, tmp_path: Path
) -> None:
    with rest(cluster) as client:
        for method, path, body in AWKWARD:
            client.request(method, path, json=body).raise_for_status()
    folder = tmp_path / "estate"
    orb(cluster, "export", "estate", "--out", folder)
    texts = {file.name: file.read_text() for file in folder.iterdir()}
    names = [
        "config.yaml", "exclusions.yaml", "host-policies.yaml", "crawls.yaml", "seed-sets.yaml", "schedules.yaml",
        "api-keys.yaml",
    ]  # fmt: skip
    assert sorted(texts) == sorted(names)
    stream = orb(cluster, "export", "estate")
    assert stream == "".join(texts[name] for name in names)
    assert orb(cluster, "export", "estate", role=Role.VIEWER) + texts["api-keys.yaml"] == stream
    assert "orb_" not in stream
    assert [each for each in stream.splitlines() if each.lstrip().startswith("#")] == []
    applied = orb(cluster, "apply", "-f", folder).splitlines()
    assert len(applied) == 1 + 3 + 3 + 5 + 3 + 2 + len(KEYS) + 3
    assert {line.rpartition(" ")[2] for line in applied} == {"unchanged"}
    assert orb(cluster, "diff", "-f", folder) == ""

    (tmp_path / "b").mkdir()
    with served(tmp_path / "b") as empty:
        orb(empty, "export", "estate", "--out", tmp_path / "nothing")
        keys = tmp_path / "nothing" / "api-keys.yaml"
        assert [each["name"] for each in yaml.safe_load_all(keys.read_text())] == KEYS
        keys.unlink()
        assert {file.read_text() for file in (tmp_path / "nothing").iterdir()} == {""}
        made = orb(empty, "apply", "-f", folder).splitlines()
        secrets = [line for line in made if line.startswith("orb_")]
        assert len(secrets) == 2
        done = [line.rpartition(" ")[2] for line in made[1:] if line not in secrets]
        assert (done.count("created"), done.count("unchanged")) == (3 + 3 + 5 + 3 + 2 + 3, len(KEYS))
        assert orb(empty, "export", "estate") == stream
        with rest(empty) as there, rest(cluster) as here:
            for kind in ("exclusions", "host-policies", "schedules"):
                assert [declared(each) for each in there.get(kind).json()["items"]] == [
                    declared(each) for each in here.get(kind).json()["items"]
                ]
            for a, b in zip(there.get("api-keys").json()["items"], here.get("api-keys").json()["items"], strict=True):
                assert (a["name"], a["effective"]) == (b["name"], b["effective"])
            assert there.get("config").json()["config"] == here.get("config").json()["config"]
            specs = {"fields": "spec"}
            for a, b in zip(there.get("crawls", params=specs).json()["items"],
                            here.get("crawls", params=specs).json()["items"], strict=True):  # fmt: skip
                assert (a["name"], a["spec"], a["labels"], a["desired"]) == (
                    b["name"], b["spec"], b["labels"], b["desired"],
                )  # fmt: skip
                of_set = f"crawls/{a['name']}/seed-sets"
                for each in there.get(of_set).json()["items"]:
                    at = f"{of_set}/{each['name']}"
                    assert there.get(at).json()["seeds"] == here.get(at).json()["seeds"]
                assert (a["state"] in ("running", "seeding")) is (b["state"] in ("running", "seeding"))


def declared(body: dict[str, Any]) -> dict[str, Any]:
    """Return a resource without its numbers and times."""
    of_a_cluster = {"id", "created_at", "created_by", "changed_at", "changed_by", "command", "next_at", "last_due_at"}
    return {name: value for name, value in body.items() if name not in of_a_cluster}


def test_what_has_ended_is_not_exported_since_it_cannot_be_applied(
    cluster: Served, orb: Orb, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with rest(cluster) as client:
        soon = {"reason": "x", "until": "2090-01-01T00:00:00Z"}
        client.post("exclusions", json=soon | {"target": "a.test"}).raise_for_status()
        client.put("host-policies/a.test", json={"block": soon, "slots": 3}).raise_for_status()
        client.put("host-policies/b.test", json={"block": soon}).raise_for_status()
    past = json.dumps({"block": {"reason": "x", "until": "2020-01-01T00:00:00Z"}})
    with closing(sqlite3.connect(tmp_path / "a" / "crawl.db", timeout=30)) as database, database:
        for host, spec in (("a.test", past[:-1] + ', "slots": 3}'), ("b.test", past)):
            database.execute("UPDATE host_policies SET spec = ? WHERE host = ?", (spec, host))
        database.execute("UPDATE exclusions SET until_ms = 1577836800000")
    text = orb(cluster, "export", "estate")
    declares = [each for each in yaml.safe_load_all(text) if each["kind"] != "api-key"]
    assert declares == [{"kind": "host-policy", "host": "a.test", "slots": 3}]
    assert main(["ctl", "export", "estate", "--out", str(tmp_path / "left")]) == Exit.OK
    assert capfd.readouterr().err.splitlines() == [
        "orb: exclusion/a.test: what has ended is left out",
        "orb: host-policy/a.test: what has ended is left out",
        "orb: host-policy/b.test: what has ended is left out",
        f"orb: {1 + len(KEYS)} resources in {tmp_path / 'left'}",
    ]


def test_every_wrong_document_is_named_and_nothing_is_changed(cluster: Served, orb: Orb, tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(
        "name: good\nspec: {seeds: [https://a.test/]}\n---\n"
        "name: bad\nspec: {seeds: [https://a.test/], scope: {max_dept: 3}}\n---\n"
        "host: '*.test'\nslots: 1\n---\n"
        "host: a.test\nslots: 65\nblock: {reason: x, until: 2020-01-01T00:00:00Z}\n---\n"
        "target: 10.0.0.1/8\nreason: x\n---\n"
        "target: b.test\nreason: x\nuntil: 2020-01-01T00:00:00Z\n---\n"
        "name: s\ncrawl: good\nverb: start\ncron: 61 * * * *\n---\n"
        "config: {storage: {low_watermark_ratio: 0.9, high_watermark_ratio: 0.5}}\n"
    )
    before = actions(cluster)
    for verb in (["apply"], ["apply", "--dry-run"], ["diff"]):
        said = orb(cluster, *verb, "-f", file, code=Exit.USAGE)
        for place, words in (
            ("document 2: crawl bad: ", "  spec.scope.max_dept: "),
            ("document 3: host-policy *.test: ", "  host: '*.test' is not a host"),
            ("document 4: host-policy a.test: ", "  slots: "),
            ("document 5: exclusion 10.0.0.1/8: ", "did you mean 10.0.0.0/8?"),
            ("document 6: exclusion b.test: ", "  until: is in the past"),
            ("document 7: schedule s: ", "  cron: "),
            ("document 8: config: ", "  storage.low_watermark_ratio: "),
        ):
            assert f"{file}, {place}" in said
            assert words in said.partition(f"{file}, {place}")[2].partition("all.yaml, ")[0]
        assert "crawl good" not in said
    assert actions(cluster) == before


def test_files_create_what_is_not_there_and_delete_all_they_declare(cluster: Served, orb: Orb, files: Path) -> None:
    assert "cannot be created: use `orb ctl apply`" in orb(cluster, "create", "-f", files, code=Exit.USAGE)
    rules = files / "rules.yml"
    rules.write_text(RULES.partition("config:")[0].removesuffix("---\n"))
    assert "host-policy/example.org created\ncrawl/docs created\n" in orb(cluster, "create", "-f", files)
    policy = files.parent / "policy.yaml"
    policy.write_text("host: EXAMPLE.org\nslots: 1\n")
    refused = orb(cluster, "create", "-f", policy, code=Exit.FAILED)
    assert refused == f"orb: {policy}: host-policy/example.org exists already: change it with `orb ctl apply`.\n"
    rules.write_text(RULES)
    assert orb(cluster, "delete", "-f", files).splitlines() == [
        "schedule/weekly deleted", "schedule/nightly deleted", "crawl/apart deleted", "crawl/other deleted",
        "crawl/docs deleted", "host-policy/example.org deleted", "exclusion/private.example.org deleted",
    ]  # fmt: skip
    assert "is no policy of the host 'example.org'" in orb(cluster, "delete", "-f", rules, code=Exit.FAILED)
    assert orb(cluster, "delete", "-f", rules, "--ignore-missing").splitlines() == [
        "host-policy/example.org not found", "exclusion/private.example.org not found",
    ]  # fmt: skip
