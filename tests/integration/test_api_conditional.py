"""Who names the version that is there gets 304 and no body; who names one that is not, cannot write over it."""

import asyncio
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from api.http.conditional import has
from api.schemas.model import ANYTHING
from shared.adapters.objects.local import LocalSegments
from shared.adapters.objects.page_archive import ServedPages
from shared.domain.frontier.states import CrawlState
from shared.domain.ops.access import Role
from tests.support.api.rest_api import SPEC, Api, api, openapi_document, problem
from tests.support.archive.crawl_folder import SEED, made
from tests.support.database.store_tables import sqlite_tables

NEW: Final = {"If-None-Match": "*"}
SCHEDULE: Final = {"crawl": "docs", "verb": "pause", "every_s": 3600}


@pytest.mark.parametrize(
    ("known", "tag", "same"),
    [
        (b'"a"', b'"a"', True),
        (b'"a", "b"', b'"b"', True),
        (b'W/"a"', b'"a"', True),
        (b'"a"', b'W/"a"', True),
        (b"*", b'"a"', True),
        (b" * ", b'"a"', True),
        (b'"a"', b'"b"', False),
        (b'"a', b'"a"', False),
        (b"a", b'"a"', False),
        (b'"b,a"', b'"a"', False),
        (b'"a*"', b'"*"', False),
        (b"*", b"", False),
        (b'""', b'""', True),
    ],
)
def test_tags_are_compared_as_the_rfc_has_it(known: bytes, tag: bytes, same: bool) -> None:
    assert has(known, tag) is same


async def told_304(client: httpx.AsyncClient, path: str, **params: Any) -> str:
    """The resource's ETag, by which a second read is 304 and another ETag is not."""
    first = await client.get(path, params=params)
    assert first.status_code == 200, first.text
    tag = first.headers["etag"]
    again = await client.get(path, params=params, headers={"If-None-Match": f'"other", {tag}'})
    assert (again.status_code, again.content) == (304, b""), path
    assert again.headers["etag"] == tag
    assert not [name for name in again.headers if name.startswith("content-")]
    other = await client.get(path, params=params, headers={"If-None-Match": '"other"'})
    assert (other.status_code, other.content) == (200, first.content)
    return tag


def test_single_resources_show_their_version_and_are_not_sent_twice(tmp_path: Path) -> None:
    crawl = made(tmp_path / "a.crawl")
    archive = ServedPages(LocalSegments(crawl.path / "archive"))

    async def story() -> None:
        async with api(crawl.path / "crawl.db", archive=archive) as us, us.as_role(Role.ADMIN) as client:
            await told_304(client, "/v1/crawls/docs")
            await told_304(client, "/v1/crawls/docs/revisions/1")
            page = await told_304(client, "/v1/crawls/docs/pages/lookup", url=SEED)
            body = await told_304(client, "/v1/crawls/docs/pages/lookup/body", url=SEED)
            (listed, *_) = (await client.get("/v1/crawls/docs/pages")).json()["items"]
            assert page != body
            await told_304(client, f"/v1/crawls/docs/pages/{listed['id']}")
            await told_304(client, f"/v1/crawls/docs/pages/{listed['id']}/body")
            letter = await told_304(client, "/v1/dead-letters/1")
            other = await client.delete("/v1/dead-letters/1", headers={"If-Match": '"letter-2"'})
            problem(other, 412, "lost-update")
            assert other.headers["etag"] == letter
            key = (await client.get("/v1/api-keys")).json()["items"][0]["name"]
            await told_304(client, f"/v1/api-keys/{key}")

    asyncio.run(story())
    archive.close()


def test_a_body_that_the_caller_has_is_not_read_from_the_archive(tmp_path: Path) -> None:
    crawl = made(tmp_path / "a.crawl")
    archive = ServedPages(LocalSegments(crawl.path / "archive"))

    async def story() -> None:
        async with api(crawl.path / "crawl.db", archive=archive) as us, us.as_role(Role.VIEWER) as client:
            path = f"/v1/crawls/docs/pages/lookup/body?url={SEED}"
            tag = (await client.get(path)).headers["etag"]
            for segment in (crawl.path / "archive").glob("*.warc.gz"):
                segment.unlink()
            assert (await client.get(path, headers={"If-None-Match": tag})).status_code == 304
            problem(await client.get(path), 409, "no-archive")

    asyncio.run(story())
    archive.close()


def test_a_changed_crawl_has_another_version_and_an_old_revision_the_same(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "o.db") as us, us.as_role(Role.OPERATOR) as client:
            await us.created("docs")
            first = await told_304(client, "/v1/crawls/docs")
            revision = await told_304(client, "/v1/crawls/docs/revisions/1")
            changed = await client.patch("/v1/crawls/docs", json={"spec": {"scope": {"max_depth": 9}}})
            got = await client.get("/v1/crawls/docs", headers={"If-None-Match": first})
            assert got.status_code == 200
            assert got.headers["etag"] == changed.headers["etag"]
            assert await told_304(client, "/v1/crawls/docs/revisions/1") == revision
            assert await told_304(client, "/v1/crawls/docs/revisions/2") != revision
            # A crawl of the same name is another one, and so are its revisions.
            await client.post("/v1/crawls/docs/reset")
            assert await told_304(client, "/v1/crawls/docs/revisions/1") != revision

    asyncio.run(story())


def test_crawl_that_progressed_is_sent_again_and_may_be_changed_as_seen(tmp_path: Path) -> None:
    """Its state is the leader's doing: who polls must hear of it, and who edits the spec need not."""

    async def story() -> None:
        async with sqlite_tables(tmp_path) as tables, api(tables.path) as us, us.as_role(Role.OPERATOR) as client:
            before = await told_304(client, "/v1/crawls/docs")
            await tables.store.set_state(tables.crawl_id, CrawlState.FINISHED, "complete", 1)
            finished = await client.get("/v1/crawls/docs", headers={"If-None-Match": before})
            assert (finished.status_code, finished.json()["state"]) == (200, "finished")
            assert finished.headers["etag"] != before
            await tables.store.add_active_time(tables.crawl_id, 1)
            assert (await client.get("/v1/crawls/docs")).headers["etag"] != finished.headers["etag"]
            changed = await client.put("/v1/crawls/docs", json={"spec": SPEC}, headers={"If-Match": before})
            assert changed.status_code == 200, changed.text
            late = await client.put("/v1/crawls/docs", json={"spec": SPEC}, headers={"If-Match": before})
            problem(late, 412, "lost-update")

    asyncio.run(story())


def test_errors_and_writes_are_never_304(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "o.db") as us, us.as_role(Role.OPERATOR) as client:
            await us.created("docs")
            anything = {"If-None-Match": "*"}
            problem(await client.get("/v1/crawls/none", headers=anything), 404, "not-found")
            problem(await us.anonymous.get("/v1/crawls/docs", headers=anything), 401, "unauthenticated")
            put = await client.put("/v1/crawls/docs", json={"spec": SPEC}, headers=anything)
            problem(put, 412, "lost-update")
            assert (await client.get("/v1/crawls", headers=anything)).status_code == 200, "a list has no version"

    asyncio.run(story())


async def a_key(us: Api, client: httpx.AsyncClient) -> tuple[str, str]:
    made = await client.post("/v1/api-keys", json={"name": "ours", "role": "viewer"})
    assert made.status_code == 201, made.text
    return made.headers["location"], made.headers["etag"]


def test_a_key_is_revoked_only_as_it_was_seen(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "o.db") as us, us.as_role(Role.ADMIN) as client:
            path, tag = await a_key(us, client)
            assert await told_304(client, path) == tag
            refused = await client.delete(path, headers={"If-Match": '"other"'})
            problem(refused, 412, "lost-update")
            assert refused.headers["etag"] == tag.partition(".")[0] + '"', "without the last use, as If-Match compares"
            revoked = await client.delete(path, headers={"If-Match": tag})
            assert revoked.status_code == 200
            problem(await client.get(path), 404, "not-found")
            assert revoked.headers["etag"] != tag
            problem(await client.delete(path, headers={"If-Match": tag}), 412, "lost-update")
            problem(await client.delete(path), 404, "not-found")
            async with us.as_role(Role.OPERATOR) as operator:
                problem(await operator.get(path), 403, "forbidden")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/crawls/other", {"spec": SPEC}),
        ("/v1/crawls/docs/seed-sets/one", {"seeds": []}),
        ("/v1/host-policies/a.test", {"delay_s": 2}),
        ("/v1/schedules/nightly", SCHEDULE),
        ("/v1/api-keys/ci", {"role": "viewer"}),
    ],
)
def test_put_that_may_only_create_and_only_change_does_neither(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    async def story() -> None:
        async with api(tmp_path / "orb.db") as opened, opened.as_role(Role.ADMIN) as client:
            assert (await client.post("/v1/crawls", json={"name": "docs", "spec": SPEC})).status_code == 201
            for known in ("*", '"1-1"'):
                both = {"If-None-Match": "*", "If-Match": known}
                refused = await client.put(path, json=body, headers=both)
                problem(refused, 412, "lost-update")
                assert refused.json()["hint"] == "omit one"
                assert (await client.get(path)).status_code == 404
            assert (await client.put(path, json=body, headers={"If-None-Match": "*"})).status_code == 201

    asyncio.run(story())


Write = tuple[str, str, dict[str, Any] | None]
CREATED_ONCE: Final[tuple[Write, ...]] = (
    ("PUT", "/v1/crawls/docs", {"spec": SPEC, "labels": {"team": "x"}}),
    ("PUT", "/v1/crawls/docs/seed-sets/one", {"seeds": ["https://example.org/b"]}),
    ("PUT", "/v1/host-policies/a.test", {"delay_s": 3}),
    ("PUT", "/v1/schedules/nightly", {**SCHEDULE, "every_s": 7200}),
    ("PUT", "/v1/api-keys/ci", {"role": "admin"}),
    ("PUT", "/v1/exclusions/1", {"reason": "other"}),
    ("PUT", "/v1/config", {"log_level": "debug"}),
    ("PUT", "/v1/config/log_level", {"value": "debug"}),
)
CREATE_NOTHING: Final[tuple[Write, ...]] = (
    ("PATCH", "/v1/crawls/docs", {"labels": {"team": "x"}}),
    ("POST", "/v1/crawls/docs/pause", None),
    ("DELETE", "/v1/crawls/docs/seeds", {"all": True}),
    ("POST", "/v1/schedules/nightly/pause", None),
    ("DELETE", "/v1/config/log_level", None),
    ("DELETE", "/v1/exclusions/1", None),
    ("DELETE", "/v1/api-keys/ci", None),
    ("DELETE", "/v1/schedules/nightly", None),
    ("DELETE", "/v1/host-policies/a.test", None),
    ("DELETE", "/v1/crawls/docs/seed-sets/one", None),
    ("DELETE", "/v1/crawls/docs", None),
)


def test_write_that_may_only_create_never_changes_what_exists(tmp_path: Path) -> None:
    """`If-None-Match: *` was ignored by most resources: a PUT of a key that should only create it changed its role."""

    async def story() -> None:
        async with api(tmp_path / "orb.db") as opened, opened.as_role(Role.ADMIN) as client:
            assert (await client.post("/v1/crawls", json={"name": "docs", "spec": SPEC})).status_code == 201
            for place, declared in (
                ("/v1/crawls/docs/seed-sets/one", {"seeds": []}),
                ("/v1/host-policies/a.test", {"delay_s": 2}),
                ("/v1/schedules/nightly", SCHEDULE),
                ("/v1/api-keys/ci", {"role": "viewer"}),
            ):
                assert (await client.put(place, json=declared, headers=NEW)).status_code == 201, place
            excluded = {"target": "example.net", "reason": "asked for"}
            assert (await client.post("/v1/exclusions", json=excluded)).status_code == 201
            audited = (await client.get("/v1/audit")).json()
            for method, path, body in (*CREATED_ONCE, *CREATE_NOTHING):
                refused = await client.request(method, path, json=body, headers=NEW)
                problem(refused, 412, "lost-update")
                assert refused.headers["etag"], path
            assert (await client.get("/v1/audit")).json() == audited

    asyncio.run(story())


def test_write_that_may_only_create_says_if_there_is_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "orb.db") as opened, opened.as_role(Role.ADMIN) as client:
            for method, path, body in CREATE_NOTHING:
                if "config" not in path:
                    problem(await client.request(method, path, json=body, headers=NEW), 404, "not-found")
            problem(await client.put("/v1/exclusions/1", json={"reason": "x"}, headers=NEW), 404, "not-found")

    asyncio.run(story())


def test_advice_to_create_what_is_missing_is_given_only_to_creators(tmp_path: Path) -> None:
    """A DELETE, a verb or a PATCH was advised to omit If-Match "to create it", and was then answered 404."""

    async def story() -> None:
        async with api(tmp_path / "orb.db") as opened, opened.as_role(Role.ADMIN) as client:
            known = {"If-Match": '"1-1"'}
            orphan = await client.put("/v1/crawls/docs/seed-sets/one", json={"seeds": []}, headers=known)
            assert problem(orphan, 404, "not-found")["hint"] == "create the crawl first"
            refused = await client.put("/v1/crawls/docs", json={"spec": SPEC}, headers=known)
            assert problem(refused, 412, "lost-update")["hint"] == "omit If-Match to create it"
            for method, path, body in CREATE_NOTHING:
                if "config" not in path:
                    answer = await client.request(method, path, json=body, headers=known)
                    hint = problem(answer, 412, "lost-update")["hint"]
                    assert hint == "it was deleted or never existed: list what exists", path
            problem(await client.put("/v1/exclusions/1", json={"reason": "x"}, headers=known), 412, "lost-update")
            other = await client.post("/v1/crawls/docs/seeds", json={"seeds": []}, headers=known)
            problem(other, 404, "not-found")
            await opened.created("docs", start=False)
            for method, path, body in CREATED_ONCE[1:5]:
                answer = await client.request(method, path, json=body, headers=known)
                assert problem(answer, 412, "lost-update")["hint"] == "omit If-Match to create it", path
                assert (await client.request(method, path, json=body)).status_code == 201, path

    asyncio.run(story())


def test_every_write_with_if_match_takes_if_none_match_too() -> None:
    for path, item in openapi_document()["paths"].items():
        for method in set(item) - {"get"}:
            named = {each["name"]: each["schema"] for each in item[method].get("parameters", ())}
            if "If-Match" in named:
                assert named["If-None-Match"]["pattern"] == ANYTHING, f"{method} {path}"
            assert method != "put" or "If-Match" in named, path
