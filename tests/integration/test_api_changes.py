"""Changes and versions of pages over REST: in order, by keyset, live, with their bodies and the difference of texts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from shared.adapters.objects.local import LocalSegments
from shared.adapters.objects.page_archive import ServedPages
from shared.adapters.sql.admin.retention import SqlRetained
from shared.adapters.sql.catalog import changes as sql
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.archive.model import Exchange
from shared.domain.frontier.page_history import ChangeKind, PageHistory, change_of
from shared.domain.frontier.revisits import Superseded
from shared.domain.frontier.store_model import Changes, FetchRow
from shared.domain.ids import HostId
from shared.domain.ops.access import Role
from shared.domain.ops.retention import DAY_MS, RetainedKind, Retention
from shared.domain.web.text_diff import MAX_DIFF_LINES, text_diff, text_of
from shared.domain.web.url import fingerprint
from tests.support.api.paging import walked
from tests.support.api.rest_api import Api, api, problem
from tests.support.archive.archived_pages import archived
from tests.support.archive.exchanges import AT_MS, answer
from tests.support.database.store_tables import Tables, sqlite_tables

CHANGES = "/v1/crawls/docs/changes"
URL = "http://a.test/news"
HTML = b"Content-Type: text/html; charset=utf-8"
BODIES = [f"<h1>News</h1><p>{text}</p><p>end</p>".encode() for text in ("Rain", "Sun", "Snow")]


def page(url: str, body: bytes, at_ms: int = AT_MS, *lines: bytes) -> Exchange:
    return Exchange(answer(body, *(lines or (HTML,)), url=url), at_ms, 0)


@asynccontextmanager
async def news(folder: Path) -> AsyncIterator[tuple[Tables, Api, httpx.AsyncClient, str]]:
    """A crawl whose page had three versions, with its id."""
    served = ServedPages(LocalSegments(folder / "archive"))
    async with sqlite_tables(folder) as tables:
        await archived(tables, folder / "archive", [page(URL, BODIES[0])])
        others = [page(f"http://a.test/{n}", BODIES[n], AT_MS + n * 1000) for n in (1, 2)]
        places = await archived(tables, folder / "archive", others)
        host_id, key = tables.host_id("a.test"), fingerprint(URL)
        place = (tables.crawl_id, host_id, key)
        log = [change_of(ChangeKind.NEW, host_id, key, 1)]
        await tables.apply(Changes(page_changes={tables.crawl_id: log}, at_ms=AT_MS))
        for n, stored in enumerate(places, start=1):
            row = FetchRow(
                *place, AT_MS + n * 1000, 200, True, size=len(BODIES[n]), mime="text/html", digest=stored.digest,
                segment=stored.location.segment, offset=stored.location.offset, length=stored.location.length,
                recrawl=PageHistory(version=n + 1).encoded(),
            )  # fmt: skip
            log = [change_of(ChangeKind.CHANGED, host_id, key, n + 1)]
            changes = Changes(superseded=[Superseded(*place, n, 0)], fetches=[row], at_ms=AT_MS + n * 1000)
            changes.page_changes[tables.crawl_id] = log
            await tables.apply(changes)
        async with api(tables.path, archive=served) as us, us.as_role(Role.VIEWER) as client:
            yield tables, us, client, f"{host_id}-{key.hex()}"
    served.close()


def moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat().replace("+00:00", "Z")


def test_changes_are_listed_in_order_and_since_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "ROWS", 2)

    async def story() -> None:
        async with news(tmp_path) as (tables, _, client, page_id):
            every = await walked(client, f"{CHANGES}?limit=1")
            assert [(each["kind"], each["version"]) for each in every] == [("new", 1), ("changed", 2), ("changed", 3)]
            assert {(each["page"], each["url"], each["host"]) for each in every} == {(page_id, URL, "a.test")}
            late = await walked(client, f"{CHANGES}?since={moment(AT_MS + 1000)}")
            assert [each["version"] for each in late] == [2, 3]
            assert await walked(client, f"{CHANGES}?since={moment(AT_MS + 2001)}") == []
            assert [each["kind"] for each in await walked(client, f"{CHANGES}?kind=new&kind=gone")] == ["new"]
            file = await client.get("/v1/crawls/docs/export/changes?format=csv")
            assert [line.split(",")[1:] for line in file.text.split()] == [
                ["kind", "url", "version"],
                *([each["kind"], URL, str(each["version"])] for each in every),
            ]
            stray = change_of(ChangeKind.NEW, HostId(7), fingerprint("http://x.test/"), 1)
            await tables.apply(Changes(page_changes={tables.crawl_id: [stray]}, at_ms=AT_MS + 5000))
            assert len(await walked(client, CHANGES)) == 3, "a page that is no longer known is left out"
            problem(await client.get(f"{CHANGES}?kind=odd"), 422, "invalid")
            problem(await client.get(f"{CHANGES}?since=yesterday"), 422, "invalid")
            problem(await client.get(f"{CHANGES}?cursor=nonsense"), 422, "invalid")
            problem(await client.get("/v1/crawls/none/changes"), 404, "not-found")

    asyncio.run(story())


@pytest.mark.parametrize("path", [CHANGES, f"{CHANGES}/stream"])
def test_time_without_zone_is_refused_in_changes(tmp_path: Path, path: str) -> None:
    async def story() -> None:
        async with news(tmp_path) as (_, _, client, _):
            refused = await client.get(path, params={"since": "2099-01-01T00:00:00"})
            [wrong] = problem(refused, 422, "invalid")["errors"]
            assert wrong["path"] == "query.since"
            assert "needs a time zone" in wrong["message"]

    asyncio.run(story())


def test_read_from_before_what_is_kept_names_the_gap(tmp_path: Path) -> None:
    rules = Retention(changes_days=1)

    async def story() -> None:
        async with news(tmp_path) as (tables, _, client, _):
            assert isinstance(tables.store, SqlStore)
            retained = SqlRetained(tables.store.executor)
            assert (await client.get(CHANGES)).json()["gap"] is None
            assert "X-Orb-Deleted-Until" not in (await client.get("/v1/crawls/docs/export/changes")).headers
            await retained.forget(RetainedKind.CHANGES, rules, AT_MS + DAY_MS + 500, "")
            expired = {"reason": "expired", "deleted_until": moment(AT_MS)}
            exported = await client.get("/v1/crawls/docs/export/changes")
            assert datetime.fromisoformat(exported.headers["X-Orb-Deleted-Until"]) == datetime.fromtimestamp(
                AT_MS // 1000, UTC
            )
            assert "X-Orb-Deleted-Until" not in (await client.get("/v1/crawls/docs/export/urls")).headers
            for query in ("", f"?since={moment(AT_MS)}", "?limit=1", "?kind=gone"):
                assert (await client.get(f"{CHANGES}{query}")).json()["gap"] == expired, query
            first = (await client.get(f"{CHANGES}?limit=1")).json()
            assert [each["version"] for each in first["items"]] == [2]
            for query in (f"?since={moment(AT_MS + 1)}", f"?cursor={first['next']}"):
                later = (await client.get(f"{CHANGES}{query}")).json()
                assert (later["gap"], later["items"][-1]["version"]) == (None, 3), query
            await retained.forget(RetainedKind.CHANGES, rules, AT_MS + DAY_MS + 1500, "")
            late = (await client.get(f"{CHANGES}?cursor={first['next']}")).json()
            assert late["gap"]["deleted_until"] == moment(AT_MS + 1000), "deleted while the client was reading"

    asyncio.run(story())


def test_versions_have_their_bodies_and_the_newest_is_the_stored_page(tmp_path: Path) -> None:
    async def story() -> None:
        async with news(tmp_path) as (_, _, client, page_id):
            at = f"/v1/crawls/docs/pages/{page_id}"
            listed = (await client.get(f"{at}/versions")).json()["items"]
            assert [(each["version"], each["newest"]) for each in listed] == [(3, True), (2, False), (1, False)]
            for each, body in zip(listed, reversed(BODIES), strict=True):
                answered = await client.get(f"{at}/versions/{each['version']}/body")
                assert (answered.status_code, answered.content) == (200, body)
                assert "attachment" in answered.headers["Content-Disposition"]
            assert (await client.get(f"{at}/body")).content == BODIES[2]
            problem(await client.get(f"{at}/versions/4/body"), 404, "not-found")
            problem(await client.get(f"{at}/versions/0/body"), 422, "invalid")
            unknown = page_id.partition("-")[0] + "-" + "0" * 32
            problem(await client.get(f"/v1/crawls/docs/pages/{unknown}/versions"), 404, "not-found")

    asyncio.run(story())


def test_difference_of_two_versions_is_that_of_their_texts(tmp_path: Path) -> None:
    async def story() -> None:
        async with news(tmp_path) as (_, _, client, page_id):
            at = f"/v1/crawls/docs/pages/{page_id}/diff"
            newest = (await client.get(at)).json()
            assert (newest["before"], newest["after"], newest["added"], newest["removed"]) == (2, 3, 1, 1)
            assert newest["lines"] == ["@@ -1,3 +1,3 @@", " News", "-Sun", "+Snow", " end"]
            whole = (await client.get(f"{at}?from=1&to=3")).json()
            assert ("-Rain" in whole["lines"], "+Snow" in whole["lines"], whole["cut"]) == (True, True, False)
            assert (await client.get(f"{at}?from=3&to=3")).json()["lines"] == []
            problem(await client.get(f"{at}?to=1"), 404, "not-found")
            problem(await client.get(f"{at}?from=9"), 404, "not-found")

    asyncio.run(story())


def test_stream_refuses_an_id_that_it_did_not_send(tmp_path: Path) -> None:
    async def story() -> None:
        async with news(tmp_path) as (_, _, client, _):
            wrong = await client.get(f"{CHANGES}/stream", headers={"Last-Event-ID": "1-2"})
            problem(wrong, 422, "invalid")
            problem(await client.get("/v1/crawls/none/changes/stream"), 404, "not-found")

    asyncio.run(story())


def test_difference_of_long_texts_is_bounded_and_keeps_line_numbers() -> None:
    before = [f"line {n}" for n in range(50_000)]
    after = [*before[:40_000], "new", *before[40_000:]]
    diff = text_diff(before, after)
    assert (diff.added, diff.removed, diff.cut) == (1, 0, False)
    assert diff.lines[0] == "@@ -39998,6 +39998,7 @@"
    other = text_diff(["a"] * (MAX_DIFF_LINES * 3), ["b"] * (MAX_DIFF_LINES * 3))
    assert (other.added, other.removed, other.cut) == (MAX_DIFF_LINES, MAX_DIFF_LINES, True)


def test_text_is_read_in_the_charset_of_the_answer_or_the_page() -> None:
    assert text_of("<p>é".encode("latin-1"), "text/html; charset=ISO-8859-1", "text/html") == ["é"]
    assert text_of('<meta charset="koi8-r"><p>да'.encode("koi8-r"), "text/html", "text/html") == ["да"]
    assert text_of("<p>é".encode(), "text/html", "text/html") == ["é"]
    assert text_of("<p>é\x80".encode("cp1252", "replace"), "text/html", "text/html") == ["é?"]
    assert text_of(b"a\n<b>\n", "text/plain", "text/plain") == ["a", "<b>"]
