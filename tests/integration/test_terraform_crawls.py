"""`orb_crawl` over the plugin protocol and the real API: plans, drift, import, protection, and bad values."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from shared.domain.ops.access import Role
from tests.support.api.api_server import Served
from tests.support.terraform.core import REFINED, UNKNOWN, Failed, Plugin, Resource
from tests.support.terraform.estate_api import api as api
from tests.support.terraform.estate_api import client_of, refused
from tests.support.terraform.estate_api import provider as provider

SPEC = {"seeds": ["https://example.org/"], "budget": {"max_pages": 10}}


def text(**more: Any) -> str:
    """A spec as a configuration has it."""
    return json.dumps(SPEC | more)


@pytest.fixture
def crawl(provider: Plugin) -> Resource:
    return Resource(provider, "orb_crawl")


@pytest.fixture
def client(api: Served) -> Iterator[httpx.Client]:
    with client_of(api, Role.OPERATOR) as made:
        yield made


def test_crawl_is_created_once_and_planned_without_difference(crawl: Resource, client: httpx.Client) -> None:
    config = {"name": "made", "spec": text(), "labels": {"team": "search"}, "start": False}
    state = crawl.apply(**config)
    assert (state["id"], state["revision"], state["deletion_protection"]) == ("made", 1, True)
    assert crawl.changes(**config) == set()
    shown = client.get("/v1/crawls/made").json()
    assert (shown["state"], shown["labels"], shown["id"]) == ("created", {"team": "search"}, state["crawl_id"])


def test_spec_written_another_way_is_no_difference(crawl: Resource) -> None:
    crawl.apply(name="same", spec=text())
    longer = text(seeds=[{"url": "https://example.org/"}], pool="default", recrawl={})
    for same in (json.dumps(SPEC, indent=2), longer):
        assert crawl.changes(name="same", spec=same) == set()


def test_change_is_made_in_place_and_keeps_identity(crawl: Resource, client: httpx.Client) -> None:
    before = crawl.apply(name="changed", spec=text())
    config = {"name": "changed", "spec": text(budget={"max_pages": 20}), "labels": {"a": "b"}}
    assert {"spec", "labels", "revision"} <= crawl.changes(**config)
    after = crawl.apply(**config)
    assert (after["crawl_id"], after["created_at"]) == (before["crawl_id"], before["created_at"])
    assert after["revision"] == 2
    assert crawl.changes(**config) == set()
    assert client.get("/v1/crawls/changed").json()["spec"]["budget"]["max_pages"] == 20


def test_removed_attributes_get_their_defaults_again(crawl: Resource, client: httpx.Client) -> None:
    crawl.apply(name="removed", spec=text(), labels={"a": "b"}, deletion_protection=False)
    state = crawl.apply(name="removed", spec=text())
    assert (state["labels"], state["deletion_protection"]) == ({}, True)
    assert client.get("/v1/crawls/removed").json()["labels"] == {}


def test_drift_shows_the_changed_field_alone(crawl: Resource, client: httpx.Client) -> None:
    config = {"name": "drifted", "spec": text(), "labels": {"team": "search"}}
    crawl.apply(**config)
    patch = {"spec": {"budget": {"max_pages": 7}, "politeness": {"delay_s": 2.5}}, "labels": {"team": "other"}}
    assert client.patch("/v1/crawls/drifted", json=patch).status_code == 200
    assert {"spec", "labels"} <= crawl.changes(**config)
    assert crawl.state is not None
    assert json.loads(crawl.state["spec"]) == SPEC | {"budget": {"max_pages": 7}, "politeness": {"delay_s": 2.5}}
    crawl.apply(**config)
    assert crawl.changes(**config) == set()
    assert client.get("/v1/crawls/drifted").json()["spec"]["politeness"]["delay_s"] == 1.0


def test_running_state_and_reset_are_no_drift(crawl: Resource, client: httpx.Client) -> None:
    config = {"name": "running", "spec": text()}
    first = crawl.apply(**config)
    assert client.post("/v1/crawls/running/pause").status_code == 200
    assert crawl.changes(**config) == set()
    assert client.post("/v1/crawls/running/reset").status_code == 200
    assert crawl.changes(**config) == set()
    assert crawl.state is not None
    assert crawl.state["crawl_id"] > first["crawl_id"]
    assert crawl.replaced == []


def test_declared_run_is_started_paused_and_left_to_verbs_again(crawl: Resource, client: httpx.Client) -> None:
    config = {"name": "declared", "spec": text()}
    shown = []
    for desired in ("paused", "running", "paused", None):
        state = crawl.apply(**config, desired=desired)
        assert (state["desired"], state["drifted"]) == (desired, False)
        assert crawl.changes(**config, desired=desired) == set()
        now = client.get("/v1/crawls/declared").json()
        shown.append((now["desired"], now["state"]))
    assert shown == [("paused", "created"), ("running", "seeding"), ("paused", "paused"), (None, "paused")]


@pytest.mark.parametrize(("desired", "verb"), [("running", "pause"), ("running", "cancel"), ("paused", "start")])
def test_verb_against_the_declared_run_is_drift(crawl: Resource, client: httpx.Client, desired: str, verb: str) -> None:
    config = {"name": f"{desired}-{verb}", "spec": text(), "desired": desired}
    crawl.apply(**config)
    assert client.post(f"/v1/crawls/{config['name']}/{verb}").status_code in (200, 202)
    for _ in range(2):
        assert crawl.changes(**config) == {"drifted", "crawl_id", "revision", "spec_digest"}
    state = crawl.apply(**config)
    assert (state["drifted"], state["revision"]) == (False, 1)
    assert crawl.changes(**config) == set()
    assert client.get(f"/v1/crawls/{config['name']}").json()["drifted"] is False


def test_drift_ends_where_the_declaration_of_the_run_does(crawl: Resource, client: httpx.Client) -> None:
    config = {"name": "left", "spec": text()}
    crawl.apply(**config, desired="running")
    assert client.post("/v1/crawls/left/pause").status_code == 200
    crawl.apply(**config)
    assert crawl.changes(**config) == set()
    now = client.get("/v1/crawls/left").json()
    assert (now["desired"], now["state"]) == (None, "paused")
    assert client.patch("/v1/crawls/left", json={"desired": "running"}).status_code == 200
    assert {"desired"} <= crawl.changes(**config)


def test_pause_between_plan_and_apply_is_kept(crawl: Resource, client: httpx.Client) -> None:
    config = {"name": "paused-late", "spec": text(), "desired": "running"}
    crawl.apply(**config)
    planned = crawl.plan(**config, labels={"a": "b"})
    assert client.post("/v1/crawls/paused-late/pause").status_code == 200
    with pytest.raises(Failed, match="changed by another client since the plan"):
        crawl.applied(planned)
    assert client.get("/v1/crawls/paused-late").json()["state"] == "paused"


def test_crawl_deleted_by_others_is_created_again(crawl: Resource, client: httpx.Client) -> None:
    config = {"name": "gone", "spec": text()}
    crawl.apply(**config)
    assert client.delete("/v1/crawls/gone").status_code == 204
    assert "id" in crawl.changes(**config)
    assert crawl.state is None
    assert crawl.apply(**config)["id"] == "gone"


def test_protected_crawl_is_neither_deleted_nor_replaced(crawl: Resource, client: httpx.Client) -> None:
    config = {"name": "kept", "spec": text()}
    crawl.apply(**config)
    with pytest.raises(Failed, match=r"deletion_protection.*false"):
        crawl.destroy()
    assert refused(crawl, name="kept-other", spec=text())[0][0] == "deletion_protection"
    open_state = crawl.apply(**config, deletion_protection=False)
    assert open_state["revision"] == 1, "the API does not have the protection"
    crawl.apply(name="kept-other", spec=text(), deletion_protection=False)
    assert client.get("/v1/crawls/kept").status_code == 404
    crawl.destroy()
    assert client.get("/v1/crawls/kept-other").status_code == 404


def test_impossible_specs_are_refused_by_the_plan(crawl: Resource, client: httpx.Client) -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"spec": text(budget={"max_pages": -1})}, "spec", "spec.budget.max_pages expected a whole number"),
        ({"spec": text(scope={"mode": "hosts"})}, "spec", "spec.scope.mode"),
        ({"spec": text(scop={})}, "spec", "spec.scop unknown field"),
        ({"spec": "{}"}, "spec", "spec.seeds"),
        ({"spec": "{"}, "spec", "`spec` is not JSON"),
        ({"spec": "[]"}, "spec", "`spec` is JSON, but no object"),
        ({"spec": text(), "labels": {"UPPER": "x"}}, "labels.UPPER", "labels.UPPER"),
        ({"spec": text(), "labels": {"a": None}}, "labels", "`labels` has a value that is null"),
        ({"spec": text(), "name": "No Name"}, "name", "path.name"),
        ({"spec": text(), "desired": "stopped"}, "desired", "desired"),
        ({"spec": text(), "desired": ""}, "desired", "desired"),
    ]
    for config, path, summary in cases:
        found = refused(crawl, **({"name": "impossible"} | config))
        assert [each for each, _ in found] == [path], (config, found)
        assert summary in found[0][1], (config, found)
    assert client.get("/v1/crawls/impossible").status_code == 404


def test_change_by_others_between_plan_and_apply_is_kept(crawl: Resource, client: httpx.Client) -> None:
    crawl.apply(name="raced", spec=text())
    planned = crawl.plan(name="raced", spec=text(budget={"max_pages": 20}))
    assert client.patch("/v1/crawls/raced", json={"spec": {"budget": {"max_pages": 30}}}).status_code == 200
    with pytest.raises(Failed, match="changed by another client since the plan"):
        crawl.applied(planned)
    assert client.get("/v1/crawls/raced").json()["spec"]["budget"]["max_pages"] == 30
    crawl.apply(name="raced", spec=text(budget={"max_pages": 20}))
    assert client.get("/v1/crawls/raced").json()["spec"]["budget"]["max_pages"] == 20


def test_existing_crawl_is_not_taken_over_but_imported(crawl: Resource, client: httpx.Client) -> None:
    made = client.post("/v1/crawls", json={"name": "there", "spec": SPEC, "labels": {"a": "b"}, "start": False})
    config = {"name": "there", "spec": text(), "labels": {"a": "b"}}
    with pytest.raises(Failed, match=r"terraform import orb_crawl\.NAME there"):
        crawl.apply(**config)
    assert crawl.import_("there")["crawl_id"] == made.json()["id"]
    assert crawl.changes(**config) == set()
    for name in ("nowhere", "No Name", "", "a/b", ".."):
        with pytest.raises(Failed, match="There is no crawl"):
            Resource(crawl.plugin, "orb_crawl").import_(name)


@pytest.mark.parametrize("unknown", [UNKNOWN, REFINED])
@pytest.mark.parametrize("name", ["name", "spec", "labels", "labels.a", "desired", "start", "deletion_protection"])
def test_unknown_value_of_any_attribute_is_planned(crawl: Resource, name: str, unknown: dict[str, Any]) -> None:
    config: dict[str, Any] = {"name": "unknown", "spec": text(), "labels": {"a": "b"}}
    attribute, _, key = name.partition(".")
    value: Any = {**config["labels"], key: unknown} if key else unknown
    planned = crawl.plan(**config | {attribute: value})
    assert planned[attribute] == ({"a": UNKNOWN} if key else UNKNOWN)


def test_unknown_spec_of_a_crawl_that_exists_leaves_it_in_place(crawl: Resource) -> None:
    crawl.apply(name="later", spec=text())
    planned = crawl.plan(name="later", spec=UNKNOWN)
    assert (planned["spec"], planned["revision"], planned["id"]) == (UNKNOWN, UNKNOWN, "later")
    crawl.applied(planned | {"spec": text(budget={"max_pages": 11})})
    assert crawl.changes(name="later", spec=text(budget={"max_pages": 11})) == set()


def test_state_edited_by_hand_is_mended_by_a_read(crawl: Resource) -> None:
    config = {"name": "edited", "spec": text()}
    crawl.apply(**config)
    assert crawl.state is not None
    crawl.state |= {"spec": "{", "labels": "no map", "revision": "x", "crawl_id": None, "of_a_later_version": 1}
    crawl.refresh()
    assert (crawl.state["revision"], crawl.state["labels"]) == (1, {})
    assert crawl.changes(**config) == set()
