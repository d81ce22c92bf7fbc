"""A page's records are correct WARC/1.1 and replay to what the server sent, whatever it sent."""

import gzip
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.domain.archive.model import ArchivedCrawl, Exchange, Revisit, RevisitProfile, payload_digest
from shared.domain.archive.warc import page_records, stored_response_head, warc_date, warcinfo_record
from shared.domain.ids import CrawlId
from shared.domain.web.fetch import Truncation
from tests.support.archive.exchanges import AT_MS, IDS, answer, exchange, members_of, read_all, response_of, sha1

_LINE = st.binary(max_size=40).map(lambda line: line.replace(b"\n", b""))
_FRAMING_LINE = st.sampled_from(
    [
        b"Transfer-Encoding: chunked",
        b"transfer-encoding : gzip, chunked",
        b"Content-Length: 5",
        b"CONTENT-LENGTH:0005, 5",
        b"Content-Length: nonsense",
        b" folded",
        b"\t",
        b"\xc2\x85",
        b"X: \xff\x00\r",
    ]
)


@given(
    body=st.binary(max_size=200),
    lines=st.lists(st.one_of(_LINE, _FRAMING_LINE), max_size=8),
    status=st.sampled_from([200, 204, 206, 304, 404, 599]),
    method=st.sampled_from([b"GET", b"HEAD", b"POST"]),
    version=st.sampled_from(["1.0", "1.1", "2"]),
)
def test_any_headers_and_body_replay_and_pass_digest_check(
    body: bytes, lines: list[bytes], status: int, method: bytes, version: str
) -> None:
    request_head = method + b" / HTTP/1.1\r\nHost: h\r\n\r\n"
    what = Exchange(answer(body, *lines, status=status, request_head=request_head, http_version=version), AT_MS, 0)
    response, request, metadata = read_all(members_of(what))
    assert (response.kind, request.kind, metadata.kind) == ("response", "request", "metadata")
    assert response.payload == body
    assert response.digests_hold
    assert request.digests_hold
    assert metadata.digests_hold
    assert response.warc["WARC-Payload-Digest"] == sha1(body)


def test_digests_are_those_of_the_block_and_of_the_payload() -> None:
    body = b"some body"
    record = page_records(exchange(body), IDS).response
    header, _, rest = record.partition(b"\r\n\r\n")
    block = rest.removesuffix(b"\r\n\r\n")
    assert f"WARC-Block-Digest: {sha1(block)}".encode() in header
    assert f"WARC-Payload-Digest: {sha1(body)}".encode() in header
    assert f"Content-Length: {len(block)}".encode() in header
    assert block.endswith(b"\r\n\r\n" + body)


def test_a_chunked_answer_is_stored_without_its_transfer_coding_and_says_so() -> None:
    response = response_of(exchange(b"hello", b"Transfer-Encoding: chunked", b"X-Other: kept"))
    assert ("X-Crawler-Transfer-Encoding", "chunked") in response.http
    assert ("Content-Length", "5") in response.http
    assert ("X-Other", "kept") in response.http
    assert response.payload == b"hello"


def test_a_cut_body_gets_a_true_content_length_and_keeps_the_servers() -> None:
    cut = exchange(b"hel", b"Content-Length: 5", truncated=Truncation.LENGTH)
    response = response_of(cut)
    assert [pair for pair in response.http if "ength" in pair[0]] == [
        ("X-Crawler-Content-Length", "5"),
        ("Content-Length", "3"),
    ]
    assert response.warc["WARC-Truncated"] == "length"


@pytest.mark.parametrize(
    ("status", "method"), [(304, b"GET"), (204, b"GET"), (200, b"HEAD")], ids=["304", "204", "head"]
)
def test_the_content_length_of_an_answer_that_never_has_a_body_is_left_alone(status: int, method: bytes) -> None:
    given_answer = answer(b"", b"Content-Length: 5000", status=status, request_head=method + b" / HTTP/1.1\r\n\r\n")
    assert stored_response_head(given_answer) == given_answer.response_head


def test_a_consistent_head_is_stored_byte_for_byte() -> None:
    given_answer = answer(b"hello", b"Content-Length: 5", b"Set-Cookie: a=b", b"set-cookie:   c=d")
    assert stored_response_head(given_answer) == given_answer.response_head


def test_an_answer_without_length_gets_none() -> None:
    given_answer = answer(b"until the connection closed", b"Content-Type: text/html")
    assert stored_response_head(given_answer) == given_answer.response_head


def test_a_content_coding_stays_as_received() -> None:
    packed = gzip.compress(b"<html>" * 100)
    response = response_of(exchange(packed, b"Content-Encoding: gzip"))
    assert response.payload == b"<html>" * 100
    assert response.warc["WARC-Payload-Digest"] == sha1(packed)


def test_http2_is_written_in_http11_form_and_named() -> None:
    over_two = answer(b"x", b"Via: HTTP/2", http_version="2", request_head=b"GET / HTTP/2\r\nHost: h\r\n\r\n")
    over_two = replace(over_two, response_head=over_two.response_head.replace(b"HTTP/1.1", b"HTTP/2"))
    records = page_records(Exchange(over_two, AT_MS, 0), IDS)
    assert b"\r\n\r\nHTTP/1.1 200 Whatever\r\nVia: HTTP/2\r\n" in records.response
    assert b"WARC-Protocol: h2\r\n" in records.response
    assert b"\r\n\r\nGET / HTTP/1.1\r\n" in records.request


def test_request_and_metadata_are_concurrent_to_the_response() -> None:
    response, request, metadata = read_all(members_of(exchange()))
    assert response.warc["WARC-Record-ID"] == f"<urn:uuid:{IDS[0]}>"
    assert request.warc["WARC-Concurrent-To"] == metadata.warc["WARC-Concurrent-To"] == f"<urn:uuid:{IDS[0]}>"
    assert {record.warc["WARC-Target-URI"] for record in (response, request, metadata)} == {"http://example.org/page"}
    assert {record.warc["WARC-IP-Address"] for record in (response, request, metadata)} == {"192.0.2.7"}
    assert {record.warc["WARC-Date"] for record in (response, request, metadata)} == {"2023-11-14T22:13:20.123000Z"}


def test_the_body_of_a_request_is_stored_with_its_digest() -> None:
    got = Exchange(answer(), AT_MS, 0, request_body=b"a=1")
    request = read_all(members_of(got))[1]
    assert request.payload == b"a=1"
    assert request.warc["WARC-Payload-Digest"] == sha1(b"a=1")
    assert request.digests_hold


def test_metadata_tells_how_the_page_was_found_and_what_it_links_to() -> None:
    links = {"L a/@href": ["http://example.org/b"], "E img/@src": ["http://example.org/c.png"]}
    got = Exchange(
        answer(decode_error="gzip: bad"), AT_MS, 3, "http://example.org/a", links, notes=[("charset", "utf-8")]
    )
    metadata = read_all(members_of(got))[2]
    assert metadata.warc["Content-Type"] == "application/warc-fields"
    assert metadata.payload.decode().splitlines() == [
        "fetchTimeMs: 250",
        "depth: 3",
        "via: http://example.org/a",
        "decodeError: gzip: bad",
        "charset: utf-8",
        "outlink: http://example.org/b L a/@href",
        "outlink: http://example.org/c.png E img/@src",
    ]


@pytest.mark.parametrize(
    ("got", "said"),
    [
        (Exchange(answer(), AT_MS, 0, seed=True), ["fetchTimeMs: 250", "depth: 0", "seed: "]),
        (Exchange(answer(), AT_MS, 0), ["fetchTimeMs: 250", "depth: 0"]),
        (Exchange(answer(), AT_MS, None, "http://a.test/"), ["fetchTimeMs: 250", "via: http://a.test/"]),
    ],
)
def test_metadata_calls_only_a_seed_a_seed(got: Exchange, said: list[str]) -> None:
    assert read_all(members_of(got))[2].payload.decode().splitlines() == said


def test_nothing_a_page_says_can_begin_a_line_of_its_own() -> None:
    evil = "http://e/\r\nvia: forged"
    got = Exchange(answer(url=evil), AT_MS, 1, evil, {"L a/@href": [evil]}, notes=[("note", evil)])
    response, _, metadata = read_all(members_of(got))
    assert response.digests_hold
    assert not [line for line in metadata.payload.decode().splitlines() if line == "via: forged"]
    assert "\n" not in response.warc["WARC-Target-URI"]


def test_an_unchanged_payload_becomes_a_revisit_with_headers_and_no_body() -> None:
    body = b"the same as before"
    earlier = Revisit(RevisitProfile.IDENTICAL_PAYLOAD, "http://example.org/page", AT_MS - 60_000)
    got = Exchange(answer(body, b"Content-Length: 18"), AT_MS, 0, revisit=earlier, digest=payload_digest(body))
    revisit = response_of(got)
    assert revisit.kind == "revisit"
    assert revisit.payload == b""
    assert ("Content-Length", "18") in revisit.http
    assert revisit.warc["WARC-Profile"] == "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
    assert revisit.warc["WARC-Refers-To-Date"] == "2023-11-14T22:12:20.123000Z"
    assert revisit.warc["WARC-Payload-Digest"] == sha1(body)


def test_not_modified_response_becomes_revisit_of_its_payload() -> None:
    earlier = Revisit(RevisitProfile.NOT_MODIFIED, "http://example.org/page", AT_MS, payload_digest(b"earlier body"))
    revisit = response_of(Exchange(answer(b"", b"ETag: x", status=304), AT_MS, 0, revisit=earlier))
    assert revisit.warc["WARC-Profile"] == "http://netpreserve.org/warc/1.1/revisit/server-not-modified"
    assert revisit.warc["WARC-Payload-Digest"] == sha1(b"earlier body")


def test_a_segment_begins_with_what_wrote_it_and_names_no_machine() -> None:
    crawl = ArchivedCrawl(CrawlId(7), "docs", user_agent="orb/1 (+http://example.org)")
    (info,) = read_all(warcinfo_record(crawl, "7-x.warc.gz", "orb/0.1.0", IDS[0], AT_MS))
    assert info.kind == "warcinfo"
    assert info.digests_hold
    text = info.payload.decode()
    assert "software: orb/0.1.0\r\n" in text
    assert "isPartOf: docs\r\n" in text
    assert "robots: obey\r\n" in text
    assert "hostname" not in text


@given(st.integers(min_value=0, max_value=4_102_444_800_000))
def test_dates_keep_the_millisecond(ms: int) -> None:
    assert round(datetime.fromisoformat(warc_date(ms)).timestamp() * 1000) == ms
