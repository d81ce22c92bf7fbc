"""What all answers have in common: versions, bounded lists, HEAD, and headers that the document declares."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from api.http import application
from shared.adapters.sql import declared
from shared.domain.access import Role
from tests.support.api import SPEC, Api, Story, problem
from tests.support.api import told as told

TRANSPORT = {"content-type", "content-length", "cache-control", "x-content-type-options", "date"}
"""Headers of HTTP itself, which every answer may have."""


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
    monkeypatch.setattr(declared, "LIST_BYTES", 40_000)
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
    monkeypatch.setattr(declared, "LIST_BYTES", 1)

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


def test_last_admin_key_is_not_revoked_and_revoked_ones_are_gone(told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        async with served.as_role(Role.ADMIN) as client:
            keys = (await client.get("/v1/api-keys")).json()["items"]
            admins = [key["id"] for key in keys if key["role"] == "admin"]
            own = next(key["id"] for key in keys if key["name"] == "admin")
            for other in (each for each in admins if each != own):
                assert (await client.delete(f"/v1/api-keys/{other}")).status_code == 200
                problem(await client.get(f"/v1/api-keys/{other}"), 404, "not-found")
                assert (await client.get(f"/v1/api-keys/{other}?revoked=true")).json()["revoked_at"] is not None
            problem(await client.delete(f"/v1/api-keys/{own}"), 409, "last-admin-key")
            left = (await client.get("/v1/api-keys")).json()["items"]
            assert [key["id"] for key in left if key["role"] == "admin"] == [own]
            everything = (await client.get("/v1/api-keys?revoked=true")).json()["items"]
            assert {key["id"] for key in everything} == {key["id"] for key in keys}

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


def declared_for(path: str, method: str, status: int) -> set[str]:
    """The headers that the document declares for an answer, in lower case."""
    document = application().openapi()
    answer = document["paths"][path][method]["responses"][str(status)]
    if "$ref" in answer:
        answer = document["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    return {name.lower() for name in answer.get("headers", {})}


def test_live_answers_carry_the_headers_that_the_document_declares(told: Callable[[Story], None]) -> None:
    optional = {"link", "retry-after"}
    seen: set[str] = set()

    async def story(served: Api) -> None:
        async with served.as_role(Role.ADMIN) as client:

            async def judged(method: str, path: str, status: int, *, at: str | None = None, **more: Any) -> None:
                sender = more.pop("client", client)
                answer = await sender.request(method, at or path, **more)
                assert answer.status_code == status, f"{method} {path}: {answer.text}"
                carried = {name.lower() for name in answer.headers} - TRANSPORT
                known = declared_for(path, method.lower(), status)
                assert carried <= known, f"{method} {path} {status}: undeclared {carried - known}"
                absent = known - carried - optional
                if status < 300:
                    assert not absent, f"{method} {path} {status}: never sent {absent}"
                seen.update(carried)

            one, new = "/v1/crawls/{name}", {"spec": SPEC}
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
            await judged("PUT", "/v1/config", 200, json={"worker": {"visits": 3}})
            await judged("GET", "/v1/config/revisions/{revision}", 200, at="/v1/config/revisions/1")
            await judged("POST", "/v1/api-keys", 201, json={"name": "ci", "role": "viewer"})
            key = (await client.get("/v1/api-keys")).json()["items"][0]["id"]
            await judged("GET", "/v1/api-keys/{key_id}", 200, at=f"/v1/api-keys/{key}")
            await judged("GET", "/v1/audit", 200, params={"limit": 1})
            await judged("GET", "/livez", 200)
            await judged("DELETE", one, 412, at="/v1/crawls/none", headers={"If-Match": "*"})

    told(story)
    assert seen >= {"etag", "location", "link", "x-request-id", "www-authenticate", "content-disposition"}


def test_answers_may_gain_fields_and_requests_may_not() -> None:
    schemas = application().openapi()["components"]["schemas"]
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
