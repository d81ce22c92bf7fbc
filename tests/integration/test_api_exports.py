"""Exports over REST: every row, the same as the command writes, in bounded memory, and only while somebody listens."""

import asyncio
import csv
import io
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet
import pytest

from api.http import streamed
from api.http.sse import StreamLimit
from api.routes import exports
from api.server.serving import address_of, listening, serving
from cli.main import main
from shared.adapters.objects import tabular
from shared.adapters.objects.local import LocalSegments
from shared.adapters.objects.page_archive import ServedPages
from shared.adapters.objects.tabular import ENCODERS, JsonLines
from shared.adapters.sql.catalog import pages as sql
from shared.domain.crawl.state import Verb
from shared.domain.ids import CrawlId
from shared.domain.ops.access import Role
from shared.domain.reads.exports import COLUMNS, Row
from tests.support.api.discarding_client import sent
from tests.support.api.rest_api import SOMEONE, Api, api, problem
from tests.support.archive.crawl_folder import in_csv, made
from tests.support.database.large_crawl import grown, url_of
from tests.support.database.store_tables import sqlite_tables

EXPORT = "/v1/crawls/docs/export"
ROWS = 80_000
FEW = 10_000
GROUP = 5_000
"""The rows of a row group of Parquet. Less than `tabular.GROUP_ROWS`, so that fewer rows make several groups."""

# A loaded machine takes its time to make so many rows, which counts, too.
pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabular, "GROUP_ROWS", GROUP)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a crawl `large` of ROWS URLs and a crawl `small` of FEW."""
    folder = tmp_path_factory.mktemp("large")

    async def story() -> None:
        async with sqlite_tables(folder) as tables:
            for name, rows in (("large", ROWS), ("small", FEW)):  # the command exports the one that was made last
                crawl, _ = await tables.store.put_crawl(name, "{}", 0)
                grown(tables.path, crawl.crawl_id, rows)

    asyncio.run(story())
    return folder


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[Api, httpx.AsyncClient]]:
    """A real server over the folder, and somebody who may look."""
    archive = ServedPages(LocalSegments(folder / "archive"))
    async with api(folder / "crawl.db", archive=archive) as us:
        listener = listening("127.0.0.1:0")
        base, key = f"http://{address_of(listener)}", us.keys[Role.VIEWER]
        async with (
            serving(us.app, listener),
            httpx.AsyncClient(base_url=base, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client,
        ):
            yield us, client
    archive.close()


def exported(folder: Path, path: str) -> tuple[bytes, httpx.Headers]:
    """What a caller gets over a connection."""

    async def story() -> tuple[bytes, httpx.Headers]:
        async with served(folder) as (_, client):
            got = await client.get(path)
            assert got.status_code == 200, got.text[:1000]
            return got.content, got.headers

    return asyncio.run(story())


def commanded(folder: Path, what: str, form: str, out: Path) -> bytes:
    """What `orb export` writes."""
    assert main(["export", what, str(folder), "--format", form, "-o", str(out)]) == 0
    return out.read_bytes()


def from_csv(data: bytes) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def from_parquet(data: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist()
    for row in rows:
        if row.get("fetched_at") is not None:
            row["fetched_at"] = row["fetched_at"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return rows


@pytest.mark.parametrize(("what", "rows"), [("urls", FEW), ("pages", FEW // 4)])
def test_every_format_says_the_same_and_the_same_as_the_command(
    large: Path, tmp_path: Path, what: str, rows: int
) -> None:
    path = f"/v1/crawls/small/export/{what}"
    plain, headers = exported(large, path)
    assert headers["content-type"] == "application/jsonl"
    assert headers["content-disposition"] == f'attachment; filename="small-{what}.jsonl"'
    assert plain == commanded(large, what, "jsonl", tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in plain.splitlines()]
    assert len(lines) == rows
    assert len({line["url"] for line in lines}) == rows
    table, headers = exported(large, f"{path}?format=csv")
    assert headers["content-type"] == "text/csv; charset=utf-8; header=present"
    assert table == commanded(large, what, "csv", tmp_path / "out.csv")
    assert from_csv(table) == [{k: in_csv(v) for k, v in line.items()} for line in lines]
    columns, headers = exported(large, f"{path}?format=parquet")
    assert headers["content-type"] == "application/vnd.apache.parquet"
    assert from_parquet(columns) == lines
    assert from_parquet(commanded(large, what, "parquet", tmp_path / "out.parquet")) == lines


def test_links_come_from_the_archive_as_the_command_has_them(tmp_path: Path) -> None:
    crawl = made(tmp_path / "a.crawl", pages=23)
    plain, _ = exported(crawl.path, f"{EXPORT}/links")
    assert plain == commanded(crawl.path, "links", "jsonl", tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in plain.splitlines()]
    assert len(lines) == 2 * 23
    assert from_csv(exported(crawl.path, f"{EXPORT}/links?format=csv")[0]) == lines
    assert from_parquet(exported(crawl.path, f"{EXPORT}/links?format=parquet")[0]) == lines


def test_links_of_a_damaged_record_are_left_out_and_the_others_are_there(tmp_path: Path) -> None:
    crawl = made(tmp_path / "a.crawl", pages=5)
    (segment,) = (crawl.path / "archive").glob("*.warc.gz")
    held = bytearray(segment.read_bytes())
    held[-20] ^= 0xFF  # inside the metadata of the page that was stored last
    segment.write_bytes(held)
    lines = exported(crawl.path, f"{EXPORT}/links")[0].splitlines()
    assert {json.loads(line)["source"] for line in lines} == set(crawl.pages[:-1])


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("what", ["pages", "urls", "links"])
def test_an_export_of_nothing_is_a_file_of_its_format(tmp_path: Path, what: str, form: str) -> None:
    async def empty() -> None:
        async with sqlite_tables(tmp_path):
            pass

    asyncio.run(empty())
    data, _ = exported(tmp_path, f"{EXPORT}/{what}?format={form}")
    match form:
        case "jsonl":
            assert data == b""
        case "csv":
            assert data.decode().strip().split(",") == list(COLUMNS[what])
        case _:
            assert pyarrow.parquet.read_table(io.BytesIO(data)).column_names == list(COLUMNS[what])


def test_pieces_that_hold_few_rows_or_none_end_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most fetches are no pages: a piece that looked at its share of rows may have found none."""
    monkeypatch.setattr(sql, "SCANNED", 3)
    monkeypatch.setattr(exports, "PIECE", 2)

    async def story() -> None:
        async with sqlite_tables(tmp_path) as tables:
            grown(tables.path, tables.crawl_id, 400)

    asyncio.run(story())
    lines = exported(tmp_path, f"{EXPORT}/pages")[0].splitlines()
    assert {json.loads(line)["url"] for line in lines} == {url_of(CrawlId(1), n) for n in range(0, 400, 4)}


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "form", "of"), [("urls", "jsonl", 1), ("pages", "csv", 4), ("urls", "parquet", 1)])
def test_an_export_of_eight_times_the_rows_needs_no_more_memory(large: Path, what: str, form: str, of: int) -> None:
    """No object is kept for each row, and no text of it: the shortest line of a CSV takes more than 24 bytes.

    The most bytes are steps, because buffers grow by parts of their size.
    """

    async def story() -> None:
        async with api(large / "crawl.db") as us:
            await sent(us, f"/v1/crawls/large/export/{what}?format={form}")  # what is kept once, such as a full cache
            few, little = await sent(us, f"/v1/crawls/small/export/{what}?format={form}")
            many, much = await sent(us, f"/v1/crawls/large/export/{what}?format={form}")
            assert many > 5 * few
            rows = (ROWS - FEW) / of
            assert (much.blocks - little.blocks) / rows < 0.3, (little, much)
            assert (much.heap + much.arrow - little.heap - little.arrow) / rows < 24, (little, much)

    asyncio.run(story())


# --- callers ----------------------------------------------------------------------------------------------------------


class Endless:
    """A catalog whose crawl has URLs without end."""

    def __init__(self, catalog: Any) -> None:
        self._catalog = catalog
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    async def urls(self, crawl_id: CrawlId, **more: Any) -> Any:
        self.reads += 1
        found, _ = await self._catalog.urls(crawl_id, **more)
        return found, more["after"]


def test_a_caller_who_goes_away_ends_the_reading(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()
    real = exports._pieces

    async def watched(*given: Any) -> AsyncIterator[Iterator[Row]]:
        try:
            async for piece in real(*given):
                yield piece
        finally:
            ended.set()

    async def story() -> None:
        monkeypatch.setattr(exports, "_pieces", watched)
        async with served(large) as (us, client):
            endless = Endless(us.catalog)
            object.__setattr__(us.app.state.services, "catalog", endless)
            async with client.stream("GET", "/v1/crawls/large/export/urls") as response:
                async for _ in response.aiter_raw():
                    break
                assert not ended.is_set()
            await asyncio.wait_for(ended.wait(), 30)
            reads = endless.reads
            assert (await client.get("/v1/crawls/large")).status_code == 200
            assert endless.reads == reads

    asyncio.run(story())


def test_a_caller_who_does_not_read_holds_up_no_transaction_and_nobody_else(large: Path) -> None:
    """He stops after the beginning; the export waits for him, between two reads, while others are answered."""

    async def story() -> None:
        async with served(large) as (us, client):
            endless = Endless(us.catalog)
            object.__setattr__(us.app.state.services, "catalog", endless)
            async with client.stream("GET", "/v1/crawls/large/export/urls") as response:
                assert response.status_code == 200
                before = -1
                while endless.reads != before:  # until the connection's buffers are full
                    before = endless.reads
                    for _ in range(5):
                        assert (await client.get("/v1/crawls/large/stats")).status_code == 200
                await us.catalog.ping()

    asyncio.run(story())


def test_a_caller_who_never_reads_is_given_up(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "SLOW_S", 0.2)

    async def asked(us: Api, client: httpx.AsyncClient) -> None:
        async with client.stream("GET", "/v1/crawls/large/export/urls") as response:
            while us.app.state.services.exports.open:
                assert (await client.get("/v1/crawls/large")).status_code == 200
            await response.aread()

    async def story() -> None:
        async with served(large) as (us, client):
            object.__setattr__(us.app.state.services, "catalog", Endless(us.catalog))
            with pytest.raises(httpx.RemoteProtocolError):
                await asked(us, client)

    asyncio.run(story())


def test_further_exports_than_a_master_makes_at_once_are_told_to_wait(large: Path) -> None:
    async def story() -> None:
        async with served(large) as (us, client):
            endless = Endless(us.catalog)
            object.__setattr__(us.app.state.services, "catalog", endless)
            exports_ = StreamLimit(1)
            object.__setattr__(us.app.state.services, "exports", exports_)
            async with client.stream("GET", "/v1/crawls/large/export/urls") as response:
                assert response.status_code == 200
                refused = await client.get("/v1/crawls/small/export/pages")
                problem(refused, 429, "busy")
                assert int(refused.headers["retry-after"]) > 0
            while exports_.open:
                await client.get("/v1/crawls/large")
            assert (await client.get("/v1/crawls/small/export/pages")).status_code == 200

    asyncio.run(story())


def test_what_takes_time_is_done_beside_the_event_loop(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()

    class Watched(JsonLines):
        def add(self, rows: Sequence[Row]) -> bytes:
            threads.add(threading.get_ident())
            return super().add(rows)

    monkeypatch.setitem(ENCODERS, "jsonl", Watched)
    exported(large, "/v1/crawls/small/export/urls")
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("verb", ["delete", "reset"])
def test_an_export_of_a_crawl_that_is_deleted_meanwhile_breaks_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Its rows are being removed: what is left of them must not pass for all of it."""
    monkeypatch.setattr(exports, "PIECE", 50)
    crawl = made(tmp_path / "a.crawl")
    grown(crawl.path / "crawl.db", CrawlId(1), 5_000)
    real = exports._pieces

    async def story(act: Callable[[Api], Awaitable[Any]]) -> None:
        done = False

        async def interrupted(*given: Any) -> AsyncIterator[Iterator[Row]]:
            nonlocal done
            async for piece in real(*given):
                yield piece
                if not done:
                    done = True
                    await act(us)

        monkeypatch.setattr(exports, "_pieces", interrupted)
        async with served(crawl.path) as (us, client):
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get(f"{EXPORT}/urls")
            assert done

    asyncio.run(story(lambda us: us.catalog.turn("docs", Verb(verb), expected=None, actor=SOMEONE, now_ms=1)))


def test_what_cannot_be_exported_is_a_problem(tmp_path: Path) -> None:
    async def story() -> None:
        async with sqlite_tables(tmp_path) as tables, api(tables.path) as us, us.as_role(Role.VIEWER) as client:
            problem(await client.get(f"{EXPORT}/hosts"), 422, "invalid")
            problem(await client.get(f"{EXPORT}/pages?format=xlsx"), 422, "invalid")
            problem(await client.get("/v1/crawls/none/export/pages"), 404, "not-found")
            problem(await us.anonymous.get(f"{EXPORT}/pages"), 401, "unauthenticated")

    asyncio.run(story())
