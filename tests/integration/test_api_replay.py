"""What replay tools read over REST: captures of a crawl, and the bytes of its WARC files."""

import asyncio
import base64
import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from api.http.sse import StreamLimit
from shared.adapters.sql.catalog import captures
from shared.domain.ops.access import Role
from tests.integration.test_api_pages import page, shelf
from tests.support.api.rest_api import problem

CDX = "/v1/crawls/docs/cdx"
SEGMENTS = "/v1/crawls/docs/segments"


def test_captures_are_queried_as_lines_and_as_objects(tmp_path: Path) -> None:
    async def story() -> None:
        exchanges = [
            page("http://a.test/docs/1", b"one"),
            page("http://a.test/docs/2", b"", status=404),
            page("http://a.test/docs/3", b"", b"Location: /docs/1", status=302),
            page("http://b.test/", b"b"),
        ]
        async with shelf(tmp_path, exchanges) as (_, _, client):
            [line] = (await client.get(CDX, params={"url": "https://www.a.test/docs/1"})).text.splitlines()
            key, time, fields = line.split(" ", 2)
            place = json.loads(fields)
            assert (key, len(time), place["url"], place["status"]) == (
                "test,a)/docs/1",
                14,
                exchanges[0].answer.url,
                "200",
            )
            answer = await client.get(CDX, params={"url": "http://a.test/docs/*", "output": "json", "limit": 2})
            assert answer.headers["content-type"].startswith("application/x-ndjson")
            objects = [json.loads(line) for line in answer.text.splitlines()]
            assert [(each["urlkey"], each["status"]) for each in objects] == [
                ("test,a)/docs/1", "200"),
                ("test,a)/docs/2", "404"),
            ]
            for match, count in (("exact", 0), ("prefix", 3), ("host", 3), ("domain", 3)):
                asked = {"url": "http://a.test/docs/", "matchType": match, "closest": "", "sort": "closest"}
                found = (await client.get(CDX, params=asked)).text.splitlines()
                assert len(found) == count, match
            record = {"range": f"bytes={place['offset']}-{int(place['offset']) + int(place['length']) - 1}"}
            got = await client.get(f"{SEGMENTS}/{place['filename']}", headers=record)
            assert (got.status_code, len(got.content)) == (206, int(place["length"]))
            assert gzip.decompress(got.content).startswith(b"WARC/1.1\r\nWARC-Type: response\r\n")
            assert got.content.__len__() == int(got.headers["content-length"])

    asyncio.run(story())


def test_earlier_versions_of_a_page_are_captures_of_their_own(tmp_path: Path) -> None:
    async def story() -> None:
        async with shelf(tmp_path, [page("http://a.test/", b"new")]) as (tables, _, client):
            with closing(sqlite3.connect(tables.path)) as database, database:
                database.execute(
                    "INSERT INTO page_versions (crawl_id, host_id, fingerprint, version, at_ms, status, size, mime,"
                    ' segment, "offset", length) SELECT crawl_id, host_id, fingerprint, 1, at_ms - 86400000, 200, 3,'
                    " mime, segment, 7, length FROM fetches"
                )
            for asked in ({"url": "http://a.test/"}, {"url": "a.test/*"}):
                first, second = (await client.get(CDX, params=asked)).text.splitlines()
                assert first.split()[1] < second.split()[1]
                assert '"offset": "7"' in first

    asyncio.run(story())


def test_query_that_reads_too_much_or_names_no_url_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with shelf(tmp_path, [page(f"http://a.test/{n}") for n in range(5)]) as (_, _, client):
            refused: list[tuple[dict[str, str | int], str]] = [
                ({"url": "mailto:a@b"}, "query.url"),
                ({"url": "http://a.test/", "closest": "yesterday"}, "query.closest"),
                ({"url": "http://a.test/", "matchType": "all"}, "query.matchType"),
                ({"url": "http://a.test/", "limit": 20_001}, "query.limit"),
            ]
            for params, place in refused:
                told = problem(await client.get(CDX, params=params), 422, "invalid")
                assert told["errors"][0]["path"] == place
            monkeypatch.setattr(captures, "SCANNED", 4)
            told = problem(await client.get(CDX, params={"url": "http://a.test/*"}), 422, "invalid")
            assert "longer prefix" in told["errors"][0]["hint"]
            monkeypatch.undo()
            monkeypatch.setattr(captures, "SCANNED_HOSTS", 0)
            assert (await client.get(CDX, params={"url": "http://a.test/*"})).status_code == 200
            problem(await client.get(CDX, params={"url": "*.a.test"}), 422, "invalid")
            problem(await client.get("/v1/crawls/none/cdx", params={"url": "http://a.test/"}), 404, "not-found")

    asyncio.run(story())


def test_files_are_served_whole_and_by_range_and_only_those_of_the_crawl(tmp_path: Path) -> None:
    async def story() -> None:
        async with shelf(tmp_path, [page("http://a.test/", b"x" * 5_000)]) as (_, _, client):
            [file] = (tmp_path / "archive").glob("*.warc.gz*")
            name, data = file.name.removesuffix(".open"), file.read_bytes()
            whole = await client.get(f"{SEGMENTS}/{name}")
            assert (whole.status_code, whole.content, whole.headers["accept-ranges"]) == (200, data, "bytes")
            size = len(data)
            ranges = [("0-9", 0, 10), (f"{size - 5}-", size - 5, size), (f"5-{size + 9}", 5, size)]
            ranges += [("-5", size - 5, size), (f"-{size + 9}", 0, size)]
            for asked, begin, end in ranges:
                part = await client.get(f"{SEGMENTS}/{name}", headers={"range": f"bytes={asked}"})
                assert (part.status_code, part.content) == (206, data[begin:end])
                assert part.headers["content-range"] == f"bytes {begin}-{end - 1}/{size}"
            for asked in (f"{size}-", "9-5", "-0"):
                refused = await client.get(f"{SEGMENTS}/{name}", headers={"range": f"bytes={asked}"})
                problem(refused, 416, "range-not-satisfiable")
                assert refused.headers["content-range"] == f"bytes */{size}"
            (tmp_path / "archive" / "999-other.warc.gz").write_bytes(b"another crawl's")
            problem(await client.get(f"{SEGMENTS}/999-other.warc.gz"), 404, "not-found")
            problem(await client.get(f"{SEGMENTS}/{name.replace('0001', '0009')}"), 404, "not-found")
            problem(await client.get(f"{SEGMENTS}/..%2F{name}"), 404, "not-found")

    asyncio.run(story())


def test_file_beyond_the_maximum_of_open_exports_is_refused_as_busy(tmp_path: Path) -> None:
    async def story() -> None:
        async with shelf(tmp_path, [page("http://a.test/")]) as (_, us, client):
            [file] = (tmp_path / "archive").glob("*.warc.gz*")
            path = f"{SEGMENTS}/{file.name.removesuffix('.open')}"
            exports = StreamLimit(1)
            object.__setattr__(us.app.state.services, "exports", exports)
            with exports.slot():
                for headers in ({}, {"range": "bytes=0-9"}):
                    refused = await client.get(path, headers=headers)
                    problem(refused, 429, "busy")
                    assert int(refused.headers["retry-after"]) > 0
            assert (await client.get(path)).content == file.read_bytes()
            assert exports.open == 0

    asyncio.run(story())


def test_empty_file_is_served_whole(tmp_path: Path) -> None:
    async def story() -> None:
        async with shelf(tmp_path, [page("http://a.test/")]) as (_, us, client):
            [file] = (tmp_path / "archive").glob("*.warc.gz*")
            name = file.name.removesuffix(".open").replace("0001", "0002")
            (tmp_path / "archive" / name).write_bytes(b"")
            got = await client.get(f"{SEGMENTS}/{name}")
            assert (got.status_code, got.content, got.headers["content-length"]) == (200, b"", "0")
            assert us.app.state.services.exports.open == 0

    asyncio.run(story())


def test_key_may_be_the_password_of_basic_authentication(tmp_path: Path) -> None:
    async def story() -> None:
        async with shelf(tmp_path, [page("http://a.test/")]) as (_, us, client):
            key = client.headers["authorization"].partition(" ")[2]
            bare = us.as_role(Role.VIEWER)
            async with bare as other:
                for given, status in (
                    (f"any:{key}", 200), (f":{key}", 200), (f"{key}:", 401), (key, 401), ("any:orb_wrong", 401)
                ):  # fmt: skip
                    basic = "Basic " + base64.b64encode(given.encode()).decode()
                    answer = await other.get(CDX, params={"url": "a.test"}, headers={"authorization": basic})
                    assert answer.status_code == status, given
                malformed = await other.get("/v1/crawls", headers={"authorization": "Basic !!"})
                problem(malformed, 401, "unauthenticated")

    asyncio.run(story())
