"""Items over REST: listed in pages, narrowed, got one by one, exported in every format, and only by who may."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet

from api.schemas.items import Item
from shared.adapters.sql.catalog.items import SqlItems
from shared.domain.crawl.state import Verb
from shared.domain.ids import CrawlId, HostId, LeaseId, Term
from shared.domain.ops.access import Role
from shared.domain.reads.items import CrawlItems, ItemFence, ItemPosition, PageItems, TakenItem
from shared.domain.web.url import locate
from tests.support.api.paging import walked
from tests.support.api.rest_api import SOMEONE, Api, api, problem
from tests.support.database.fetch_rows import fetched

ITEMS = "/v1/crawls/docs/items"
AT_MS = 1_751_328_000_123
TITLES = ("Plain", 'With "quotes", commas', "Two\nlines", "Ünïcödé 漢字 \u2028", "=1+1", "a\0b")


def page(number: int, *rules: str, lease: int = 1) -> PageItems:
    """A page whose items are of these rules."""
    at = locate(f"https://a.test/p/{number}?q=ä")
    assert at is not None
    items = [
        TakenItem((number * 16 + place).to_bytes(16), rule, json.dumps(fields(number, place, lease)).encode())
        for place, rule in enumerate(rules)
    ]
    return PageItems(HostId(4099), at.fingerprint, at.url, LeaseId(lease), 1, AT_MS, tuple(items))


def fields(number: int, place: int, lease: int = 1) -> dict[str, Any]:
    return {"title": TITLES[(number + place) % len(TITLES)], "price": None, "tags": ["a", 1, 2.5, True], "fetch": lease}


class Filled:
    """An API over a crawl that has items."""

    def __init__(self, us: Api, client: httpx.AsyncClient, crawl_id: CrawlId) -> None:
        self.us = us
        self.client = client
        self.crawl_id = crawl_id
        self._table = SqlItems(us.threads)
        self._fence = ItemFence(Term(0), 0)
        self._sequence = 0

    async def put(self, *pages: PageItems) -> None:
        if not self._sequence:
            self._fence, _ = await self._table.claim(Term(1))
        self._sequence += 1
        for each in sorted(pages, key=lambda page: page.version):
            await fetched(self.us.threads, self.crawl_id, each)
        await self._table.apply(self._fence, ItemPosition(1, self._sequence), [CrawlItems(self.crawl_id, pages)], [])
        self._fence = ItemFence(Term(1), self._fence.version + 1)


@asynccontextmanager
async def filled(tmp_path: Path) -> AsyncIterator[Filled]:
    async with api(tmp_path / "a.db") as us, us.as_role(Role.VIEWER) as client:
        made = await us.created("docs")
        crawl = Filled(us, client, CrawlId(made.json()["id"]))
        await crawl.put(*(page(n, "product", "offer") for n in range(30)), page(30, "rare"))
        yield crawl


def test_items_are_listed_page_by_page_and_narrowed(tmp_path: Path) -> None:
    async def story() -> None:
        async with filled(tmp_path) as crawl:
            every = await walked(crawl.client, f"{ITEMS}?limit=7")
            assert len({item["id"] for item in every}) == 61
            first = every[0]
            assert first["data"] == fields(0, 0)
            assert (first["rule"], first["url"]) == ("product", "https://a.test/p/0?q=%C3%A4")
            assert first["fetched_at"] == "2025-07-01T00:00:00.123000Z"
            assert first["page"].startswith("4099-")
            rare = await walked(crawl.client, f"{ITEMS}?rule=rare&limit=3")
            assert [item["url"] for item in rare] == ["https://a.test/p/30?q=%C3%A4"]
            of_page = await walked(crawl.client, f"{ITEMS}?url=https://A.test:443/p/3?q=%C3%A4&rule=offer")
            assert [(item["rule"], item["url"]) for item in of_page] == [("offer", "https://a.test/p/3?q=%C3%A4")]
            assert await walked(crawl.client, f"{ITEMS}?url=https://a.test/none") == []

    asyncio.run(story())


def test_one_item_is_got_once_for_each_version(tmp_path: Path) -> None:
    async def story() -> None:
        async with filled(tmp_path) as crawl:
            path = f"{ITEMS}/{16:032x}"
            got = await crawl.client.get(path)
            assert got.json()["data"] == fields(1, 0)
            tag = {"If-None-Match": got.headers["etag"]}
            assert (await crawl.client.get(path, headers=tag)).status_code == 304
            await crawl.put(page(1, "product", lease=2))
            again = await crawl.client.get(path, headers=tag)
            assert (again.status_code, again.json()["data"]["fetch"]) == (200, 2)
            problem(await crawl.client.get(f"{ITEMS}/{17:032x}"), 404, "not-found")

    asyncio.run(story())


def test_all_items_are_exported_in_every_format_with_the_same_rows(tmp_path: Path) -> None:
    async def story() -> None:
        async with filled(tmp_path) as crawl:
            export = "/v1/crawls/docs/export/items"
            listed = {item["id"]: item["data"] for item in await walked(crawl.client, ITEMS)}
            lines = [json.loads(line) for line in (await crawl.client.get(export)).content.split(b"\n") if line]
            assert {line["id"]: line["data"] for line in lines} == listed
            assert lines[0]["fetched_at"] == "2025-07-01T00:00:00.123Z"
            table = csv.DictReader(io.StringIO((await crawl.client.get(f"{export}?format=csv")).text, newline=""))
            rows = list(table)
            assert {row["id"]: json.loads(row["data"]) for row in rows} == listed
            columns = pyarrow.parquet.read_table(
                io.BytesIO((await crawl.client.get(f"{export}?format=parquet")).content)
            ).to_pylist()
            assert {row["id"]: json.loads(row["data"]) for row in columns} == listed
            names = ["id", "rule", "url", "fetched_at", "data", "labels", "source"]
            assert list(columns[0]) == list(rows[0]) == list(lines[0]) == names

    asyncio.run(story())


def test_a_crawl_that_begins_anew_has_none_of_the_items_of_before(tmp_path: Path) -> None:
    async def story() -> None:
        async with filled(tmp_path) as crawl:
            await crawl.us.catalog.turn("docs", Verb.RESET, expected=None, actor=SOMEONE, now_ms=1)
            assert await walked(crawl.client, ITEMS) == []
            problem(await crawl.client.get(f"{ITEMS}/{16:032x}"), 404, "not-found")

    asyncio.run(story())


def test_what_is_asked_wrongly_or_by_nobody_is_a_problem(tmp_path: Path) -> None:
    async def story() -> None:
        async with filled(tmp_path) as crawl:
            client = crawl.client
            for query in ("url=mailto:x", "rule=No%20rule", "limit=0", "cursor=x", "kind=x"):
                problem(await client.get(f"{ITEMS}?{query}"), 422, "invalid")
            problem(await client.get(f"{ITEMS}/x"), 422, "invalid")
            problem(await client.get("/v1/crawls/none/items"), 404, "not-found")
            problem(await client.delete(f"{ITEMS}/{16:032x}"), 405, "method-not-allowed")
            problem(await crawl.us.anonymous.get(ITEMS), 401, "unauthenticated")

    asyncio.run(story())


def test_rules_that_cannot_be_used_are_refused_with_their_places(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "a.db") as us, us.as_role(Role.OPERATOR) as client:
            rule = {"name": "r", "each": "p:hover", "fields": {"a": {"css": "h1["}, "b": {"meta": "x", "css": "y"}}}
            spec = {"seeds": ["https://a.test/"], "extract": {"items": [rule]}}
            answer = await client.post("/v1/crawls", json={"name": "docs", "spec": spec})
            said = problem(answer, 422, "invalid")
            assert [error["path"] for error in said["errors"]] == [
                "spec.extract.items[0].fields.a.css", "spec.extract.items[0].fields.b",
            ]  # fmt: skip

    asyncio.run(story())


def test_an_item_of_the_document_is_what_is_sent() -> None:
    assert set(Item.model_fields) == {"id", "rule", "url", "page", "fetched_at", "data", "labels", "source"}
