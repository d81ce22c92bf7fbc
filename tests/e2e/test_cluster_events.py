"""Events of a real cluster: who follows them sees a crawl from its declaration to its end, also past the leader's."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.api.cluster_clients import asking
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        yield made


def declared(served: Web, name: str) -> dict[str, object]:
    spec = {
        "seeds": [f"{served.origins[0]}/"],
        "scope": {"mode": "any"},
        "politeness": {"delay_s": 0.05},
        "egress": {"allow": ["127.0.0.0/8"]},
    }
    return {"name": name, "spec": spec}


def told(lines: Iterator[str]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Events by id, name and data, until the stream ends."""
    place, name, data = 0, "", ""
    for line in lines:
        field, _, value = line.partition(": ")
        match field:
            case "id":
                place = int(value)
            case "event":
                name = value
            case "data":
                data = value
            case "" if data:
                yield place, name, msgspec.json.decode(data)
                name, data = "", ""


def until(events: Iterator[tuple[int, str, dict[str, Any]]], crawl: str, action: str) -> list[dict[str, Any]]:
    """Everything up to and including what happened to that crawl."""
    seen = []
    for _, name, body in events:
        seen.append(body)
        if (name, body.get("crawl"), body.get("action")) == ("crawl", crawl, action):
            return seen
    raise AssertionError(f"the stream ended before {crawl} was {action}")


def until_progress(events: Iterator[tuple[int, str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Everything up to and including the first count of a crawl that is under way."""
    seen = []
    for _, _, body in events:
        seen.append(body)
        if body.get("kind") == "progress":
            return seen
    raise AssertionError("the stream ended before any progress")


def actions(seen: list[dict[str, Any]], crawl: str) -> list[str]:
    return [body["action"] for body in seen if body.get("kind") == "crawl" and body["crawl"] == crawl]


def test_reader_of_one_master_sees_all_events_past_leader_death(cluster: Cluster, web: Callable[..., Web]) -> None:
    served = web(SyntheticSite(pages=60, hosts=4))
    for name in ("m1", "m2"):
        cluster.master(name)
    cluster.worker("w1")
    cluster.wait_until(lambda: set(cluster.owners()) == {cluster.leader()}, "the leader owns all partitions")
    leader = cluster.leader()
    assert leader is not None
    follower = "m2" if leader == "m1" else "m1"
    with (
        asking(cluster, follower, timeout_s=60) as api,
        api.stream("GET", "/v1/events", params={"after": 0}) as stream,
    ):
        events = told(stream.iter_lines())
        served.answer(20)
        assert api.post("/v1/crawls", json=declared(served, "docs")).status_code == 201
        seen = until_progress(events)
        served.answer(None)
        seen += until(events, "docs", "finished")
        assert actions(seen, "docs") == ["created", "started", "seeded", "finished"]
        finished = seen[-1]
        assert (finished["data"]["reason"], finished["member"]) == ("complete", leader)
        came = {(body["kind"], body["about"], body["action"]) for body in seen}
        assert {("leader", leader, "elected"), ("master", follower, "joined"), ("worker", "w1", "joined")} <= came
        lag = api.get("/v1/crawls/docs/lag").json()
        assert [lag[place]["count"] for place in ("due_urls", "shards_pending", "shards_in_flight")] == [0, 0, 0]
        cluster.wait_until(
            lambda: (
                api.get("/v1/lag").json()["reports_pending"] == {"count": 0, "oldest_s": None, "is_lower_bound": False}
            ),
            "every report is applied",
        )
        pages = api.get("/v1/crawls/docs/stats").json()["counters"]["pages"]

        cluster.members[leader].end()
        assert api.post("/v1/crawls", json=declared(served, "again")).status_code == 201, "there is a leader again"
        seen = until(events, "again", "finished")
        assert actions(seen, "again") == ["created", "started", "seeded", "finished"]
        assert actions(seen, "docs") == [], "the new leader knows what was told"
        came = {(body["kind"], body["about"], body["action"]) for body in seen}
        assert {("leader", follower, "elected"), ("master", leader, "left")} <= came
        rates = api.get("/v1/crawls/again/progress").json()["rates"]
        assert rates is not None
        assert api.get("/v1/crawls/again/stats").json()["counters"]["pages"] == pages
        acts = api.get("/v1/audit", params={"action": "crawl."}).json()["items"]
        assert [(act["action"], act["target"]) for act in acts] == [("crawl.create", "again"), ("crawl.create", "docs")]

        cluster.members[follower].signal(signal.SIGTERM)
        *_, (_, name, body) = events
        assert (name, body) == ("end", {"reason": "shutdown"})
    assert cluster.members[follower].process.wait(30) == 0
