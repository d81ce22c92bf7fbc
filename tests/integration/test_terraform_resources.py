"""`orb_schedule`, `orb_exclusion`, `orb_config` and the data sources, over the plugin protocol and the real API."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.domain.ops.access import Role
from tests.support.api.api_server import Served
from tests.support.terraform.core import REFINED, UNKNOWN, Failed, Plugin, Resource, plugin
from tests.support.terraform.estate_api import api as api
from tests.support.terraform.estate_api import client_of, refused
from tests.support.terraform.estate_api import provider as provider
from tests.support.terraform.scripted_api import NO_ANSWER, Asked, Reply, scripted
from tests.support.terraform.scripted_api import refused as problem

SPEC = json.dumps({"seeds": ["https://example.org/"]})
OPENAPI = Path(__file__).resolve().parents[2] / "openapi" / "openapi.json"
NIGHTLY = {"name": "nightly", "selector": {"team": "search"}, "verb": "start", "cron": "30 2 * * *"}
ASKED = {"target": "Example.NET", "reason": "the owner asked"}
CONFIG = {"config": json.dumps({"log_level": "info", "worker": {"max_visits": 512}})}
POLICY = {"host": "Slow.Example.ORG", "delay_s": "0.1", "slots": 2, "block": {"reason": "maintenance"}}
"""Terraform sends 0.1 as text, since no binary fraction is 0.1."""

CASES: dict[str, dict[str, Any]] = {
    "orb_schedule": NIGHTLY,
    "orb_exclusion": ASKED,
    "orb_config": CONFIG,
    "orb_host_policy": POLICY,
}


@pytest.fixture
def client(api: Served) -> Iterator[httpx.Client]:
    """An operator's client. At its end nothing of the test is left."""
    with client_of(api, Role.OPERATOR) as made:
        yield made
        keys = {"schedules": "name", "exclusions": "id", "crawls": "name", "host-policies": "host"}
        for kind, key in keys.items():
            for each in made.get(f"/v1/{kind}").json()["items"]:
                assert made.delete(f"/v1/{kind}/{each[key]}").status_code in (202, 204)
        made.put("/v1/config", json={})


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("kind", CASES)
def test_resource_is_made_planned_without_difference_and_deleted(provider: Plugin, kind: str) -> None:
    made = Resource(provider, kind)
    made.apply(**CASES[kind])
    assert made.changes(**CASES[kind]) == set()
    made.destroy()


@pytest.mark.parametrize("unknown", [UNKNOWN, REFINED])
@pytest.mark.parametrize("kind", CASES)
def test_unknown_values_of_any_attribute_are_planned(provider: Plugin, kind: str, unknown: dict[str, Any]) -> None:
    resource = Resource(provider, kind)
    settable = {name for name, each in resource.attributes.items() if each.get("required") or each.get("optional")}
    for name in settable:
        assert resource.plan(**CASES[kind] | {name: unknown})[name] == UNKNOWN
    if "selector" in settable:
        assert resource.plan(**NIGHTLY | {"selector": {"team": unknown}})["selector"] == {"team": UNKNOWN}


def test_schedule_is_changed_in_place_and_drift_is_mended(provider: Plugin, client: httpx.Client) -> None:
    schedule = Resource(provider, "orb_schedule")
    first = schedule.apply(**NIGHTLY)
    window = {"start": "22:00", "end": "06:00"}
    interval = {"name": "nightly", "selector": {"team": "search"}, "verb": "pause", "every_s": 3600}
    state = schedule.apply(**interval, window=window, jitter_s=60, paused=True)
    assert (state["schedule_id"], state["cron"], state["window"]) == (first["schedule_id"], None, window)
    assert client.post("/v1/schedules/nightly/resume").status_code == 200
    assert schedule.changes(**interval, window=window, jitter_s=60, paused=True) == {"paused"}
    schedule.apply(**NIGHTLY)
    shown = client.get("/v1/schedules/nightly").json()
    assert (shown["cron"], shown["every_s"], shown["window"], shown["paused"]) == ("30 2 * * *", None, None, False)
    assert client.delete("/v1/schedules/nightly").status_code == 204
    assert "id" in schedule.changes(**NIGHTLY)


def test_another_name_replaces_a_schedule(provider: Plugin, client: httpx.Client) -> None:
    schedule = Resource(provider, "orb_schedule")
    schedule.apply(**NIGHTLY)
    schedule.apply(**NIGHTLY | {"name": "daily"})
    assert [each["name"] for each in client.get("/v1/schedules").json()["items"]] == ["daily"]


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"cron": "30 2 31 2 *"}, "cron"),
        ({"cron": "* * *"}, "cron"),
        ({"zone": "Europe/Nowhere"}, "zone"),
        ({"verb": "stop"}, "verb"),
        ({"window": {"start": "25:00", "end": "06:00"}}, "window.start"),
        ({"window": {"start": "22:00"}}, "window.end"),
        ({"selector": {"Team": "x"}}, "selector.Team"),
        ({"selector": None}, "crawl"),
        ({"every_s": 3600}, "cron"),
        ({"every_s": 1, "cron": None}, "every_s"),
        ({"name": "No Name"}, "name"),
        ({"late_s": 0}, "late_s"),
        ({"jitter_s": 1.5}, "jitter_s"),
    ],
)
def test_schedule_that_cannot_be_used_is_refused_by_the_plan(provider: Plugin, change: Any, path: str) -> None:
    assert [each for each, _ in refused(Resource(provider, "orb_schedule"), **NIGHTLY | change)] == [path]


def test_change_that_a_schedule_cannot_have_is_refused_by_the_plan(provider: Plugin, client: httpx.Client) -> None:
    schedule = Resource(provider, "orb_schedule")
    schedule.apply(**NIGHTLY)
    with pytest.raises(Failed, match="Europe/Nowhere"):
        schedule.plan(**NIGHTLY | {"zone": "Europe/Nowhere"})
    assert schedule.plan(**NIGHTLY | {"zone": UNKNOWN, "cron": "no cron"})["zone"] == UNKNOWN
    assert client.get("/v1/schedules/nightly").json()["zone"] == "UTC"


def test_schedule_whose_crawl_refuses_it_is_planned_with_a_warning(provider: Plugin, client: httpx.Client) -> None:
    """The crawl may be created, or changed, by the same apply."""
    schedule, config = Resource(provider, "orb_schedule"), NIGHTLY | {"crawl": "declared", "selector": None}
    schedule.plan(**config)
    assert [(each.path, "declared" in each.detail) for each in schedule.warnings] == [("crawl", True)]
    with pytest.raises(Failed, match=r"^crawl: "):
        schedule.apply(**config)
    crawl = {"name": "declared", "spec": json.loads(SPEC), "desired": "paused"}
    assert client.post("/v1/crawls", json=crawl).status_code == 201
    schedule.plan(**config)
    assert ["desired: paused" in each.detail for each in schedule.warnings] == [True]
    with pytest.raises(Failed, match=r"^verb: "):
        schedule.apply(**config)
    assert client.patch("/v1/crawls/declared", json={"desired": None}).status_code == 200
    schedule.apply(**config)
    assert (schedule.warnings, schedule.changes(**config)) == ([], set())


def test_exclusion_keeps_the_texts_of_its_configuration(provider: Plugin, client: httpx.Client) -> None:
    exclusion = Resource(provider, "orb_exclusion")
    config = ASKED | {"until": "2130-01-01T01:00:00+01:00"}
    state = exclusion.apply(**config)
    assert (state["target"], client.get(f"/v1/exclusions/{state['id']}").json()["target"]) == (
        "Example.NET",
        "example.net",
    )
    assert exclusion.changes(**config) == set()
    assert exclusion.changes(**config | {"target": "example.net", "until": "2130-01-01T00:00:00Z"}) == set()
    changed = exclusion.apply(**config | {"reason": "they asked again", "until": None})
    assert (changed["id"], changed["until"], changed["reason"]) == (state["id"], None, "they asked again")
    other = exclusion.apply(**config | {"target": "192.0.2.0/24"})
    assert other["id"] != state["id"]
    assert client.get(f"/v1/exclusions/{state['id']}").status_code == 404


def test_exclusion_drift_deletion_and_bad_values(provider: Plugin, client: httpx.Client) -> None:
    exclusion = Resource(provider, "orb_exclusion")
    state = exclusion.apply(**ASKED)
    assert client.put(f"/v1/exclusions/{state['id']}", json={"reason": "another"}).status_code == 200
    assert exclusion.changes(**ASKED) == {"reason"}
    assert client.delete(f"/v1/exclusions/{state['id']}").status_code == 204
    assert "id" in exclusion.changes(**ASKED)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("present", [False, True], ids=["new", "present"])
@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"target": "not a host"}, "target"),
        ({"until": "2020-01-01T00:00:00Z"}, "until"),
        ({"until": "tomorrow"}, "until"),
        ({"reason": ""}, "reason"),
        ({"requested_by": "x" * 9999}, "requested_by"),
    ],
)
def test_exclusion_that_cannot_be_used_is_refused_by_the_plan(
    provider: Plugin, change: Any, path: str, present: bool
) -> None:
    exclusion = Resource(provider, "orb_exclusion")
    if present:
        exclusion.apply(**ASKED)
    if present and path == "target":  # it is replaced: Terraform plans the new one like any other
        exclusion.plan(**ASKED | change)
        exclusion.state = None
    assert [each for each, _ in refused(exclusion, **ASKED | change)] == [path]


def test_host_policy_is_replaced_as_a_whole_and_drift_is_mended(provider: Plugin, client: httpx.Client) -> None:
    policy, path = Resource(provider, "orb_host_policy"), "/v1/host-policies/slow.example.org"
    state = policy.apply(**POLICY)
    shown = client.get(path).json()
    assert (state["id"], shown["delay_s"], shown["block"], shown["slots"]) == (
        "slow.example.org",
        0.1,
        {"reason": "maintenance", "until": None},
        2,
    )
    block = {"reason": "moved", "until": "2130-01-01T01:00:00+01:00"}
    changed = policy.apply(host="slow.example.org", block=block)
    assert (changed["created_at"], changed["delay_s"], policy.replaced) == (state["created_at"], None, [])
    assert policy.changes(host="slow.example.org", block=block) == set()
    assert client.get(path).json()["block"] == block
    assert client.put(path, json={"delay_s": 7.5, "block": block}).status_code == 200
    assert policy.changes(host="slow.example.org", block=block) == {"delay_s"}
    assert policy.state is not None
    assert policy.state["delay_s"] == "7.5"
    policy.apply(host="slow.example.org", block=block)
    assert client.get(path).json()["delay_s"] is None
    assert client.delete(path).status_code == 202
    assert "id" in policy.changes(host="slow.example.org")


def test_another_host_is_another_policy_and_a_present_one_is_imported(provider: Plugin, client: httpx.Client) -> None:
    policy = Resource(provider, "orb_host_policy")
    policy.apply(**POLICY)
    policy.apply(**POLICY | {"host": "other.example:8080"})
    assert [each["host"] for each in client.get("/v1/host-policies").json()["items"]] == ["other.example:8080"]
    again = Resource(provider, "orb_host_policy")
    with pytest.raises(Failed, match=r"exists already.*terraform import orb_host_policy\.NAME other\.example:8080"):
        again.apply(host="other.example:8080", delay_s=1)
    assert again.import_("OTHER.example:8080")["delay_s"] == "0.1"
    assert again.changes(**POLICY | {"host": "other.example:8080"}) == set()
    with pytest.raises(Failed, match="There is no host_policy"):
        Resource(provider, "orb_host_policy").import_("nowhere.example")


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"host": "a/b"}, "host"),
        ({"host": ""}, "host"),
        ({"host": ".."}, "host"),
        ({"host": "no host"}, "host"),
        ({"delay_s": -1}, "delay_s"),
        ({"delay_s": 86401}, "delay_s"),
        ({"slots": 0}, "slots"),
        ({"slots": 1.5}, "slots"),
        ({"block": {"until": "2130-01-01T00:00:00Z"}}, "block.reason"),
        ({"block": {"reason": "x", "until": "2020-01-01T00:00:00Z"}}, "block.until"),
        ({"block": {"reason": "x", "til": "2130-01-01T00:00:00Z"}}, "block.til"),
    ],
)
def test_host_policy_that_cannot_be_used_is_refused_by_the_plan(provider: Plugin, change: Any, path: str) -> None:
    assert [each for each, _ in refused(Resource(provider, "orb_host_policy"), **POLICY | change)] == [path]


def test_host_policy_that_appears_after_the_plan_is_not_overwritten(tmp_path: Path) -> None:
    """Another client is faster, or an earlier attempt of the same apply, whose answer was lost."""
    shown = {"host": "a.test", "delay_s": 2.0, "block": None, "slots": None, "created_at": "2030-01-01T00:00:00Z"}

    loses: list[bool] = []

    def answer(asked: Asked) -> Reply:
        match asked.method:
            case "POST":
                return Reply(200, {"action": "create", "changes": [], "warnings": []})
            case "PUT":
                puts = [each for each in masters.asked if each.method == "PUT"]
                assert puts[-1].headers["If-None-Match"] == "*"
                return Reply(NO_ANSWER) if loses[-1] and len(puts) == 1 else problem(412, "lost-update", "it is there")
        return Reply(200, shown)

    with scripted(answer) as masters, plugin(tmp_path, {}, url=[masters.url], token="t", retry_s=10) as provider:
        for lost, delay_s in ((False, 2), (True, 3)):
            loses.append(lost)
            masters.asked.clear()
            with pytest.raises(Failed, match=r"exists already.*terraform import orb_host_policy\.NAME a\.test"):
                Resource(provider, "orb_host_policy").apply(host="a.test", delay_s=delay_s)
        masters.asked.clear()
        assert Resource(provider, "orb_host_policy").apply(host="a.test", delay_s=2)["id"] == "a.test"


def test_configuration_owns_the_values_that_it_names(provider: Plugin, client: httpx.Client) -> None:
    config = Resource(provider, "orb_config")
    config.apply(**CONFIG)
    assert client.get("/v1/config").json()["config"]["worker"]["max_visits"] == 512
    spaced = json.dumps({"worker": {"report_s": None, "max_visits": 512}, "log_level": "info", "pools": {}}, indent=1)
    assert config.changes(config=spaced) == set()
    client.put("/v1/config", json={"log_level": "debug"})
    assert {"config", "revision"} <= config.changes(**CONFIG)
    assert config.state is not None
    assert config.state["config"] == '{"log_level":"debug"}'
    config.apply(**CONFIG)
    (found,) = refused(config, config='{"worker": {"max_visits": -1}}')
    (other,) = refused(Resource(provider, "orb_config"), config='{"pools": {"eu": {"max_visit": 1}}}')
    assert (other[0], other[1].partition(" ")[0]) == ("config", "pools.eu.max_visit")
    assert (found[0], found[1].partition(" ")[0]) == ("config", "worker.max_visits")
    config.destroy()
    assert client.get("/v1/config").json()["config"]["log_level"] is None


def test_configuration_leaves_values_alone_that_it_does_not_name(provider: Plugin, client: httpx.Client) -> None:
    def held() -> dict[str, Any]:
        names = ("log_level", "worker.max_visits", "pools.eu.max_visits", "retention.audit_days")
        return {name: client.get(f"/v1/config/{name}").json()["value"] for name in names}

    client.put("/v1/config/retention.audit_days", json={"value": 30})
    config = Resource(provider, "orb_config")
    config.apply(config=json.dumps({"worker": {"max_visits": 7}, "pools": {"eu": {"max_visits": 3}}}))
    client.put("/v1/config/log_level", json={"value": "debug"})
    client.put("/v1/config/retention.audit_days", json={"value": 31})
    others = {"log_level": "debug", "retention.audit_days": 31}
    same = json.dumps({"pools": {"eu": {"max_visits": 3}}, "worker": {"max_visits": 7}})
    assert config.changes(config=same) == set(), "what others set is no drift"
    config.apply(config=json.dumps({"worker": {"max_visits": 8}}))
    assert held() == others | {"worker.max_visits": 8, "pools.eu.max_visits": None}
    client.put("/v1/config/worker.max_visits", json={"value": 9})
    assert {"config"} <= config.changes(config=json.dumps({"worker": {"max_visits": 8}}))
    assert config.state is not None
    assert config.state["config"] == '{"worker":{"max_visits":9}}', "drift shows what it names"
    config.destroy()
    assert held() == others | {"worker.max_visits": None, "pools.eu.max_visits": None}


def test_two_configurations_share_the_cluster_by_their_values(provider: Plugin, client: httpx.Client) -> None:
    """Two teams have a state each."""
    workers, levels = Resource(provider, "orb_config"), Resource(provider, "orb_config")
    workers.apply(config='{"worker":{"max_visits":5}}')
    levels.apply(config='{"log_level":"error"}')
    for resource, text in ((workers, '{"worker":{"max_visits":5}}'), (levels, '{"log_level":"error"}')):
        assert resource.changes(config=text) == set()
    workers.destroy()
    assert client.get("/v1/config").json()["config"]["log_level"] == "error"


def test_configuration_of_others_is_not_overwritten_but_imported(provider: Plugin, client: httpx.Client) -> None:
    client.put("/v1/config", json={"log_level": "debug", "worker": {"report_s": 0.5}})
    config = Resource(provider, "orb_config")
    with pytest.raises(Failed, match=r'^config: `log_level` is "debug" in the cluster already: another client changed'):
        config.apply(**CONFIG)
    assert client.get("/v1/config/worker.max_visits").json()["value"] is None
    config.import_("log_level")
    assert {"config"} <= config.changes(**CONFIG)
    config.apply(**CONFIG)
    assert client.get("/v1/config/worker.report_s").json()["value"] == 0.5
    taken = json.dumps({"log_level": "info", "worker": {"max_visits": 512, "report_s": 9}})
    with pytest.raises(Failed, match=r"^config: `worker\.report_s` is 0\.5 in the cluster already: another client"):
        config.apply(config=taken)
    config.import_("config")
    assert {"config"} <= config.changes(**CONFIG), "an import of the whole names all that is set"
    for unknown in ("other", "log_level,master.grant_s"):
        with pytest.raises(Failed, match="There is no config"):
            config.import_(unknown)


@pytest.mark.long
def test_twenty_imports_leave_no_difference(provider: Plugin, client: httpx.Client) -> None:
    kinds: list[tuple[str, str, dict[str, Any]]] = []
    for number in range(8):
        name = f"c{number}"
        kinds.append(("orb_crawl", name, {"name": name, "spec": SPEC, "labels": {"n": str(number)}}))
        kinds.append(("orb_schedule", f"s{number}", NIGHTLY | {"name": f"s{number}"}))
    kinds += [("orb_exclusion", host, {"target": host, "reason": "asked"}) for host in ("a.example",)]
    kinds += [("orb_host_policy", "slow.example.org", POLICY)]
    kinds += [("orb_exclusion", "192.0.2.0/24", {"target": "192.0.2.0/24", "reason": "asked", "withdraw": True})]
    kinds += [("orb_config", "config", CONFIG)]
    for kind, _, config in kinds:
        Resource(provider, kind).apply(**config)
    imported = [(Resource(provider, kind), text, config) for kind, text, config in kinds]
    for resource, text, _ in imported:
        resource.import_(text)
    assert len(imported) == 20
    assert [text for resource, text, config in imported if resource.changes(**config)] == []
    assert client.get("/v1/crawls").json()["items"][0]["revision"] == 1


@pytest.mark.usefixtures("client")
def test_ten_at_once_are_created_and_read(provider: Plugin) -> None:
    gate = threading.Barrier(10)

    def one(number: int) -> set[str]:
        crawl, config = Resource(provider, "orb_crawl"), {"name": f"at-once-{number}", "spec": SPEC}
        gate.wait(30)
        for change in range(3):
            config["labels"] = {"change": str(change)}  # type: ignore[assignment]  # a map beside texts
            crawl.apply(**config)
        return crawl.changes(**config)

    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(one, range(10))) == [set()] * 10


def test_data_sources_show_cluster_and_crawls(provider: Plugin, client: httpx.Client) -> None:
    for name, team in (("one", "a"), ("two", "b"), ("other", "a")):
        body = {"name": name, "spec": json.loads(SPEC), "labels": {"team": team}, "start": False}
        assert client.post("/v1/crawls", json=body).status_code == 201
    cluster = provider.source("orb_cluster")
    assert (cluster["id"], cluster["workers"]) == ("cluster", 0)
    crawl = provider.source("orb_crawl", name="one")
    assert (crawl["state"], crawl["labels"], json.loads(crawl["spec"])["scope"]["mode"]) == (
        "created",
        {"team": "a"},
        "host",
    )
    every = provider.source("orb_crawls")
    assert (every["names"], every["states"]["two"]) == (["one", "other", "two"], "created")
    assert provider.source("orb_crawls", labels={"team": "a"}, prefix="o", state="created")["names"] == ["one", "other"]
    assert provider.source("orb_crawls", state="running")["names"] == []
    for source, config in (("orb_crawl", {"name": "nowhere"}), ("orb_crawls", {"state": "lost"})):
        with pytest.raises(Failed, match=r"no crawl|state"):
            provider.source(source, **config)


def test_viewer_may_plan_and_not_apply(api: Served, tmp_path: Path, client: httpx.Client) -> None:
    with plugin(tmp_path, api.environ(Role.VIEWER), retry_s=5) as viewing:
        crawl = Resource(viewing, "orb_crawl")
        assert crawl.plan(name="viewed", spec=SPEC)["name"] == "viewed"
        with pytest.raises(Failed, match="role operator"):
            crawl.apply(name="viewed", spec=SPEC)
    assert client.get("/v1/crawls/viewed").status_code == 404


def test_defaults_are_those_of_the_api(provider: Plugin) -> None:
    """A schedule that leaves out all it can is planned with the defaults that the OpenAPI document names."""
    properties = json.loads(OPENAPI.read_text())["components"]["schemas"]["ScheduleReplacement"]["properties"]
    given = {"verb": "start", "crawl": "plain", "every_s": 3600}
    planned = Resource(provider, "orb_schedule").plan(name="plain", **given)
    for name, each in properties.items():
        if name not in given:
            assert planned[name] == each.get("default", {} if name == "selector" else None), name


def test_every_field_that_the_api_takes_is_an_attribute(provider: Plugin) -> None:
    schemas = json.loads(OPENAPI.read_text())["components"]["schemas"]
    bodies = {"orb_crawl": "CrawlInput", "orb_schedule": "ScheduleInput", "orb_exclusion": "ExclusionInput"}
    bodies |= {"orb_host_policy": "HostPolicyInput", "orb_api_key": "KeyInput", "orb_seed_set": "SeedSetInput"}
    for kind, body in bodies.items():
        assert set(schemas[body]["properties"]) - set(provider.resources[kind]) == set()
