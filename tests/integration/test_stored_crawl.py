"""The readers of what a crawl left on disk accept what is right and refuse what is not."""

import io
import json
from pathlib import Path

import pytest
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from tests.support.archive import stored_crawl

# warcio's writer leaves its spool files to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

URL = "http://a.test/page"
BODY = b"<title>a page</title>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A crawl's folder with one segment of two response records."""
    archive = tmp_path / "archive"
    archive.mkdir()
    with (archive / "one.warc.gz").open("wb") as file:
        writer = WARCWriter(file, gzip=True)
        for body in (BODY, BODY * 2):
            head = StatusAndHeaders("200 OK", [("Content-Type", "text/html")], protocol="HTTP/1.1")
            writer.write_record(writer.create_warc_record(URL, "response", payload=io.BytesIO(body), http_headers=head))
    return tmp_path


def members(path: Path) -> list[tuple[int, int]]:
    """Offset and length of each gzip member, found by its magic."""
    data = path.read_bytes()
    starts = [at for at in range(len(data)) if data.startswith(b"\x1f\x8b\x08", at)]
    return [(start, end - start) for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]


def test_a_record_is_read_at_its_place(folder: Path) -> None:
    (segment,) = stored_crawl.segments(folder)
    first, second = members(segment)
    record = stored_crawl.record_at(folder, segment.name, *first)
    assert (record.kind, record.url, record.status, record.payload) == ("response", URL, 200, BODY)
    assert record.digest == stored_crawl.payload_digest(BODY)
    assert stored_crawl.record_at(folder, "one", *second).payload == BODY * 2
    stored_crawl.check_with_warcio([segment])


def test_a_place_that_holds_two_records_or_half_of_one_is_refused(folder: Path) -> None:
    (segment,) = stored_crawl.segments(folder)
    (start, length), (_, more) = members(segment)
    with pytest.raises(AssertionError, match="2 records"):
        stored_crawl.record_at(folder, segment.name, start, length + more)
    with pytest.raises(AssertionError, match="ends inside"):
        stored_crawl.record_at(folder, segment.name, start + length, more + 1)


def test_a_changed_byte_is_found_by_the_independent_check(folder: Path) -> None:
    plain = folder / "archive" / "two.warc"
    with plain.open("wb") as file:
        writer = WARCWriter(file, gzip=False)
        head = StatusAndHeaders("200 OK", [], protocol="HTTP/1.1")
        writer.write_record(writer.create_warc_record(URL, "response", payload=io.BytesIO(BODY), http_headers=head))
    stored_crawl.check_with_warcio([plain])
    plain.write_bytes(plain.read_bytes().replace(b"a page", b"A page"))
    with pytest.raises(AssertionError):
        stored_crawl.check_with_warcio([plain])
    with pytest.raises(AssertionError, match="no segment"):
        stored_crawl.check_with_warcio([])


def test_the_index_is_read_in_order_or_refused(folder: Path) -> None:
    index = folder / "archive" / "index.cdxj"
    lines = [f"test,a)/{name} 20260101000000 {json.dumps({'url': name})}\n" for name in "ab"]
    index.write_text("!meta {}\n" + "".join(lines))
    assert list(stored_crawl.index_lines(folder)) == [
        {"url": "a", "key": "test,a)/a"},
        {"url": "b", "key": "test,a)/b"},
    ]
    index.write_text("".join(reversed(lines)))
    with pytest.raises(AssertionError, match="not sorted"):
        list(stored_crawl.index_lines(folder))
