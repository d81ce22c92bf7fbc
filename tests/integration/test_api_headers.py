"""The headers that the document declares, compared with those of live answers."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from shared.adapters.objects.local import LocalSegments
from shared.adapters.objects.page_archive import ServedPages
from shared.adapters.sql.catalog.items import SqlItems
from shared.domain.archive.model import Exchange
from shared.domain.frontier.store_model import DeadLetterRow
from shared.domain.ids import HostId, LeaseId, Term
from shared.domain.ops.access import Role
from shared.domain.reads.items import CrawlItems, ItemPosition, PageItems, TakenItem
from shared.domain.web.url import fingerprint
from tests.support.api.event_streams import masters
from tests.support.api.rest_api import SPEC, Api, Story, api, openapi_document
from tests.support.api.rest_api import told as told
from tests.support.archive.archived_pages import archived
from tests.support.archive.exchanges import AT_MS, answer
from tests.support.database.store_tables import NOW_MS, Tables, sqlite_tables
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server

TRANSPORT = {
    "content-type", "content-length", "transfer-encoding", "cache-control", "x-content-type-options", "date",
}  # fmt: skip
"""Headers of HTTP itself, which every answer may have."""

OPTIONAL = {"link", "retry-after", "x-orb-deleted-until", "x-orb-incomplete"}
PAGE = "http://a.test/1"
CRAWL = "/v1/crawls/{name}"


@cache
def document_of_application() -> Any:
    """Return the OpenAPI document."""
    return openapi_document()


def declared_for(path: str, method: str, status: int) -> set[str]:
    """Return the headers that the document declares for an answer, in lower case."""
    document = document_of_application()
    answer = document["paths"][path][method]["responses"][str(status)]
    if "$ref" in answer:
        answer = document["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    return {name.lower() for name in answer.get("headers", {})}


def judge_headers(path: str, method: str, answer: httpx.Response) -> set[str]:
    """Compare an answer's headers with those declared for it. Return those that it carries."""
    carried = {name.lower() for name in answer.headers} - TRANSPORT
    known = declared_for(path, method.lower(), answer.status_code)
    assert carried <= known, f"{method} {path} {answer.status_code}: undeclared {carried - known}"
    absent = known - carried - OPTIONAL
    if answer.status_code < 300:
        assert not absent, f"{method} {path} {answer.status_code}: never sent {absent}"
    return carried


@dataclass
class Judged:
    """A client whose answers are compared with the document. `seen`: the headers that came."""

    client: httpx.AsyncClient
    seen: set[str] = field(default_factory=set)

    async def __call__(self, method: str, path: str, status: int, *, at: str | None = None, **more: Any) -> Any:
        """Send a request of the document's `path`, at the path `at` where it has parameters. Return the answer."""
        sender = more.pop("client", self.client)
        answer = await sender.request(method, at or path, **more)
        assert answer.status_code == status, f"{method} {path}: {answer.text}"
        self.seen |= judge_headers(path, method, answer)
        return answer


def test_live_answers_carry_the_headers_that_the_document_declares(told: Callable[[Story], None]) -> None:
    seen: set[str] = set()

    async def story(served: Api) -> None:
        async with served.as_role(Role.ADMIN) as client:
            judged = Judged(client, seen)
            one, new = CRAWL, {"spec": SPEC}
            await judged("POST", "/v1/crawls", 201, json={"name": "docs", **new})
            await judged("POST", "/v1/crawls", 409, json={"name": "docs", **new})
            await judged("PUT", one, 201, at="/v1/crawls/news", json=new)
            await judged("PATCH", one, 200, at="/v1/crawls/news", json={"spec": {"weight": 2}})
            await judged("PUT", one, 412, at="/v1/crawls/news", json=new, headers={"If-Match": '"no"'})
            await judged("GET", one, 200, at="/v1/crawls/docs")
            await judged("GET", one, 304, at="/v1/crawls/docs", headers={"If-None-Match": "*"})
            await judged("GET", one, 404, at="/v1/crawls/none")
            await judged("GET", "/v1/crawls", 200, params={"limit": 1})
            await judged("GET", "/v1/crawls", 401, client=served.anonymous)
            await judged("GET", "/v1/crawls", 422, params={"what": 1})
            await judged("POST", f"{one}/pause", 200, at="/v1/crawls/docs/pause")
            await judged("GET", f"{one}/revisions", 200, at="/v1/crawls/docs/revisions")
            await judged("GET", f"{one}/revisions/{{revision}}", 200, at="/v1/crawls/docs/revisions/1")
            await judged("GET", f"{one}/export/{{what}}", 200, at="/v1/crawls/docs/export/urls")
            await judged("GET", "/v1/config", 200)
            await judged("PUT", "/v1/config", 200, json={"worker": {"max_visits": 3}})
            await judged("GET", "/v1/config/revisions/{revision}", 200, at="/v1/config/revisions/1")
            value, visits = "/v1/config/{value}", "/v1/config/worker.max_visits"
            await judged("PUT", value, 200, at=visits, json={"value": 4})
            await judged("GET", value, 200, at=visits)
            await judged("GET", value, 304, at=visits, headers={"If-None-Match": "*"})
            await judged("DELETE", value, 200, at=visits)
            await judged("POST", "/v1/api-keys", 201, json={"name": "ci", "role": "viewer"})
            key = (await client.get("/v1/api-keys")).json()["items"][0]["name"]
            await judged("PUT", "/v1/api-keys/{key_name}", 201, at="/v1/api-keys/cd", json={"role": "viewer"})
            await judged("GET", "/v1/api-keys/{key_name}", 200, at=f"/v1/api-keys/{key}")
            await judged("GET", "/v1/audit", 200, params={"limit": 1})
            await judged("GET", "/livez", 200)
            await judged("DELETE", one, 412, at="/v1/crawls/none", headers={"If-Match": "*"})

    told(story)
    assert seen >= {"etag", "location", "link", "x-request-id", "www-authenticate", "content-disposition"}


async def stored(tables: Tables, folder: Path) -> None:
    """A page with its body and an item, and a dead letter."""
    exchange = Exchange(answer(b"<p>a page</p>", b"Content-Type: text/html", url=PAGE), AT_MS, 0)
    await archived(tables, folder, [exchange])
    await tables.bury(DeadLetterRow(tables.crawl_id, "url", NOW_MS, "5 grants ended", PAGE))
    await tables.bury(DeadLetterRow(tables.crawl_id, "url", NOW_MS, "5 grants ended", PAGE))


def item_of(host_id: int, number: int) -> PageItems:
    """An item of the stored page."""
    item = TakenItem(number.to_bytes(16), "product", b'{"title":"A"}')
    return PageItems(HostId(host_id), fingerprint(PAGE), PAGE, LeaseId(1), 1, AT_MS, (item,))


def test_live_answers_of_what_a_crawl_stored_carry_the_declared_headers(tmp_path: Path, server: BrokerServer) -> None:
    """Pages, bodies, items, hosts, URLs and dead letters; their single resources again behind their ETag."""

    async def story() -> None:
        archive = ServedPages(LocalSegments(tmp_path / "archive"))
        async with (
            sqlite_tables(tmp_path) as tables,
            server.broker() as broker,
            api(tables.path, broker, archive=archive) as us,
            us.as_role(Role.ADMIN) as client,
        ):
            assert (await client.put("/v1/crawls/docs", json={"spec": SPEC})).status_code == 200
            await stored(tables, tmp_path / "archive")
            table = SqlItems(us.threads)
            fence, _ = await table.claim(Term(1))
            items = CrawlItems(tables.crawl_id, (item_of(tables.host_id("a.test"), 1),))
            changes = await table.apply(fence, ItemPosition(1, 1), [items], [])
            assert changes.stored == {tables.crawl_id: 1}
            judged = Judged(client)
            docs, url = "/v1/crawls/docs", {"url": PAGE}

            async def both(path: str, at: str, **more: Any) -> None:
                """Ask for a resource with an ETag, and once more behind it."""
                tag = (await judged("GET", path, 200, at=at, **more)).headers["etag"]
                await judged("GET", path, 304, at=at, headers={"If-None-Match": tag}, **more)

            listed = await judged("GET", f"{CRAWL}/pages", 200, at=f"{docs}/pages")
            page = listed.json()["items"][0]["id"]
            await both(f"{CRAWL}/pages/{{page}}", f"{docs}/pages/{page}")
            await both(f"{CRAWL}/pages/{{page}}/body", f"{docs}/pages/{page}/body")
            await both(f"{CRAWL}/pages/{{page}}/versions/{{version}}/body", f"{docs}/pages/{page}/versions/1/body")
            await both(f"{CRAWL}/pages/lookup", f"{docs}/pages/lookup", params=url)
            await both(f"{CRAWL}/pages/lookup/body", f"{docs}/pages/lookup/body", params=url)
            await judged("GET", f"{CRAWL}/pages/{{page}}/body", 404, at=f"{docs}/pages/1-{'0' * 32}/body")
            listed = await judged("GET", f"{CRAWL}/items", 200, at=f"{docs}/items", params={"limit": 1})
            await both(f"{CRAWL}/items/{{item}}", f"{docs}/items/{listed.json()['items'][0]['id']}")
            await judged("GET", "/v1/hosts", 200)
            await judged("GET", "/v1/hosts/{host}", 200, at="/v1/hosts/a.test")
            await judged("POST", "/v1/hosts/{host}/unblock", 202, at="/v1/hosts/a.test/unblock")
            policy, put = "/v1/host-policies/a.test", {"delay_s": 1}
            await judged("PUT", "/v1/host-policies/{host}", 201, at=policy, json=put)
            await judged("PUT", "/v1/host-policies/{host}", 200, at=policy, json=put)
            await judged("GET", "/v1/host-policies", 200)
            await judged("GET", "/v1/host-policies/{host}", 200, at=policy)
            await judged("DELETE", "/v1/host-policies/{host}", 202, at=policy)
            await judged("GET", f"{CRAWL}/urls", 200, at=f"{docs}/urls")
            for what in ("lookup", "explain"):
                await judged("GET", f"{CRAWL}/urls/{what}", 200, at=f"{docs}/urls/{what}", params=url)
            for what in ("stats", "progress", "seeds", "lag"):
                await judged("GET", f"{CRAWL}/{what}", 200, at=f"{docs}/{what}")
            letters = "/v1/dead-letters"
            await judged("GET", letters, 200, params={"limit": 1})
            await both(f"{letters}/{{letter}}", f"{letters}/1")
            await judged("POST", f"{letters}/{{letter}}/replay", 202, at=f"{letters}/1/replay")
            await judged("DELETE", f"{letters}/{{letter}}", 202, at=f"{letters}/2")
            assert judged.seen >= {"etag", "link", "x-request-id", "content-security-policy"}
        archive.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_live_event_streams_carry_the_declared_headers(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with masters(tmp_path, server) as [master]:
            await master.served.created("docs")
            for path, at in (
                ("/v1/events", "/v1/events"),
                (f"{CRAWL}/events", "/v1/crawls/docs/events"),
                (f"{CRAWL}/changes/stream", "/v1/crawls/docs/changes/stream"),
            ):
                async with master.follow(at) as client:
                    carried = judge_headers(path, "GET", client.response)
                assert "x-accel-buffering" in carried
                answer = await master.get(at, {"Last-Event-ID": "no number"})
                assert answer.status_code == 422, answer.text
                judge_headers(path, "GET", answer)

    asyncio.run(asyncio.wait_for(story(), 60))
