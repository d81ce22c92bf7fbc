"""Stored pages over REST: lists of bounded cost, one page's record, and bodies that nobody's browser takes for ours."""

import asyncio
import gzip
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import brotli
import httpx
import msgspec
import pytest

from api.routes import pages as routes
from api.routes.pages import file_name
from shared.adapters.objects.local import LocalSegments
from shared.adapters.objects.page_archive import ServedPages
from shared.adapters.sql.catalog import pages as sql
from shared.domain.archive.model import Archived, Exchange, Revisit, RevisitProfile, payload_digest
from shared.domain.ops.access import Role
from shared.domain.web.fetch import Truncation
from shared.domain.web.url import fingerprint, locate
from tests.support.api.paging import walked
from tests.support.api.rest_api import Api, api, problem
from tests.support.archive.archived_pages import archived, elsewhere, reported
from tests.support.archive.exchanges import AT_MS, answer
from tests.support.database.store_tables import Tables, links, sqlite_tables

PAGES = "/v1/crawls/docs/pages"


@asynccontextmanager
async def shelf(
    folder: Path, exchanges: Sequence[Exchange] = ()
) -> AsyncIterator[tuple[Tables, Api, httpx.AsyncClient]]:
    """A crawl with these pages in its archive, and somebody who may only look."""
    served = ServedPages(LocalSegments(folder / "archive"))
    async with sqlite_tables(folder) as tables:
        if exchanges:
            await archived(tables, folder / "archive", exchanges)
        async with api(tables.path, archive=served) as us, us.as_role(Role.VIEWER) as client:
            yield tables, us, client
    served.close()


def page(url: str, body: bytes = b"<p>a page</p>", *lines: bytes, depth: int = 0, **more: Any) -> Exchange:
    return Exchange(answer(body, *lines, url=url, **more), AT_MS, depth)


def test_pages_are_walked_by_lists_of_bounded_cost_and_filtered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "SCANNED", 7)

    async def story() -> None:
        html = [page(f"http://a.test/{n}", b"x", b"Content-Type: text/html") for n in range(20)]
        lost = [page(f"http://b.test/{n}", b"x", b"Content-Type: text/plain", status=404) for n in range(20)]
        async with shelf(tmp_path, [*html, *lost]) as (tables, _, client):
            await tables.found(*links("a.test", range(100, 120)))  # known, and no page
            every = await walked(client, f"{PAGES}?limit=6")
            assert sorted(each["url"] for each in every) == sorted(each.answer.url for each in [*html, *lost])
            assert len({each["id"] for each in every}) == 40
            for query in ("host=b.test", "status=404", "mime=Text/Plain"):
                found = await walked(client, f"{PAGES}?limit=3&{query}")
                assert {each["url"] for each in found} == {each.answer.url for each in lost}, query
            assert await walked(client, f"{PAGES}?host=nowhere.test") == []
            assert await walked(client, f"{PAGES}?host=a.test&status=404") == []
            problem(await client.get(f"{PAGES}?host=%00"), 400, "malformed")
            problem(await client.get(f"{PAGES}?cursor=nonsense"), 422, "invalid")

    asyncio.run(story())


def test_only_what_was_accepted_as_a_page_is_one(tmp_path: Path) -> None:
    """A fetch that stored no page, and one whose page was not accepted, stand among the fetches as well."""

    async def story() -> None:
        async with shelf(tmp_path, [page(f"http://a.test/{n}") for n in range(3)]) as (tables, _, client):
            with closing(sqlite3.connect(tables.path)) as connection:
                marks = [fingerprint(f"http://a.test/{n}") for n in (1, 2)]
                connection.execute("UPDATE fetches SET page = 0 WHERE fingerprint = ?", marks[:1])
                connection.execute("UPDATE fetches SET segment = NULL WHERE fingerprint = ?", marks[1:])
                connection.commit()
            assert [each["url"] for each in await walked(client, PAGES)] == ["http://a.test/0"]
            for n in (1, 2):
                found = await client.get(f"{PAGES}/lookup", params={"url": f"http://a.test/{n}"})
                problem(found, 404, "not-found")

    asyncio.run(story())


def test_a_page_is_found_by_its_url_and_by_its_id(tmp_path: Path) -> None:
    async def story() -> None:
        stored = page("http://a.test/guide?x=1", b"text", b"Content-Type: text/html", depth=2)
        async with shelf(tmp_path, [stored]) as (_, _, client):
            listed = (await walked(client, PAGES))[0]
            found = await client.get(f"{PAGES}/lookup", params={"url": "HTTP://a.test:80/guide?x=1#part"})
            named = await client.get(f"{PAGES}/{listed['id']}")
            assert found.json() == named.json()
            assert {name: found.json()[name] for name in listed} == listed
            assert (listed["status"], listed["mime"], listed["size"], listed["depth"]) == (200, "text/html", 4, 2)
            assert listed["fetched_at"] == "2023-11-14T22:13:20.123000Z"
            assert listed["archive"]["segment"].endswith(".warc.gz")
            assert found.headers["etag"] == named.headers["etag"]
            await refused(client, listed["id"])

    asyncio.run(story())


async def refused(client: httpx.AsyncClient, known: str) -> None:
    host, _, mark = known.partition("-")
    for other in (f"{int(host) + 1}-{mark}", f"{host}-{mark[::-1]}", f"9999999999999999999-{mark}"):
        problem(await client.get(f"{PAGES}/{other}"), 404, "not-found")
        problem(await client.get(f"{PAGES}/{other}/body"), 404, "not-found")
    problem(await client.get(f"{PAGES}/-1-{mark}"), 422, "invalid")
    problem(await client.get(f"{PAGES}/lookup", params={"url": "ftp://a.test/"}), 422, "invalid")
    problem(await client.get(f"{PAGES}/lookup"), 422, "invalid")
    problem(await client.get(f"/v1/crawls/none/pages/{known}"), 404, "not-found")


BODIES = {
    "plain": page("http://a.test/plain", b"as it came", b"Content-Type: text/plain"),
    "gzip": page("http://a.test/gzip", gzip.compress(b"packed " * 9), b"Content-Encoding: gzip"),
    "br": page("http://a.test/br", brotli.compress(b"packed " * 9), b"Content-Encoding: br"),
    "empty": page("http://a.test/empty", b""),
    "unknown coding": page("http://a.test/rot13", b"nf vg vf", b"Content-Encoding: rot13"),
    "not what it says": page("http://a.test/lie", b"not gzip at all", b"Content-Encoding: gzip"),
    "cut off gzip": page("http://a.test/torn", gzip.compress(b"begun " * 99)[:-9], b"Content-Encoding: gzip"),
    "cut when fetched": page("http://a.test/cut", b"the beginning", truncated=Truncation.LENGTH),
    "an error page": page("http://a.test/error", b"sorry", status=503),
}
WHOLE = {"plain", "gzip", "br", "empty", "an error page"}


def test_bodies_come_as_the_site_meant_them_and_say_when_they_are_not_whole(tmp_path: Path) -> None:
    expected = {
        "plain": b"as it came", "gzip": b"packed " * 9, "br": b"packed " * 9, "empty": b"",
        "unknown coding": b"nf vg vf", "not what it says": b"not gzip at all", "cut off gzip": b"begun " * 99,
        "cut when fetched": b"the beginning", "an error page": b"sorry",
    }  # fmt: skip

    async def story() -> None:
        async with shelf(tmp_path, list(BODIES.values())) as (_, _, client):
            for name, stored in BODIES.items():
                got = await client.get(f"{PAGES}/lookup/body", params={"url": stored.answer.url})
                assert got.status_code == 200, got.text
                assert got.content == expected[name], name
                assert ("x-orb-incomplete" in got.headers) == (name not in WHOLE), name
            assert got.headers["content-length"] == "5"

    asyncio.run(story())


HOSTILE = [
    page("http://a.test/x.html", b"<script>alert(document.domain)</script>", b"Content-Type: text/html"),
    page("http://a.test/x.svg", b"<svg onload='alert(1)'/>", b"Content-Type: image/svg+xml"),
    page("http://a.test/%0d%0aSet-Cookie:%20a=b", b"x", b"Content-Disposition: inline", b"Set-Cookie: a=b"),
    page('http://a.test/";x="', b"x", b"Content-Type: text/html\rX-Injected: 1"),
    page("http://a.test/..%2f..%2fetc%2fpasswd", b"x", b"Location: http://evil.test/"),
    page("http://a.test/.bashrc", b"x", b"Access-Control-Allow-Origin: *"),
    page("http://a.test/CON", b"x", b"Content-Type: application/javascript"),
    page("http://a.test/%E2%80%AEfdp.exe", b"x"),
]
OURS = {
    "content-disposition", "content-security-policy", "cross-origin-resource-policy", "content-length", "content-type",
    "etag", "x-request-id", "x-content-type-options", "cache-control", "ratelimit", "ratelimit-policy",
}  # fmt: skip


@pytest.mark.parametrize("stored", HOSTILE, ids=[each.answer.url for each in HOSTILE])
def test_hostile_page_reaches_no_header_and_runs_not_on_our_origin(tmp_path: Path, stored: Exchange) -> None:
    async def story() -> None:
        async with shelf(tmp_path, [stored]) as (_, _, client):
            got = await client.get(f"{PAGES}/lookup/body", params={"url": stored.answer.url})
            assert got.content == stored.answer.body
            assert set(got.headers) == OURS, "what the site sent beside its body stays in the archive"
            assert got.headers["content-type"] == "application/octet-stream"
            assert got.headers["content-security-policy"] == "sandbox; default-src 'none'"
            assert got.headers.get_list("x-content-type-options") == ["nosniff"]
            name = got.headers["content-disposition"].removeprefix('attachment; filename="').removesuffix('"')
            assert name.isascii()
            assert not set(name) & set('"\\/:*?<>|%\r\n ')
            at = locate(stored.answer.url)
            assert at is not None
            assert name[:9] == at.fingerprint.hex()[:8] + "-"

    asyncio.run(story())


def test_a_file_is_named_for_the_end_of_its_url_within_bounds() -> None:
    mark = fingerprint("x")
    begin = mark.hex()[:8]
    assert file_name("http://a.test/docs/guide.html?v=/2#x", mark) == f"{begin}-guide.html"
    assert file_name("http://a.test/", mark) == f"{begin}-page"
    assert file_name("http://a.test/...", mark) == f"{begin}-page"
    assert file_name("http://a.test/" + "a" * 9000 + ".pdf", mark) == f"{begin}-{'a' * 76}.pdf"


@pytest.mark.parametrize(
    "place",
    [
        elsewhere("../crawl.db"),
        elsewhere("../../../../etc/passwd"),
        elsewhere("/etc/passwd"),
        elsewhere("none.warc.gz"),
        elsewhere("noise.warc.gz"),
        elsewhere("noise.warc.gz", 1 << 40, 1 << 50),
        elsewhere("x" * 300),
    ],
    ids=lambda place: f"{place.location.segment[:20]} at {place.location.offset}",
)
def test_location_elsewhere_is_refused_without_revealing_content(tmp_path: Path, place: Archived) -> None:
    async def story() -> None:
        (tmp_path / "archive").mkdir()
        (tmp_path / "archive" / "noise.warc.gz").write_bytes(b"SECRET" * 100)
        stored = page("http://a.test/")
        async with shelf(tmp_path) as (tables, _, client):
            await reported(tables, [stored], [place])
            got = await client.get(f"{PAGES}/lookup/body", params={"url": "http://a.test/"})
            said = problem(got, 409, "no-archive")
            assert str(tmp_path) not in got.text
            assert "SECRET" not in got.text
            assert "--archive" in said["hint"]

    asyncio.run(story())


def test_a_master_without_an_archive_says_what_to_do(tmp_path: Path) -> None:
    async def story() -> None:
        async with sqlite_tables(tmp_path) as tables, api(tables.path) as us, us.as_role(Role.VIEWER) as client:
            await archived(tables, tmp_path / "archive", [page("http://a.test/")])
            assert len(await walked(client, PAGES)) == 1, "what the database knows is served all the same"
            for path in (f"{PAGES}/lookup/body?url=http://a.test/", "/v1/crawls/docs/export/links"):
                assert "--archive" in problem(await client.get(path), 409, "no-archive")["hint"]

    asyncio.run(story())


def test_a_page_that_was_found_unchanged_has_the_body_of_the_capture_before(tmp_path: Path) -> None:
    body = b"the same as ever"
    first = page("http://a.test/first", body)
    digest = payload_digest(body)
    again = msgspec.structs.replace(
        page("http://a.test/again", b"", status=304),
        revisit=Revisit(RevisitProfile.IDENTICAL_PAYLOAD, "http://a.test/first", AT_MS, digest),
        digest=digest,
    )
    gone = msgspec.structs.replace(
        page("http://a.test/gone", b"", status=304),
        revisit=Revisit(RevisitProfile.IDENTICAL_PAYLOAD, "http://a.test/never", AT_MS, digest),
        digest=digest,
    )

    async def story() -> None:
        async with shelf(tmp_path, [first, again, gone]) as (_, _, client):
            got = await client.get(f"{PAGES}/lookup/body", params={"url": "http://a.test/again"})
            assert (got.status_code, got.content) == (200, body)
            lost = await client.get(f"{PAGES}/lookup/body", params={"url": "http://a.test/gone"})
            problem(lost, 404, "not-found")

    asyncio.run(story())


def test_a_body_larger_than_is_kept_in_memory_comes_whole_and_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "WHOLE_BYTES", 1 << 16)
    body = bytes(range(256)) * 4096 * 4
    stored = page("http://a.test/large", gzip.compress(body), b"Content-Encoding: gzip")

    async def story() -> None:
        async with shelf(tmp_path, [stored]) as (_, _, client):
            got = await client.get(f"{PAGES}/lookup/body", params={"url": "http://a.test/large"})
            assert got.content == body
            assert "content-length" not in got.headers, "its size is not known before its end"

    asyncio.run(story())


@pytest.mark.parametrize("what", ["coding", "record"])
def test_large_body_broken_off_does_not_end_as_if_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """In process there is no connection to break: the application's failure stands for it."""
    monkeypatch.setattr(routes, "WHOLE_BYTES", 1 << 16)
    noise = b"".join(n.to_bytes(4, "big") for n in range(1 << 18))
    sent = gzip.compress(noise, 1)
    stored = page("http://a.test/large", sent[:-9] if what == "coding" else sent, b"Content-Encoding: gzip")

    async def story() -> None:
        async with shelf(tmp_path, [stored]) as (_, us, client):
            if what == "record":
                (segment,) = (tmp_path / "archive").iterdir()
                held = bytearray(segment.read_bytes())
                held[len(held) * 3 // 4] ^= 0xFF
                segment.write_bytes(held)
            transport = httpx.ASGITransport(us.app, raise_app_exceptions=True)
            async with httpx.AsyncClient(transport=transport, base_url="http://m", headers=client.headers) as strict:
                with pytest.raises(Exception, match=r"undecodable|gzip|record|ends"):
                    await strict.get(f"{PAGES}/lookup/body", params={"url": "http://a.test/large"})

    asyncio.run(story())


def test_a_body_is_read_while_its_segment_is_finished_under_another_name(tmp_path: Path) -> None:
    """An unfinished segment is served too, and its renaming between two reads disturbs nobody."""

    async def story() -> None:
        async with shelf(tmp_path, [page("http://a.test/")]) as (_, _, client):
            (segment,) = (tmp_path / "archive").iterdir()
            segment.rename(segment.with_name(segment.name + ".open"))
            got = await client.get(f"{PAGES}/lookup/body", params={"url": "http://a.test/"})
            assert got.content == b"<p>a page</p>"

    asyncio.run(story())


def test_bodies_need_a_key_like_everything_else(tmp_path: Path) -> None:
    async def story() -> None:
        async with shelf(tmp_path, [page("http://a.test/")]) as (_, us, client):
            listed = (await walked(client, PAGES))[0]
            for path in (PAGES, f"{PAGES}/{listed['id']}", f"{PAGES}/{listed['id']}/body"):
                problem(await us.anonymous.get(path), 401, "unauthenticated")

    asyncio.run(story())
