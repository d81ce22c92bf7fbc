"""What all answers have in common: versions, bounded lists, HEAD, and headers that the document declares."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.adapters.sql.catalog import list_bytes
from shared.adapters.sql.catalog.items import SqlItems
from shared.domain.frontier.store_model import DeadLetterRow
from shared.domain.ids import Fingerprint, HostId, LeaseId, Term
from shared.domain.ops.access import Role
from shared.domain.reads.items import CrawlItems, ItemPosition, PageItems, TakenItem
from tests.support.api.rest_api import SPEC, Api, Story, api, openapi_document, problem
from tests.support.api.rest_api import told as told
from tests.support.database.fetch_rows import fetched
from tests.support.database.store_tables import NOW_MS, sqlite_tables


def test_every_write_answers_the_etag_that_a_read_has(told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        async with served.as_role(Role.OPERATOR) as client:

            async def same(written: httpx.Response) -> None:
                assert written.status_code in (200, 201), written.text
                assert written.headers["etag"] == (await client.get("/v1/crawls/docs")).headers["etag"]

            await same(await client.post("/v1/crawls", json={"name": "docs", "spec": SPEC}))
            await same(await client.put("/v1/crawls/docs", json={"spec": {**SPEC, "weight": 2}}))
            await same(await client.patch("/v1/crawls/docs", json={"spec": {"weight": 3}}))
            await same(await client.post("/v1/crawls/docs/pause"))

    told(story)


def test_failed_precondition_has_the_etag_of_a_read(told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        await served.created("docs")
        async with served.as_role(Role.OPERATOR) as client:
            shown = (await client.get("/v1/crawls/docs")).headers["etag"]
            for method, path, headers in (
                ("PUT", "/v1/crawls/docs", {"If-Match": '"no"'}),
                ("PUT", "/v1/crawls/docs", {"If-None-Match": "*"}),
                ("PATCH", "/v1/crawls/docs", {"If-Match": '"no"'}),
                ("DELETE", "/v1/crawls/docs", {"If-Match": '"no"'}),
                ("POST", "/v1/crawls/docs/pause", {"If-Match": '"no"'}),
            ):
                json = {"spec": SPEC} if path.endswith("docs") and method != "DELETE" else None
                refused = await client.request(method, path, json=json, headers=headers)
                problem(refused, 412, "lost-update")
                assert refused.headers["etag"] == shown, f"{method} {path}"

    told(story)


@pytest.mark.parametrize(
    ("tags", "status"),
    [
        ('"no", {tag}', 200),
        ('{tag},"no"', 200),
        ("*", 200),
        ('"no", "neither"', 412),
        ("W/{tag}", 412),
        ("no quotes", 422),
        ('"a" "b"', 422),
    ],
)
def test_if_match_takes_a_list_of_strong_tags(told: Callable[[Story], None], tags: str, status: int) -> None:
    async def story(served: Api) -> None:
        tag = (await served.created("docs")).headers["etag"]
        async with served.as_role(Role.OPERATOR) as client:
            header = {"If-Match": tags.format(tag=tag)}
            put = await client.put("/v1/crawls/docs", json={"spec": {**SPEC, "weight": 2}}, headers=header)
            assert put.status_code == status, put.text

    told(story)


@pytest.mark.parametrize("tag", ["*", '"1-1"'])
@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_if_match_on_an_absent_crawl_is_a_failed_precondition(
    told: Callable[[Story], None], method: str, tag: str
) -> None:
    async def story(served: Api) -> None:
        async with served.as_role(Role.OPERATOR) as client:
            body: Any = {"json": {"spec": SPEC}} if method != "DELETE" else {}
            problem(
                await client.request(method, "/v1/crawls/no", headers={"If-Match": tag}, **body), 412, "lost-update"
            )
            problem(await client.get("/v1/crawls/no"), 404, "not-found")

    told(story)


def test_list_of_crawls_has_summaries_and_ends_early_by_bytes(
    told: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_bytes, "LIST_BYTES", 40_000)
    seeds = [f"https://example.org/{number:05}" for number in range(400)]  # some 16 KB as a spec

    async def story(served: Api) -> None:
        for number in range(5):
            made = await served.created(f"c{number}", spec={**SPEC, "seeds": seeds})
            assert made.status_code == 201
        async with served.as_role(Role.VIEWER) as client:
            plain = await client.get("/v1/crawls")
            assert len(plain.content) < 10_000
            assert [(each["name"], each["seeds"], each["spec"]) for each in plain.json()["items"]] == [
                (f"c{number}", 400, None) for number in range(5)
            ]
            pages, cursor = [], None
            while True:
                query = {"fields": "spec"} | ({} if cursor is None else {"cursor": cursor})
                page = (await client.get("/v1/crawls", params=query)).json()
                pages.append([each["name"] for each in page["items"]])
                assert all(len(each["spec"]["seeds"]) == 400 for each in page["items"])
                if (cursor := page["next"]) is None:
                    break
            assert [name for names in pages for name in names] == [f"c{number}" for number in range(5)]
            assert len(pages) > 1, "a page ends at the bound"
            problem(await client.get("/v1/crawls", params={"fields": "all"}), 422, "invalid")

    told(story)


def test_list_of_revisions_has_summaries_and_ends_early_by_bytes(
    told: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_bytes, "LIST_BYTES", 1)

    async def story(served: Api) -> None:
        await served.created("docs")
        async with served.as_role(Role.OPERATOR) as client:
            for weight in (2, 3):
                await client.patch("/v1/crawls/docs", json={"spec": {"weight": weight}})
            plain = (await client.get("/v1/crawls/docs/revisions")).json()
            assert [(each["revision"], each["spec"]) for each in plain["items"]] == [(3, None), (2, None), (1, None)]
            page = await client.get("/v1/crawls/docs/revisions", params={"fields": "spec"})
            assert [each["spec"]["weight"] for each in page.json()["items"]] == [3]
            following = await client.get(page.links["next"]["url"])
            assert [each["revision"] for each in following.json()["items"]] == [2]

    told(story)


async def pages_of(client: httpx.AsyncClient, path: str) -> list[list[dict[str, Any]]]:
    """Follow `next` to the end of a list; its pages."""
    pages: list[list[dict[str, Any]]] = []
    cursor: str | None = None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        answer = await client.get(httpx.URL(path).copy_merge_params(more))
        assert answer.status_code == 200, answer.text
        pages.append(answer.json()["items"])
        if (cursor := answer.json()["next"]) is None:
            return pages


def test_lists_of_items_letters_and_acts_end_early_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters of several bytes count with their bytes. An entry that is larger by itself is a page."""
    monkeypatch.setattr(list_bytes, "LIST_BYTES", 10_000)
    text = "ä" * 1_200  # 2.4 KB: four of them fit, and eight would by their characters

    async def story() -> None:
        async with sqlite_tables(tmp_path) as tables, api(tables.path) as us, us.as_role(Role.ADMIN) as client:
            table = SqlItems(us.threads)
            fence, _ = await table.claim(Term(1))
            data = f'{{"title":"{text}"}}'.encode()
            taken = [TakenItem(number.to_bytes(16), "product", data) for number in range(9)]
            large = TakenItem((9).to_bytes(16), "product", f'{{"title":"{text * 9}"}}'.encode())
            page = PageItems(HostId(4099), Fingerprint(b"f" * 16), "http://a.test/", LeaseId(1), 1, 1, (*taken, large))
            await fetched(us.threads, tables.crawl_id, page)
            await table.apply(fence, ItemPosition(1, 1), [CrawlItems(tables.crawl_id, (page,))], [])
            for number in range(9):
                await tables.bury(DeadLetterRow(tables.crawl_id, "url", NOW_MS, text, f"http://a.test/{number}"))
            shown = await pages_of(client, "/v1/crawls/docs/items")
            assert [int(each["id"], 16) for part in shown for each in part] == list(range(10))
            assert [len(part) for part in shown] == [4, 4, 1, 1]
            by_rule = await pages_of(client, "/v1/crawls/docs/items?rule=product")
            assert [len(part) for part in by_rule] == [4, 4, 1, 1]
            for path in ("/v1/dead-letters", "/v1/dead-letters?crawl=docs"):
                shown = await pages_of(client, path)
                assert [each["id"] for part in shown for each in part] == list(range(9, 0, -1)), path
                assert [len(part) for part in shown] == [4, 4, 1], path
            for number in range(9):
                labels = {f"l{place}": f"{number}" * 60 for place in range(30)}
                await client.put(f"/v1/crawls/c{number}", json={"spec": SPEC, "labels": labels})
            shown = await pages_of(client, "/v1/audit?action=crawl.create")
            assert [each["target"] for part in shown for each in part] == [f"c{number}" for number in range(8, -1, -1)]
            assert 1 < len(shown) < 9

    asyncio.run(story())


def test_last_admin_key_is_not_revoked_and_revoked_ones_are_gone(told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        async with served.as_role(Role.ADMIN) as client:
            keys = (await client.get("/v1/api-keys")).json()["items"]
            admins = [key["name"] for key in keys if key["effective"]["role"] == "admin"]
            own = "admin"
            for other in (each for each in admins if each != own):
                assert (await client.delete(f"/v1/api-keys/{other}")).status_code == 200
                problem(await client.get(f"/v1/api-keys/{other}"), 404, "not-found")
            problem(await client.delete(f"/v1/api-keys/{own}"), 409, "last-admin-key")
            left = (await client.get("/v1/api-keys")).json()["items"]
            assert [key["name"] for key in left if key["effective"]["role"] == "admin"] == [own]
            everything = (await client.get("/v1/api-keys?revoked=true")).json()["items"]
            assert {key["id"] for key in everything} == {key["id"] for key in keys}
            assert {key["name"] for key in everything if key["revoked_at"] is not None} == {*admins} - {own}

    told(story)


def test_head_answers_as_get_without_a_body(told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        await served.created("docs")
        async with served.as_role(Role.ADMIN) as client:
            for path in (
                "/v1/crawls", "/v1/crawls/docs", "/v1/crawls/docs/revisions/1", "/v1/crawls/docs/progress",
                "/v1/crawls/docs/export/urls", "/v1/api-keys", "/v1/cluster", "/v1/audit", "/livez", "/readyz",
                "/openapi.json", "/docs", "/v1/crawls/none", "/v1/none",
            ):  # fmt: skip
                got, head = await client.get(path), await client.head(path)
                assert (head.status_code, head.content) == (got.status_code, b""), path
                same = ("content-type", "content-length", "etag")
                if got.status_code == 200:
                    assert [head.headers.get(each) for each in same] == [got.headers.get(each) for each in same], path
            tag = (await client.get("/v1/crawls/docs")).headers["etag"]
            assert (await client.head("/v1/crawls/docs", headers={"If-None-Match": tag})).status_code == 304
            refused = await client.request("BREW", "/v1/crawls")
            assert refused.status_code == 405
            assert "HEAD" in refused.headers["allow"]

    told(story)


def test_answers_may_gain_fields_and_requests_may_not() -> None:
    schemas = openapi_document()["components"]["schemas"]
    closed = {name for name, schema in schemas.items() if schema.get("additionalProperties") is False}
    assert {"CrawlInput", "CrawlReplacement", "KeyInput", "CrawlSpecInput", "HotConfigurationInput"} <= closed
    assert closed.isdisjoint({"Crawl", "CrawlSummary", "CrawlSpec", "KeyView", "ProblemBody", "Plan", "Explanation"})


def test_unknown_field_of_a_request_is_still_refused(told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        async with served.as_role(Role.OPERATOR) as client:
            for body in ({"spec": SPEC, "more": 1}, {"spec": {**SPEC, "more": 1}}):
                problem(await client.put("/v1/crawls/docs", json=body), 422, "invalid")
        async with served.as_role(Role.ADMIN) as client:
            for values in ({"more": 1}, {"worker": {"more": 1}}):
                problem(await client.put("/v1/config", json=values), 422, "invalid")

    told(story)
