"""An estate in Terraform on a cluster of real masters: over the plugin protocol, and with the real Terraform."""

import json
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cli.dev.terraform import PROVIDER
from tests.support import doc_examples
from tests.support.api.cluster_clients import address, admin, asking
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.terraform.core import Resource, plugin
from tests.support.terraform.terraform_command import TERRAFORM, Estate

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(900)]

EXAMPLES = PROVIDER.parent / "examples"
COUNT = 40
MASTERS = ("m1", "m2")
EMPTY = "No changes."
HEAD = """\
terraform {
  required_providers {
    orb = { source = "orbweaver/orb" }
  }
}
"""
MANY = f"""
resource "orb_crawl" "many" {{
  count = {COUNT}
  name  = "many-${{count.index}}"
  spec  = jsonencode({{ seeds = ["https://example.org/"] }})
  start = false

  deletion_protection = true
}}
"""

needs_terraform = pytest.mark.skipif(
    TERRAFORM is None, reason="there is no terraform binary; the plugin protocol is tested without it"
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        for name in MASTERS:
            made.master(name)
        made.wait_until(lambda: made.leader() is not None, "there is a leader")
        yield made


def environ(cluster: Cluster) -> dict[str, str]:
    """The variables of the provider."""
    urls = ",".join(address(cluster, name) for name in MASTERS)
    return {"ORB_SERVER": urls, "ORB_API_KEY": admin(cluster)["Authorization"].removeprefix("Bearer ")}


def test_leader_killed_during_apply_leaves_no_crawl_twice(cluster: Cluster, tmp_path: Path) -> None:
    """Ten are created at once, with a schedule and an exclusion each. The next plan is empty."""
    made, halfway = Counter[str](), threading.Event()

    def configs(number: int) -> list[tuple[str, dict[str, Any]]]:
        name = f"c{number}"
        return [
            ("orb_crawl", {"name": name, "spec": '{"seeds": ["https://example.org/"]}', "start": False}),
            ("orb_schedule", {"name": name, "crawl": name, "verb": "start", "cron": "30 2 * * *"}),
            ("orb_exclusion", {"target": f"{name}.example", "reason": "asked"}),
        ]

    with plugin(tmp_path, environ(cluster), retry_s=120) as provider:

        def apply(number: int) -> list[Resource]:
            resources = []
            for kind, config in configs(number):
                resources.append(Resource(provider, kind))
                resources[-1].apply(**config)
                made[kind] += 1
                if made.total() >= COUNT:
                    halfway.set()
            return resources

        with ThreadPoolExecutor(10) as pool:
            applied = pool.map(apply, range(COUNT))
            assert halfway.wait(120)
            leader = cluster.leader()
            assert leader is not None
            cluster.members[leader].end()
            estate = list(applied)
        cluster.master(leader)
        cluster.wait_until(lambda: cluster.leader() is not None, "there is a leader again")
        changed = [
            (kind, config)
            for number, resources in enumerate(estate)
            for resource, (kind, config) in zip(resources, configs(number), strict=True)
            if resource.changes(**config)
        ]
        assert changed == []
    for table, name in (("crawls", "name"), ("schedules", "name"), ("exclusions", "target")):
        found = Counter(str(row) for (row,) in cluster.query(f"SELECT {name} FROM {table}"))
        assert (len(found), set(found.values())) == (COUNT, {1}), table


@needs_terraform
def test_real_terraform_manages_an_estate(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "estate"
    folder.mkdir()
    estate = Estate(folder, environ(cluster))
    for example in sorted(EXAMPLES.iterdir()):  # as they are, but the masters' addresses and the settings' block
        text = (example / "main.tf").read_text().replace('  url = ["http://127.0.0.1:8081"]', "  ")
        (folder / f"{example.name}.tf").write_text(text if example.name == "crawl" else text.partition("\n}\n")[2])
    assert "Success!" in estate.run("validate")
    assert "13 added" in estate.run("apply", "-auto-approve")
    assert EMPTY in estate.run("plan", "-detailed-exitcode")

    with asking(cluster, "m1") as api:
        change(folder, "max_pages = 10000", "max_pages = 20000")
        assert "0 added, 1 changed, 0 destroyed" in estate.run("apply", "-auto-approve")
        assert api.get("/v1/crawls/docs").json()["spec"]["budget"]["max_pages"] == 20000
        assert api.patch("/v1/crawls/docs", json={"spec": {"budget": {"max_pages": 7}}}).status_code == 200
        drift = estate.run("plan", "-detailed-exitcode", code=2)
        assert "max_pages = 7 -> 20000" in drift
        assert "politeness" not in drift, "defaults are no drift"
        estate.run("apply", "-auto-approve")

        estate.run("state", "rm", "orb_crawl.docs")
        assert "exists already" in estate.run("apply", "-auto-approve", code=1)
        assert "Import successful!" in estate.run("import", "orb_crawl.docs", "docs")
        assert EMPTY in estate.run("plan", "-detailed-exitcode")

        change(folder, "max_pages = 20000", "max_pages = -1")
        wrong = " ".join(estate.run("plan", code=1).split())
        assert "spec.budget.max_pages expected a whole number" in wrong
        assert "with orb_crawl.docs" in wrong
        change(folder, "max_pages = -1", "max_pages = 20000")
        assert api.get("/v1/crawls/docs").json()["spec"]["budget"]["max_pages"] == 20000


@needs_terraform
def test_session_of_the_page_does_what_it_shows(cluster: Cluster, tmp_path: Path) -> None:
    (session,) = [each for each in doc_examples.blocks("docs/terraform.md") if each.first.startswith("$ terraform")]
    folder, variables = tmp_path / "estate", environ(cluster)
    folder.mkdir()
    here = {"http://127.0.0.1:8081": address(cluster, "m1")}
    Estate(folder, variables).configure((EXAMPLES / "crawl" / "main.tf").read_text(), here)
    for command, shown in doc_examples.spoken(session.text):
        said = Estate(folder, variables).shell(command, here)
        assert doc_examples.missing(shown, said) == [], f"{command}\n{said}"


@needs_terraform
def test_real_terraform_survives_the_death_of_the_leader(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "estate"
    folder.mkdir()
    (folder / "main.tf").write_text(HEAD + MANY)
    estate = Estate(folder, environ(cluster))
    applying = estate.start("apply", "-auto-approve")
    cluster.wait_until(lambda: len(cluster.query("SELECT name FROM crawls")) >= 5, "some crawls are created")
    leader = cluster.leader()
    assert leader is not None
    cluster.members[leader].end()
    said, _ = applying.communicate(timeout=240)
    assert applying.returncode == 0, said
    assert f"{COUNT} added" in said
    assert EMPTY in estate.run("plan", "-detailed-exitcode")
    names = [name for (name,) in cluster.query("SELECT name FROM crawls")]
    assert (len(names), len(set(names))) == (COUNT, COUNT)
    assert "protected against deletion" in estate.run("destroy", "-auto-approve", code=1)
    (folder / "main.tf").write_text(HEAD + MANY.replace("protection = true", "protection = false"))
    estate.run("apply", "-auto-approve")
    assert f"{COUNT} destroyed" in estate.run("destroy", "-auto-approve")
    assert cluster.query("SELECT name FROM crawls WHERE state != 'deleted'") == []


@needs_terraform
def test_key_is_in_no_plan_state_or_log(cluster: Cluster, tmp_path: Path) -> None:
    """Terraform stores the values of variables in a saved plan itself, so the key comes from ORB_API_KEY."""
    folder = tmp_path / "estate"
    folder.mkdir()
    (folder / "main.tf").write_text((EXAMPLES / "exclusion" / "main.tf").read_text())
    variables = environ(cluster)
    estate, key = Estate(folder, variables), variables["ORB_API_KEY"]
    said = estate.run("plan", "-out=saved.plan", TF_LOG="TRACE")
    said += estate.run("show", "-json", "saved.plan")
    said += estate.run("apply", "saved.plan", TF_LOG="TRACE")
    with zipfile.ZipFile(folder / "saved.plan") as parts:
        stored = b"".join(parts.read(name) for name in parts.namelist())
    stored += (folder / "terraform.tfstate").read_bytes()
    assert "orb_exclusion" in said
    assert b"orb_exclusion" in stored
    for part in (key, key.split("_", 2)[2]):
        assert part not in said
        assert part.encode() not in stored

    broken = Estate(folder, variables | {"ORB_API_KEY": key[:-1]})
    said = broken.run("plan", code=1, TF_LOG="TRACE")
    assert "Set a valid API key" in " ".join(said.split())
    assert key[:-1] not in said


@needs_terraform
def test_secret_of_a_created_key_is_in_the_state_alone(cluster: Cluster, tmp_path: Path) -> None:
    """Plans, answers and logs show none of it, at any step. The state has it, and it opens the API."""
    folder = tmp_path / "estate"
    folder.mkdir()
    text = (EXAMPLES / "api-key" / "main.tf").read_text()
    (folder / "main.tf").write_text(text)
    estate = Estate(folder, environ(cluster))
    said = estate.run("plan", "-out=saved.plan", TF_LOG="TRACE")
    said += estate.run("show", "saved.plan") + estate.run("show", "-json", "saved.plan")
    with zipfile.ZipFile(folder / "saved.plan") as parts:
        planned = b"".join(parts.read(name) for name in parts.namelist())
    said += estate.run("apply", "saved.plan", TF_LOG="TRACE")
    secret = estate.run("output", "-raw", "dashboard_key")
    with asking(cluster, "m1") as api:
        headers = {"Authorization": f"Bearer {secret}"}
        assert api.get("/v1/crawls", headers=headers).status_code == 200
        state = json.loads((folder / "terraform.tfstate").read_text())
        stored = {each["name"]: each["instances"][0]["attributes"] for each in state["resources"]}
        assert stored["dashboard"]["secret"] == secret
        assert stored["deployment"]["secret"] is None
        said += estate.run("show") + estate.run("output")
        assert "secret      = (sensitive value)" in said
        (folder / "main.tf").write_text(text.replace('"viewer"', '"operator"'))
        said += estate.run("plan", TF_LOG="TRACE") + estate.run("apply", "-auto-approve", TF_LOG="TRACE")
        assert "0 added, 1 changed, 0 destroyed" in said
        unchanged = estate.run("plan", "-detailed-exitcode", TF_LOG="TRACE")
        assert EMPTY in unchanged
        assert estate.run("output", "-raw", "dashboard_key") == secret, "a change in place keeps it"
        said += unchanged + estate.run("state", "rm", "orb_api_key.dashboard")
        said += estate.run("import", "orb_api_key.dashboard", "dashboard", TF_LOG="TRACE")
        said += estate.run("destroy", "-auto-approve", TF_LOG="TRACE")
        assert api.get("/v1/crawls", headers=headers).status_code == 401
        said += api.get("/v1/api-keys?revoked=true").text + api.get("/v1/audit").text
    said += "".join(member.log.read_text() for member in cluster.members.values())
    for part in (secret, secret.split("_", 2)[2]):
        assert part not in said
        assert part.encode() not in planned


def change(folder: Path, old: str, new: str) -> None:
    """Edit the example of a crawl."""
    file = folder / "crawl.tf"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
