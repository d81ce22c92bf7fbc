"""What the frontier knows, over REST: bounded reads of rows that an owner wrote, and verbs that travel to it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from shared.adapters.sql.catalog import listing
from shared.domain.crawl.wider_scope import Rediscovered
from shared.domain.errors import Transient
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.states import CrawlState, UrlState
from shared.domain.frontier.store_model import Changes, CommandRun, DeadLetterRow, FetchRow, HostChange
from shared.domain.ids import Partition
from shared.domain.ops.access import Role
from shared.domain.web.robots import robots_record
from shared.ports.broker import Broker
from shared.wire.robots import encode_robots, robots_key
from tests.support.api.paging import walked
from tests.support.api.rest_api import PARTITIONS, SPEC, api, problem
from tests.support.database.store_tables import NOW_MS, Tables, link, links, sqlite_tables
from tests.support.engines.nats_server import server as server

DOCS = "/v1/crawls/docs"


class SharedRobots:
    """A broker of which only the robots bucket is asked."""

    def __init__(self, **bodies: bytes) -> None:
        """`bodies`: robots.txt by host, its dots written as underscores."""
        self._records = {
            robots_key(f"http://{host.replace('_', '.')}"): robots_record(200, body, fetched_at_ms=NOW_MS)
            for host, body in bodies.items()
        }

    async def get_robots(self, key: str) -> bytes | None:
        record = self._records.get(key)
        return None if record is None else encode_robots(record)


class AwayRobots:
    """A broker that does not answer."""

    async def get_robots(self, key: str) -> bytes | None:
        raise Transient("away")


@asynccontextmanager
async def crawled(
    folder: Path, broker: SharedRobots | AwayRobots | None = None
) -> AsyncIterator[tuple[Tables, httpx.AsyncClient]]:
    """A crawl with rows, and an operator who looks at it."""
    async with (
        sqlite_tables(folder) as tables,
        api(tables.path, cast(Broker, broker or SharedRobots())) as served,
        served.as_role(Role.OPERATOR) as client,
    ):
        assert (await client.put(DOCS, json={"spec": SPEC})).status_code == 200
        yield tables, client


def test_urls_are_walked_by_pages_of_bounded_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "SCANNED", 7)

    async def story() -> None:
        async with crawled(tmp_path) as (tables, client):
            wanted = [*links("a.test", range(20)), *links("b.test", range(20))]
            await tables.found(*wanted)
            row = await tables.lease("b.test", 3)
            assert row is not None
            await tables.settle(row, UrlState.FAILED, reason="http_500")
            every = await walked(client, f"{DOCS}/urls?limit=6")
            assert sorted(url["url"] for url in every) == sorted(each.url for each in wanted)
            failed = await walked(client, f"{DOCS}/urls?limit=2&state=failed")
            assert {url["url"] for url in failed} == {url.url for url in row.urls.values()}
            assert {url["reason"] for url in failed} == {"http_500"}
            ours = await walked(client, f"{DOCS}/urls?limit=6&host=a.test")
            assert ([url["host"] for url in ours]) == ["a.test"] * 20
            assert await walked(client, f"{DOCS}/urls?host=nowhere.test") == []
            problem(await client.get(f"{DOCS}/urls?state=asleep"), 422, "invalid")

    asyncio.run(story())


def test_urls_are_found_by_the_status_of_their_last_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "SCANNED", 7)

    async def story() -> None:
        async with crawled(tmp_path) as (tables, client):
            await tables.found(*links("a.test", range(20)))
            row = await tables.lease("a.test", 4)
            assert row is not None
            answers = [
                FetchRow(row.crawl_id, row.host_id, fingerprint, NOW_MS, status, status == 200)
                for fingerprint, status in zip(row.order, (200, 404, 503, 404), strict=True)
            ]
            await tables.settle(row, UrlState.FAILED, reason="http_404")
            await tables.apply(Changes(fetches=answers))
            missing = await walked(client, f"{DOCS}/urls?limit=2&status=404")
            assert {url["url"] for url in missing} == {row.urls[row.order[n]].url for n in (1, 3)}
            assert await walked(client, f"{DOCS}/urls?status=404&state=queued") == []
            assert len(await walked(client, f"{DOCS}/urls")) == 20, "also those that nobody has answered"
            problem(await client.get(f"{DOCS}/urls?status=99"), 422, "invalid")

    asyncio.run(story())


def test_stats_are_the_counters_and_keep_their_identities(tmp_path: Path) -> None:
    async def story() -> None:
        async with crawled(tmp_path) as (tables, client):
            await tables.found(*links("a.test", range(10)))
            row = await tables.lease("a.test", 4)
            assert row is not None
            await tables.settle(row, UrlState.DONE)
            stats = (await client.get(f"{DOCS}/stats")).json()
            assert stats["identity"] == {"url_drift": 0, "link_drift": 0}
            assert {name: stats["counters"][name] for name in ("discovered", "queued", "done", "accepted")} == {
                "discovered": 10, "queued": 6, "done": 4, "accepted": 10,
            }  # fmt: skip
            assert [host["host"] for host in stats["top_hosts"]] == ["a.test"]
            progress = (await client.get(f"{DOCS}/progress")).json()
            assert (progress["known"], progress["completed"], progress["progress"]) == (10, 4, 0.4)

    asyncio.run(story())


def test_progress_says_why_a_crawl_waits(tmp_path: Path) -> None:
    async def story() -> None:
        async with crawled(tmp_path) as (tables, client):
            await client.post(f"{DOCS}/start")
            await tables.found(*links("a.test", range(10)))
            now_ms = time.time_ns() // 1_000_000
            progress = (await client.get(f"{DOCS}/progress")).json()
            assert progress["waits"] == {"standing": False, "number": 0, "more": False, "hosts": []}
            host_id, until_ms = tables.host_id("a.test"), now_ms + 3_600_000
            held = HostChange(host_id, 0, 0, 1, 0, now_ms, "http_429", until_ms, now_ms, None, asked_ms=3_600_000)
            await tables.apply(Changes(hosts={host_id: held}))
            waits = (await client.get(f"{DOCS}/progress")).json()["waits"]
            assert (waits["standing"], waits["number"], waits["more"]) == (True, 1, False)
            (host,) = waits["hosts"]
            assert (host["host"], host["reason"], host["urls"]) == ("a.test", "refuses", 10)
            assert host["text"].endswith("for a.test: it answered 429 (too many requests) and asked for this pause")
            await tables.found(*links("b.test", range(2)))
            waits = (await client.get(f"{DOCS}/progress")).json()["waits"]
            assert (waits["standing"], waits["number"]) == (False, 1)

    asyncio.run(story())


def test_a_url_is_looked_up_and_explained_whether_it_was_seen_or_not(tmp_path: Path) -> None:
    async def story() -> None:
        async with crawled(tmp_path) as (tables, client):
            await tables.found(link("http://example.org/a"))
            seen = (await client.get(f"{DOCS}/urls/lookup", params={"url": "HTTP://example.org:80/a#x"})).json()
            assert (seen["url"], seen["state"], seen["host"]["queued"]) == ("http://example.org/a", "queued", 1)
            unseen = await client.get(f"{DOCS}/urls/lookup", params={"url": "http://example.org/b"})
            problem(unseen, 404, "not-found")
            why = (await client.get(f"{DOCS}/urls/explain", params={"url": "http://example.org/a"})).json()
            assert why["known"]
            assert any("seeding" in said for said in why["why"]), "the crawl's own state is among the reasons"
            far = (await client.get(f"{DOCS}/urls/explain", params={"url": "http://elsewhere.test/"})).json()
            assert (far["known"], far["in_scope"]) == (False, False)
            assert [rule["rule"] for rule in far["rules"] if not rule["allowed"]]
            problem(await client.get(f"{DOCS}/urls/explain", params={"url": "mailto:x"}), 422, "invalid")

    asyncio.run(story())


def test_unknown_seed_of_the_spec_is_explained_as_a_seed(tmp_path: Path) -> None:
    async def story() -> None:
        async with crawled(tmp_path) as (tables, client):
            seeds = ["http://a.test/", "http://b.test/", "http://b.test/x/y"]
            wanted: dict[str, Any] = {"spec": {"seeds": seeds, "scope": {"max_depth": 0}}}
            assert (await client.put(DOCS, json=wanted)).status_code == 200

            async def explained(url: str) -> dict[str, Any]:
                body: dict[str, Any] = (await client.get(f"{DOCS}/urls/explain", params={"url": url})).json()
                return body

            for url in ("http://b.test", "http://b.test/x/y"):
                why = await explained(url)
                assert (why["known"], why["in_scope"], why["linked_from"]) == (False, True, None)
                known = "It is a seed of the spec, and the crawl does not know it yet"
                assert why["why"][0] == f"{known}: it is being published."
            for state, when in (
                (CrawlState.CREATED, "it is published after `start`"),
                (CrawlState.FINISHED, "it is published when the crawl runs again"),
                (CrawlState.PAUSED, "it is published after `resume`"),
                (
                    CrawlState.RUNNING,
                    "it was published, and is not applied yet or became a dead letter",
                ),
            ):
                await tables.store.set_state(tables.crawl_id, state, None, NOW_MS)
                assert (await explained("http://b.test/"))["why"][0] == f"{known}: {when}."
            wanted["spec"]["scope"] = {"max_depth": 1}
            assert (await client.put(DOCS, json=wanted)).status_code == 200
            near = await explained("http://b.test/other")
            assert (near["in_scope"], near["linked_from"]) == (True, "b.test"), "a seed has its host"
            far = await explained("http://c.test/")
            assert (far["in_scope"], far["linked_from"]) == (False, "a.test")

    asyncio.run(story())


def test_unknown_url_is_explained_with_the_open_rediscovery(tmp_path: Path) -> None:
    async def story() -> None:
        async with crawled(tmp_path) as (tables, client):
            args: dict[str, object] = {"revision": 2}
            run = CommandRun("r", tables.crawl_id, CommandKind.REDISCOVER, args, tables.fence.partition)
            await tables.accepted(run)
            why = (await client.get(f"{DOCS}/urls/explain", params={"url": "http://example.org/b"})).json()
            said = "The links of stored pages are read again for a wider scope, in 1 partition"
            assert f"{said}: it may still be found there." in why["why"]
            await tables.store.run_command(tables.fence, run, 1, found=Rediscovered(0, 0, (), None))
            why = (await client.get(f"{DOCS}/urls/explain", params={"url": "http://example.org/b"})).json()
            assert not any(said in each for each in why["why"])

    asyncio.run(story())


def test_explain_lists_all_rules_in_order_and_first_blocks(tmp_path: Path) -> None:
    async def story() -> None:
        shared = SharedRobots(example_org=b"User-agent: *\nDisallow: /private\n")
        async with crawled(tmp_path, shared) as (tables, client):
            await tables.found(link("http://example.org/private/a"), link("http://example.org/b"))

            async def explained(url: str) -> tuple[dict[str, Any], dict[str, Any]]:
                body = (await client.get(f"{DOCS}/urls/explain", params={"url": url})).json()
                return body, {rule["rule"]: rule for rule in body["rules"]}

            why, rules = await explained("HTTP://example.org:80/private/a#x")
            assert "line 2 decides for orb: 'Disallow: /private'" in rules["robots"]["detail"]
            assert [name for name, rule in rules.items() if not rule["allowed"]] == ["robots", "pool"]
            assert why["blocking_reason"] == rules["robots"]["detail"]
            assert "http://example.org/private/a" in rules["canonical"]["detail"]
            why, rules = await explained("http://example.org/b")
            assert why["blocking_reason"] == rules["pool"]["detail"], "no worker of the pool lives"
            assert any("o live worker of the pool 'default'" in said for said in why["why"])
            await client.post(f"{DOCS}/pause")
            why, rules = await explained("http://example.org/b")
            assert why["blocking_reason"] == rules["crawl"]["detail"]
            assert any("The crawl is paused" in said for said in why["why"])
            unseen, rules = await explained("http://example.org/private/unseen")
            assert (unseen["known"], unseen["in_scope"], rules["robots"]["allowed"]) == (False, True, False)
            assert unseen["blocking_reason"] == rules["robots"]["detail"]

    asyncio.run(story())


def test_urls_that_are_with_workers_say_for_how_long_should_these_have_died(tmp_path: Path) -> None:
    async def story() -> None:
        async with crawled(tmp_path) as (tables, client):
            await tables.found(*links("a.test", range(3)))
            assert await tables.lease("a.test", 2) is not None
            every = await walked(client, f"{DOCS}/urls")
            for url in every:
                why = (await client.get(f"{DOCS}/urls/explain", params={"url": url["url"]})).json()
                assert any("are dispatched again within about 60 s" in said for said in why["why"])
                delay = next(rule for rule in why["rules"] if rule["rule"] == "delay")
                assert "1 URL queued, 2 with workers now: if a worker dies" in delay["detail"]
            assert sorted(url["state"] for url in every) == ["leased", "leased", "queued"]

    asyncio.run(story())


def test_a_url_is_explained_while_the_broker_is_away(tmp_path: Path) -> None:
    async def story() -> None:
        async with crawled(tmp_path, AwayRobots()) as (tables, client):
            await tables.found(link("http://example.org/a"))
            body = (await client.get(f"{DOCS}/urls/explain", params={"url": "http://example.org/a"})).json()
            robots = next(rule for rule in body["rules"] if rule["rule"] == "robots")
            assert robots["allowed"]
            assert "not fetched yet" in robots["detail"]

    asyncio.run(story())


def test_hosts_are_listed_with_what_crawls_have_to_do_there(tmp_path: Path) -> None:
    async def story() -> None:
        async with crawled(tmp_path) as (tables, client):
            await tables.found(*(link(f"http://h{n}.test/") for n in range(5)))
            every = await walked(client, "/v1/hosts?limit=2")
            assert sorted(host["host"] for host in every) == [f"h{n}.test" for n in range(5)]
            assert {host["queued"] for host in every} == {None}, "there is no queue of all crawls together"
            of_crawl = await walked(client, "/v1/hosts?limit=2&crawl=docs")
            assert [host["queued"] for host in of_crawl] == [1] * 5
            one = (await client.get("/v1/hosts/h3.test")).json()
            assert one["queues"] == [{"crawl": "docs", "queued": 1, "waiting": 0, "leased": 0, "pages": 0}]
            problem(await client.get("/v1/hosts/unheard.test"), 404, "not-found")
            problem(await client.get("/v1/hosts/a b"), 422, "invalid")

    asyncio.run(story())


def test_dead_letters_are_shown_with_their_evidence(tmp_path: Path) -> None:
    async def story() -> None:
        async with crawled(tmp_path) as (tables, client):
            for n in range(3):
                await tables.bury(
                    DeadLetterRow(tables.crawl_id, "url", NOW_MS, f"tried {n} times", f"http://a.test/{n}")
                )
            letters = await walked(client, "/v1/dead-letters?limit=2&crawl=docs")
            assert [letter["evidence"] for letter in letters] == [f"tried {n} times" for n in (2, 1, 0)]
            one = (await client.get(f"/v1/dead-letters/{letters[0]['id']}")).json()
            assert one == letters[0]
            problem(await client.get("/v1/dead-letters/99"), 404, "not-found")

    asyncio.run(story())


def test_the_cluster_is_shown_as_this_master_sees_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.VIEWER) as client:
            cluster = (await client.get("/v1/cluster")).json()
            assert (cluster["leading"], cluster["member"]) == (True, "m1")
            assert cluster["partitions"] == {str(Partition(p)): "m1" for p in range(PARTITIONS)}
            masters = (await client.get("/v1/masters")).json()["items"]
            assert [master["partitions"] for master in masters] == [PARTITIONS]
            assert (await client.get("/v1/workers")).json() == {"items": [], "next": None}

    asyncio.run(story())
