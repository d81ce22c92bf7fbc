"""`orb_seed_set` over the plugin protocol: against the real API, and against one that answers as a test says."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.domain.ops.access import Role
from tests.support.api.api_server import Served
from tests.support.terraform.core import REFINED, UNKNOWN, Failed, Plugin, Resource, plugin
from tests.support.terraform.estate_api import api as api
from tests.support.terraform.estate_api import client_of
from tests.support.terraform.estate_api import provider as provider
from tests.support.terraform.scripted_api import NO_ANSWER, Asked, Reply, refused, scripted

AT = "/v1/crawls/docs/seed-sets/partners"
OBJECT = '{"url": "https://b.test/", "priority": 5, "labels": {"team": "search"}}'
SET: dict[str, Any] = {"crawl": "docs", "name": "partners", "seeds": ["HTTPS://A.test", OBJECT], "wait_s": 0}
"""No partition has an owner here, so no command is ever applied."""


@pytest.fixture
def client(api: Served) -> Iterator[httpx.Client]:
    """An operator's client, with a crawl `docs` that has no sets."""
    with client_of(api, Role.OPERATOR) as made:
        body = {"spec": {"seeds": ["https://a.test/"]}, "start": False}
        assert made.put("/v1/crawls/docs", json=body).status_code == 201
        yield made
        assert made.delete("/v1/crawls/docs").status_code == 204


def errors(resource: Resource, **config: Any) -> list[tuple[str, str]]:
    """Apply what must be refused; return the path and the text of each error."""
    with pytest.raises(Failed) as failed:
        resource.apply(**config)
    return [(each.path, f"{each.summary} {each.detail}") for each in failed.value.diagnostics]


def test_set_is_made_changed_in_place_and_deleted(provider: Plugin, client: httpx.Client) -> None:
    made = Resource(provider, "orb_seed_set")
    first = made.apply(**SET)
    assert (first["id"], client.get(AT).json()["seeds"]) == ("docs/partners", ["HTTPS://A.test", json.loads(OBJECT)])
    assert made.changes(**SET) == set()
    other_text = json.dumps(json.loads(OBJECT), separators=(",", ":"), sort_keys=True)
    assert made.changes(**SET | {"seeds": ["HTTPS://A.test", other_text]}) == set(), "it means the same"
    second = made.apply(**SET | {"seeds": []})
    assert (client.get(AT).json()["seeds"], second["created_at"]) == ([], first["created_at"])
    assert made.changes(**SET | {"seeds": []}) == set()
    made.apply(**SET | {"name": "others"})
    assert [each["name"] for each in client.get("/v1/crawls/docs/seed-sets").json()["items"]] == ["others"]
    made.destroy()
    assert client.get("/v1/crawls/docs/seed-sets").json()["items"] == []


def test_drift_of_a_set_is_shown_and_mended(provider: Plugin, client: httpx.Client) -> None:
    made = Resource(provider, "orb_seed_set")
    made.apply(**SET)
    assert client.put(AT, json={"seeds": ["https://c.test/", {"url": "https://d.test/"}]}).status_code == 200
    assert made.changes(**SET) == {"seeds"}
    assert made.state is not None
    assert made.state["seeds"] == ["https://c.test/", '{"url":"https://d.test/"}']
    made.apply(**SET)
    assert client.get(AT).json()["seeds"][0] == "HTTPS://A.test"
    planned = made.plan(**SET | {"seeds": []})
    assert client.put(AT, json={"seeds": ["https://c.test/"]}).status_code == 200
    with pytest.raises(Failed, match="changed by another client"):
        made.applied(planned)
    assert client.delete(AT).status_code == 202
    assert "id" in made.changes(**SET)


@pytest.mark.usefixtures("client")
def test_import_by_crawl_and_name_leaves_no_difference(provider: Plugin) -> None:
    Resource(provider, "orb_seed_set").apply(**SET)
    imported = Resource(provider, "orb_seed_set")
    imported.import_("docs/partners")
    assert imported.changes(**SET) == {"wait_s"}, "the API has no such value"
    assert imported.changes(**{name: value for name, value in SET.items() if name != "wait_s"}) == set()
    for text in ("docs/nothing", "nowhere/partners", "docs", "docs/a/b", ""):
        with pytest.raises(Failed, match=r"There is no seed_set|no id of a seed set"):
            Resource(provider, "orb_seed_set").import_(text)
    other = SET | {"seeds": ["https://other.test/"]}
    (found,) = errors(Resource(provider, "orb_seed_set"), **other)
    assert "terraform import orb_seed_set.NAME docs/partners" in found[1]
    Resource(provider, "orb_seed_set").apply(**SET)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("unknown", [UNKNOWN, REFINED])
def test_unknown_values_of_a_set_are_planned(provider: Plugin, unknown: dict[str, Any]) -> None:
    resource = Resource(provider, "orb_seed_set")
    for name in ("crawl", "name", "seeds", "wait_s"):
        assert resource.plan(**SET | {name: unknown})[name] == UNKNOWN
    assert resource.plan(**SET | {"seeds": ["https://a.test/", unknown]})["seeds"] == ["https://a.test/", UNKNOWN]


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("config", "path", "words"),
    [
        ({"seeds": ["https://a.test/", "ftp://x/"]}, "seeds", "seeds[1].url"),
        ({"seeds": ['{"url": '], }, "seeds", "seeds[0] is not JSON"),
        ({"seeds": ['{"urls": "https://a.test/"}']}, "seeds", "seeds[0].url"),
        ({"name": "No"}, "name", ""),
        ({"name": "a/b"}, "name", "is not the name of a seed set"),
        ({"crawl": ".."}, "crawl", "is not the name of a crawl"),
        ({"crawl": "nowhere"}, "", "There is no crawl"),
        ({"wait_s": 1.5}, "wait_s", "is not a whole number"),
    ],
)  # fmt: skip
def test_wrong_set_is_refused_at_its_attribute(
    provider: Plugin, client: httpx.Client, config: dict[str, Any], path: str, words: str
) -> None:
    made = Resource(provider, "orb_seed_set")
    if path:
        with pytest.raises(Failed):
            made.plan(**SET | config)
    else:
        made.plan(**SET | config)
        assert [(each.path, "no crawl 'nowhere'" in each.detail) for each in made.warnings] == [("crawl", True)]
    found = errors(made, **SET | config)
    assert {each[0] for each in found} == {path}
    assert words in " ".join(each[1] for each in found)
    assert client.get("/v1/crawls/docs/seed-sets").json()["items"] == []


class _Cluster:
    """An API with one set, whose command is applied at the `steps`-th question, and a leader that changes meanwhile."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.seeds: list[Any] | None = None
        self.lost: list[int] = []
        self.faults = [Reply(NO_ANSWER), refused(503, "no-leader", "no leader is elected", **{"Retry-After": "0"})]

    def __call__(self, asked: Asked) -> Reply:
        shown = {
            "name": "partners",
            "seeds": self.seeds,
            "command": "c",
            "created_at": "2030-01-01T00:00:00Z",
        }
        if asked.path.startswith("/v1/commands/"):
            if self.faults:
                return self.faults.pop()
            self.steps -= 1
            return Reply(200, {"applied": 3 if self.steps <= 0 else 2, "partitions": 3})
        match asked.method, asked.path:
            case "GET", path if path.endswith("/partners"):
                missing = refused(404, "not-found", "the crawl 'docs' has no seed set 'partners'")
                return missing if self.seeds is None else Reply(200, shown, {"ETag": '"seed-set-1"'})
            case "PUT", _:
                if self.seeds is not None and "If-None-Match" in asked.headers:
                    return refused(412, "lost-update", "the current version is seed-set-1")
                self.seeds = asked.body["seeds"]
                if self.lost:
                    return Reply(self.lost.pop())
                return Reply(201, shown | {"seeds": self.seeds})
            case "DELETE", _:
                self.seeds = None
                return Reply(202, {"command": "c"})
        return Reply(200, {"items": [], "next": None})


def test_apply_waits_for_the_command_through_a_leader_change(tmp_path: Path) -> None:
    cluster = _Cluster(2)
    with scripted(cluster) as api, plugin(tmp_path, {}, url=[api.url], token="t", retry_s=10) as provider:
        made = Resource(provider, "orb_seed_set")
        config = SET | {"wait_s": 60}
        made.apply(**config)
        assert (cluster.steps, cluster.faults) == (0, [])
        cluster.steps = 2
        made.apply(**config | {"seeds": []})
        assert cluster.steps == 0
        cluster.steps = 2
        made.destroy()
        assert cluster.steps == 0


def test_apply_that_waited_too_long_is_mended_by_the_next(tmp_path: Path) -> None:
    cluster = _Cluster(1_000)
    cluster.faults.clear()
    with scripted(cluster) as api, plugin(tmp_path, {}, url=[api.url], token="t", retry_s=10) as provider:
        made = Resource(provider, "orb_seed_set")
        (found,) = errors(made, **SET | {"wait_s": 1})
        assert (found[0], "not applied within 1 s" in found[1]) == ("wait_s", True)
        cluster.steps = 1
        made.apply(**SET | {"wait_s": 1})
        assert made.changes(**SET | {"wait_s": 1}) == set()


def test_set_that_appears_after_the_plan_is_not_overwritten(tmp_path: Path) -> None:
    cluster = _Cluster(1)
    with scripted(cluster) as api, plugin(tmp_path, {}, url=[api.url], token="t", retry_s=10) as provider:
        made = Resource(provider, "orb_seed_set")
        planned = made.plan(**SET)
        cluster.seeds = ["https://theirs.test/"]
        with pytest.raises(Failed, match=r"exists already.*terraform import orb_seed_set\.NAME docs/partners"):
            made.applied(planned)
        assert cluster.seeds == ["https://theirs.test/"]


def test_set_whose_answer_is_lost_is_created_once(tmp_path: Path) -> None:
    cluster = _Cluster(1)
    cluster.lost = [NO_ANSWER]
    with scripted(cluster) as api, plugin(tmp_path, {}, url=[api.url], token="t", retry_s=10) as provider:
        made = Resource(provider, "orb_seed_set")
        made.apply(**SET)
        assert [each.method for each in api.asked if each.method == "PUT"] == ["PUT", "PUT"]
        assert made.changes(**SET) == set()
