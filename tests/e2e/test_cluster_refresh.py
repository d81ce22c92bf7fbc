"""A refresh in a cluster, by the verb and by a schedule: it fetches what changed, and ends, also if its leader dies."""

import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.domain.frontier.page_history import unpacked
from tests.support.api.cluster_clients import asking
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.web.changing_site import Site, page, serving

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(300)]

PAGES = 40
NAMES = [f"/{number}" for number in range(PAGES)]
INTERVAL_S = 2.0
"""The least time between two fetches of a page. A test sleeps so long where pages must be due: no event tells it."""
NEWS = "/v1/crawls/news"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as served:
        served.pages = {"/": page("start", *NAMES), **{name: page(name) for name in NAMES}}
        served.tagged = set(NAMES)
        yield served


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        for name in ("m1", "m2"):
            made.master(name)
        made.worker("w1")
        yield made


def declare(api: httpx.Client, site: Site) -> None:
    """Declare a crawl that fetches its pages again, without starting it."""
    spec = {
        "seeds": [f"{site.url}/"],
        "politeness": {"delay_s": 0.0},
        "egress": {"allow": ["127.0.0.0/8"]},
        "recrawl": {"policy": "fixed", "min_s": INTERVAL_S},
    }
    assert api.post("/v1/crawls", json={"name": "news", "spec": spec, "start": False}).status_code == 201


def refresh(api: httpx.Client) -> None:
    answer = api.post(f"{NEWS}/refresh")
    assert (answer.status_code, answer.json()["crawl"]["state"]) == (200, "seeding"), answer.text


def ends_refreshed(cluster: Cluster, api: httpx.Client) -> dict[str, Any]:
    """Wait until the crawl is finished, and check why it is. Return its counters."""
    cluster.wait_until(lambda: api.get(NEWS).json()["state"] == "finished", "the crawl is finished")
    assert api.get(NEWS).json()["finished_reason"] == "refreshed"
    found: dict[str, Any] = api.get(f"{NEWS}/stats").json()
    assert found["identity"] == {"url_drift": 0, "link_drift": 0}
    counters: dict[str, Any] = found["counters"]
    return counters


def changes(cluster: Cluster) -> Counter[tuple[str, int]]:
    """How often the log of changes has each kind and version."""
    entries = cluster.query("SELECT entries FROM page_changes")
    return Counter((each.kind.name.lower(), each.version) for (some,) in entries for each in unpacked(some))


def requested(site: Site) -> Counter[str]:
    """How often each page was requested since the last call."""
    return Counter(path for path, _, _ in site.taken())


def fetched_first(cluster: Cluster, api: httpx.Client, site: Site) -> None:
    """Fetch every page for the first time, by a refresh of the new crawl. Wait until all are due again."""
    declare(api, site)
    refresh(api)
    counters = ends_refreshed(cluster, api)
    assert (counters["pages"], counters["revisits"]) == (PAGES + 1, PAGES + 1)
    assert requested(site) == Counter(["/", *NAMES])
    assert changes(cluster) == {("new", 1): PAGES + 1}
    time.sleep(INTERVAL_S)


def test_refresh_fetches_each_due_page_once_and_ends(cluster: Cluster, site: Site) -> None:
    with asking(cluster, "m2") as api:
        fetched_first(cluster, api, site)
        assert requested(site) == Counter(), "a crawl that has ended fetches nothing, though pages are due"
        for name in NAMES[::4]:
            site.pages[name] = page(f"{name}, edited")
        site.pages["/"] = page("start", *NAMES, "/more")
        site.pages["/more"] = page("more")
        refresh(api)
        counters = ends_refreshed(cluster, api)
        assert requested(site) == Counter(["/", "/more", *NAMES])
        assert (counters["pages"], counters["revisits"], counters["queued"]) == (PAGES + 2, PAGES + 2, PAGES + 2)
        assert changes(cluster) == {("new", 1): PAGES + 2, ("changed", 2): PAGES // 4 + 1}

        site.pages["/late"] = page("late")
        added = api.post(f"{NEWS}/seeds", json={"seeds": [f"{site.url}/late"]})
        assert (added.status_code, added.json()["accepted"]) == (200, 1), added.text
        refresh(api)
        ends_refreshed(cluster, api)
        assert requested(site)["/late"] == 1, "a seed that came after the end is fetched by the next refresh"


def test_page_that_becomes_due_during_a_refresh_does_not_prolong_it(cluster: Cluster, site: Site) -> None:
    """Some answers take longer than the least time between two fetches of a page."""
    with asking(cluster, "m1") as api:
        fetched_first(cluster, api, site)
        site.slow_s = 0.1
        refresh(api)
        site.wait_for(PAGES // 4)
        slow_since, site.slow_s = time.monotonic(), 2.0 * INTERVAL_S
        count = len(site.seen)
        site.wait_for(count + 1)
        time.sleep(0.5)  # the request was noted before its delay
        site.slow_s = 0.0
        ends_refreshed(cluster, api)
        assert time.monotonic() - slow_since > INTERVAL_S, "the first pages became due again"
        assert requested(site) == Counter(["/", *NAMES])


def test_leader_kill_amid_a_refresh_changes_nothing(cluster: Cluster, site: Site) -> None:
    with asking(cluster, "m1") as api:
        fetched_first(cluster, api, site)
    for name in NAMES[::4]:
        site.pages[name] = page(f"{name}, edited")
    site.slow_s = 0.2
    leader = cluster.leader()
    assert leader is not None
    other = {"m1": "m2", "m2": "m1"}[leader]
    with asking(cluster, other) as api:
        refresh(api)
        began = cluster.query("SELECT refresh_ms FROM crawls")
        site.wait_for(PAGES // 4)
        cluster.members[leader].end()
        cluster.wait_until(lambda: cluster.leader() == other, "the other master leads")
        site.slow_s = 0.0
        ends_refreshed(cluster, api)
        assert cluster.query("SELECT refresh_ms FROM crawls") == began
        assert changes(cluster) == {("new", 1): PAGES + 1, ("changed", 2): PAGES // 4}
        seen = requested(site)
        assert seen.keys() == {"/", *NAMES}, "every page that was due is fetched"


def test_schedule_refreshes_a_crawl_in_turn_with_its_runs(cluster: Cluster, site: Site) -> None:
    with asking(cluster, "m1") as api:
        fetched_first(cluster, api, site)
        spec = {"crawl": "news", "verb": "refresh", "every_s": 86_400, "late_s": 600}
        answer = api.put("/v1/schedules/nightly", json=spec)
        assert (answer.status_code, answer.json()["warnings"]) == (201, []), answer.text
        due_ms = time.time_ns() // 1_000_000
        with closing(sqlite3.connect(cluster.database, timeout=30)) as connection, connection:
            connection.execute("UPDATE schedules SET due_ms = ?, fires_ms = ?", (due_ms, due_ms))
        fired = "SELECT outcome FROM schedule_firings"
        cluster.wait_until(lambda: cluster.query(fired) == [("fired",)], "the schedule has fired")
        ends_refreshed(cluster, api)
        assert requested(site) == Counter(["/", *NAMES])
        [effect] = api.get("/v1/schedules/nightly/history").json()["items"]
        assert (effect["verb"], effect["outcome"]) == ("refresh", "fired")
