"""Seed sets and API keys as files, against the real API: applied, drifted, mended, exported by roles, and deleted."""

from pathlib import Path

import httpx
import pytest

from cli.main import main
from cli.terminal.exits import Exit
from shared.domain.ops.access import Role
from tests.integration.test_ctl_estate import Orb, rest
from tests.integration.test_ctl_estate import cluster as cluster
from tests.integration.test_ctl_estate import files as files
from tests.integration.test_ctl_estate import orb as orb
from tests.support.api.api_server import Served
from tests.support.engines.nats_server import server as server

SEEDS = """\
kind: seed-set
crawl: docs
name: partners
seeds: [https://a.test/, {url: https://b.test/, priority: 3}]
---
kind: api-key
name: ci
role: operator
networks: [127.0.0.0/8, "::1/128"]
expires_at: 2090-01-01T00:00:00Z
"""


@pytest.mark.long
def test_seed_sets_and_keys_are_applied_drift_and_are_mended(cluster: Served, orb: Orb, files: Path) -> None:
    (files / "seeds.yaml").write_text(SEEDS)
    titles = ["config", "exclusion/private.example.org", "host-policy/example.org", "crawl/docs", "crawl/other",
        "crawl/apart", "seed-set/docs/partners", "schedule/nightly", "schedule/weekly", "api-key/ci"]  # fmt: skip
    dry = orb(cluster, "apply", "-f", files, "--dry-run")
    assert "seed-set/docs/partners would be created\n" in dry
    assert "orb_" not in dry
    *made, secret = orb(cluster, "apply", "-f", files).splitlines()
    assert [line.partition(" ")[0] for line in made] == titles
    with httpx.Client(base_url=cluster.url, headers={"Authorization": f"Bearer {secret}"}) as ci:
        assert ci.get("/v1/crawls/docs/seed-sets/partners").json()["count"] == 2
        assert ci.get("/v1/api-keys").status_code == 403
    assert orb(cluster, "apply", "-f", files).splitlines() == [f"{title} unchanged" for title in titles]

    with rest(cluster) as client:
        seeds = ["https://a.test/", "https://c.test/"]
        client.put("crawls/docs/seed-sets/partners", json={"seeds": seeds}).raise_for_status()
        client.put("crawls/docs/seed-sets/by-hand", json={"seeds": seeds}).raise_for_status()
        client.put("crawls/apart/seed-sets/by-hand", json={"seeds": seeds}).raise_for_status()
        key = client.put("api-keys/ci", json={"role": "admin", "networks": ["127.0.0.0/8", "::1"]}).json()
        client.put("api-keys/by-hand", json={"role": "viewer"}).raise_for_status()
    label = ("-l", "team=search")
    assert orb(cluster, "diff", "-f", files, *label, code=Exit.DIFFERENT).splitlines() == [
        "seed-set/docs/partners differs",
        "  - seeds: https://c.test/",
        "  + seeds: https://b.test/",
        "api-key/ci differs",
        "  + expires_at: 2090-01-01T00:00:00Z",
        "  - role: admin",
        "  + role: operator",
        "seed-set/docs/by-hand is only in the cluster",
    ]
    mended = orb(cluster, "apply", "-f", files, "--prune", *label, "--yes").splitlines()
    assert [line for line in mended if not line.endswith(" unchanged")] == [
        "seed-set/docs/partners configured",
        "api-key/ci configured",
        "seed-set/docs/by-hand deleted",
    ]
    assert orb(cluster, "diff", "-f", files, *label) == ""
    with rest(cluster) as client:
        assert client.get("api-keys/ci").json()["id"] == key["id"]
        assert client.get("api-keys/by-hand").json()["revoked_at"] is None
        assert [each["name"] for each in client.get("crawls/apart/seed-sets").json()["items"]] == ["by-hand"]


def test_keys_are_left_out_of_the_export_of_one_that_may_not_list_them(
    cluster: Served,
    orb: Orb,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "estate"
    orb(cluster, "export", "estate", "--out", folder)
    before = (folder / "api-keys.yaml").read_text()
    for role in (Role.VIEWER, Role.OPERATOR):
        for name, value in cluster.environ(role).items():
            monkeypatch.setenv(name, value)
        assert main(["ctl", "export", "estate", "--out", str(folder)]) == Exit.OK
        told = capfd.readouterr().err.splitlines()
        assert told[0] == "orb: API keys are left out: only a key with the role admin may list them"
        assert (folder / "api-keys.yaml").read_text() == before, "it is as an admin has exported it"
    assert orb(cluster, "diff", "-f", folder / "api-keys.yaml") == ""
    assert "needs the role admin" in orb(
        cluster, "diff", "-f", folder / "api-keys.yaml", role=Role.VIEWER, code=Exit.USAGE
    )


def test_deletion_by_files_revokes_the_key_that_asks_last(cluster: Served, orb: Orb, files: Path) -> None:
    (files / "seeds.yaml").write_text(SEEDS)
    (files / "keys.yaml").write_text("name: admin\nrole: admin\n")
    orb(cluster, "apply", "-f", files)
    with rest(cluster) as client:
        client.put("api-keys/spare", json={"role": "admin"}).raise_for_status()
    assert orb(cluster, "delete", "-f", files).splitlines() == [
        "schedule/weekly deleted", "schedule/nightly deleted", "seed-set/docs/partners deleted", "crawl/apart deleted",
        "crawl/other deleted", "crawl/docs deleted", "host-policy/example.org deleted",
        "exclusion/private.example.org deleted", "api-key/ci deleted", "api-key/admin deleted",
    ]  # fmt: skip
