"""Conditional requests for stored pages, and how the archive refers to them (RFC 9110 §13, WARC/1.1 §6.7)."""

import msgspec
import pytest
from msgspec.structs import replace

from shared.domain.archive.model import Exchange, RevisitProfile, payload_digest
from shared.domain.web.fetch import Answer, Timings
from shared.domain.web.page_text import MAX_BYTES, visible_text
from shared.domain.web.robots import NotIndexed
from shared.wire.messages import ShardUrl
from workers.page_reading import PageReading
from workers.revisits import as_revisit, conditions

URL = "http://a.test/"
FETCHED_MS = 1_800_000_000_000
BODY = b"<p>hello"
PAGE = PageReading("text/html")
PAST = "Tue, 01 Dec 2026 08:00:00 GMT"


def entry(etag: str | None = None, last_modified: str | None = None, body: bytes | None = BODY) -> ShardUrl:
    digest = b"" if body is None else payload_digest(body)
    return ShardUrl(URL, 0, 1, 0, etag, last_modified, FETCHED_MS, digest)


def exchange(status: int = 200, body: bytes = BODY) -> Exchange:
    head = b"HTTP/1.1 %d X\r\n\r\n" % status
    return Exchange(Answer(URL, status, (), head, b"", body, body, "127.0.0.1", Timings()), FETCHED_MS + 1, 0)


@pytest.mark.parametrize(
    ("known", "sent"),
    [
        (entry('"a"', PAST), (("If-None-Match", '"a"'), ("If-Modified-Since", PAST))),
        (entry('W/"a"'), (("If-None-Match", 'W/"a"'),)),
        (entry(None, PAST), (("If-Modified-Since", PAST),)),
        (entry('"a\r\nX: y"', PAST), (("If-Modified-Since", PAST),)),
        (entry("unquoted", None), ()),
        (entry(None, "yesterday"), ()),
        (entry(None, "Tue, 01 Dec 2099 08:00:00 GMT"), ()),
        (entry(None, "Tue, 01 Dec 1899 08:00:00 GMT"), ()),
        (entry(None, PAST + " \u2603"), ()),
        (entry('"a"', PAST, body=None), ()),
    ],
)
def test_only_valid_validators_of_a_stored_page_are_sent(known: ShardUrl, sent: tuple[tuple[str, str], ...]) -> None:
    assert conditions(known) == sent


def test_answer_304_refers_to_the_stored_page() -> None:
    revisit = as_revisit(exchange(304, b""), entry('"a"'), PAGE).revisit
    assert revisit is not None
    assert (revisit.profile, revisit.fetched_at_ms) == (RevisitProfile.NOT_MODIFIED, FETCHED_MS)
    assert revisit.digest == payload_digest(BODY)


def test_answer_304_to_an_unconditional_request_refers_to_nothing() -> None:
    for known in (entry(), entry("unquoted"), ShardUrl(URL, 0)):
        assert as_revisit(exchange(304, b""), known, PAGE).revisit is None


def test_answer_304_that_names_another_page_refers_to_nothing() -> None:
    answered = exchange(304, b"")
    other = replace(answered.answer, headers=(("etag", '"b"'),))
    assert as_revisit(msgspec.structs.replace(answered, answer=other), entry('"a"'), PAGE).revisit is None


def test_equal_payload_is_a_revisit_and_another_one_a_response() -> None:
    same = as_revisit(exchange(), entry(), PAGE)
    assert same.revisit is not None
    assert same.revisit.profile is RevisitProfile.IDENTICAL_PAYLOAD
    changed = as_revisit(exchange(body=b"<p>bye"), entry(), PAGE)
    assert (changed.revisit, changed.digest) == (None, payload_digest(b"<p>bye"))
    assert as_revisit(exchange(404), entry(), PAGE).revisit is None


def test_page_stored_as_a_feed_before_is_a_response_and_a_feed_a_revisit() -> None:
    feed = replace(entry(), reason="sitemap")
    page = as_revisit(exchange(), feed, PAGE)
    assert (page.revisit, page.digest) == (None, payload_digest(BODY))
    assert as_revisit(exchange(), feed, PageReading("text/xml", entries=2)).revisit is not None


def test_equal_payload_with_another_directive_is_a_response() -> None:
    hidden, known = PageReading("text/html", not_indexed=NotIndexed.NOINDEX), replace(entry(), reason="noindex")
    assert as_revisit(exchange(), entry(), hidden).revisit is None
    assert as_revisit(exchange(), known, PAGE).revisit is None
    assert as_revisit(exchange(), known, hidden).revisit is not None


def test_visible_text_has_a_line_for_each_block() -> None:
    page = (
        b"<html><head><title>t</title></head><body><h1>One</h1><p>two <b>bold</b>\n &amp; more<br>three"
        b"<script>if (a < b) '<p>'</script><style>p {}</style><div>four<!-- <p>no --></div>"
    )
    assert visible_text(page) == ["One", "two bold & more", "three", "four"]


@pytest.mark.parametrize("piece", [b"<script>", b"<", b"<a ", b"<!--", b"</p>", b"<p x='", b"<script></script>", b"&#"])
def test_text_of_a_hostile_page_is_read_in_linear_time(piece: bytes) -> None:
    from time import process_time

    def cost(size: int) -> float:
        page = piece * (size // len(piece))
        begun = process_time()
        visible_text(page)
        return process_time() - begun

    cost(1 << 14)
    assert cost(MAX_BYTES) < 64 * max(cost(MAX_BYTES >> 4), 0.005)


def test_text_in_an_unknown_charset_is_read_all_the_same() -> None:
    assert visible_text("<p>é".encode("latin-1"), "no-such-codec") == ["é"]
