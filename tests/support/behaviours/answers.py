"""Behaviours of answers: statuses, redirects, framing, codings and robots.txt, ordinary ones and broken ones."""

import gzip
import zlib
from typing import Final

import brotli
import zstandard

from tests.support.behaviours.behaviour import HTML, PLAIN, Answer, Behaviour, links, page, redirect, ruled, site

LINK: Final = b'<title>t</title><a href="/ok">x</a>'
MAX_BODY: Final = 300_000
"""`fetch.max_body_bytes` of the crawl that these are for."""

FILLER: Final = b"<p>All work and no play.</p>\n" * 14_000
LONG: Final = LINK + FILLER + b'<a href="/lost">x</a>'


def _coded(name: str, coded: bytes) -> Behaviour:
    return Behaviour(
        f"{name}_is_decoded", "RFC 9110 §8.4.1", site(page(coded, HTML, f"Content-Encoding: {name}")), ("/", "/ok")
    )


def _refused(status: int, source: str) -> Behaviour:
    """A status with which a URL fails at once, and whose page's links are not followed."""
    answer = page('<a href="/no">x</a>', status=status)
    name = f"status_{status}_is_asked_once"
    return Behaviour(
        name, source, site(links("/a", "/ok"), {"/a": answer}), ("/", "/a", "/ok"), {"/a": f"failed http_{status}"}
    )


def _kept(status: int, source: str, *asked: str) -> Behaviour:
    """A status whose page is stored and read."""
    return Behaviour(f"status_{status}_is_a_page", source, site(page(LINK, status=status)), ("/", *asked))


def _again(name: str, source: str, first: Answer) -> Behaviour:
    """An answer that is asked for again; then it is a page."""
    return Behaviour(name, source, site(links("/a"), {"/a": (first, page(LINK))}), ("/", "/a", "/a", "/ok"))


def _raw(name: str, source: str, answer: Answer, *asked: str, truncated: str = "") -> Behaviour:
    cut = {"/a": truncated} if truncated else {}
    return Behaviour(name, source, site(links("/a"), {"/a": answer}), ("/", "/a", *asked), truncated=cut)


STATUSES: Final = (
    _refused(400, "RFC 9110 §15.5.1"),
    _refused(401, "RFC 9110 §15.5.2"),
    _refused(403, "RFC 9110 §15.5.4"),
    _refused(404, "RFC 9110 §15.5.5"),
    _refused(451, "RFC 7725"),
    _refused(501, "RFC 9110 §15.6.2"),
    _kept(203, "RFC 9110 §15.3.4", "/ok"),
    _kept(206, "RFC 9110 §15.3.7", "/ok"),
    _kept(299, "RFC 9110 §15", "/ok"),
    Behaviour(
        "status_304_unasked_fails",
        "RFC 9110 §15.4.5",
        site(links("/a"), {"/a": Answer(304, ())}),
        ("/", "/a"),
        {"/a": "failed http_304"},
    ),
    Behaviour(
        "status_500_is_asked_three_times",
        "docs/limits.md, retry.attempts",
        site(links("/a"), {"/a": page("broken", status=500)}),
        ("/", "/a", "/a", "/a"),
        {"/a": "failed http_500"},
    ),
    Behaviour(
        "status_999_fails",
        "RFC 9110 §15",
        site(links("/a"), {"/a": page("x", status=999)}),
        ("/", "/a"),
        {"/a": "failed http_999"},
    ),
    _again("status_408_is_asked_again", "RFC 9110 §15.5.9", page("late", status=408)),
    _again("status_425_is_asked_again", "RFC 8470 §5.2", page("early", status=425)),
    _again(
        "retry_after_in_the_past_is_none",
        "RFC 9110 §10.2.3",
        page("x", HTML, "Retry-After: Fri, 31 Dec 1999 23:59:59 GMT", status=500),
    ),
    Behaviour(
        "status_429_holds_its_host",
        "RFC 6585 §4",
        site(links("/a"), {"/a": (page("slow", HTML, "Retry-After: 3", status=429), page(LINK))}),
        ("/", "/a", "/a", "/ok"),
        apart_s=3.0,
    ),
    _raw(
        "continue_comes_before_the_answer",
        "RFC 9110 §15.2.1",
        Answer(body=LINK, before=b"HTTP/1.1 100 Continue\r\n\r\n"),
        "/ok",
    ),
)

REDIRECTS: Final = (
    Behaviour("redirects_in_a_ring_end", "RFC 9110 §15.4", site(redirect("/b"), {"/b": redirect("/")}), ("/", "/b")),
    Behaviour(
        "redirect_to_itself_is_asked_once",
        "RFC 9110 §15.4",
        site(links("/a"), {"/a": Answer(302, ("Location: /a", "Set-Cookie: a=b"))}),
        ("/", "/a"),
    ),
    Behaviour(
        "redirect_without_location_ends", "RFC 9110 §15.4", site(links("/a"), {"/a": Answer(302, ())}), ("/", "/a")
    ),
    Behaviour(
        "redirect_to_junk_ends",
        "RFC 9110 §10.2.2",
        site(links("/a"), {"/a": redirect("http://[::bad/%zz")}),
        ("/", "/a"),
        left_out={"invalid": 1},
    ),
    Behaviour(
        "space_in_a_location_is_escaped",
        "WHATWG URL",
        site(links("/a"), {"/a": redirect("/b c")}),
        ("/", "/a", "/b%20c"),
    ),
    Behaviour(
        "utf_8_in_a_location_is_read",
        "Fetch, location URL",
        site(links("/a"), {"/a": redirect("/caf\xc3\xa9")}),
        ("/", "/a", "/caf%C3%A9"),
    ),
    Behaviour(
        "page_of_a_redirect_is_not_read",
        "RFC 9110 §15.4",
        site(links("/a"), {"/a": Answer(301, ("Location: /ok", HTML), b'<a href="/no">x</a>')}),
        ("/", "/a", "/ok"),
    ),
    Behaviour(
        "choices_with_a_location_lead_on",
        "RFC 9110 §15.4.1",
        site(links("/a"), {"/a": redirect("/ok", 300)}),
        ("/", "/a", "/ok"),
    ),
    Behaviour(
        "redirect_to_another_scheme_ends",
        "RFC 9110 §10.2.2",
        site(links("/a"), {"/a": redirect("ftp://{ip}/x")}),
        ("/", "/a"),
        left_out={"scheme": 1},
    ),
    Behaviour("refresh_field_leads_on", "HTML §4.2.5.3", site(page("x", HTML, "Refresh: 0; url=/ok")), ("/", "/ok")),
)

FRAMING: Final = (
    _raw("body_without_length_ends_with_the_connection", "RFC 9112 §6.3", Answer(body=LINK, framed=False), "/ok"),
    _raw("answer_of_http_1_0_is_read", "RFC 9112 §2.3", Answer(body=LINK, framed=False, version="HTTP/1.0"), "/ok"),
    _raw(
        "same_length_twice_is_one",
        "RFC 9112 §6.3",
        Answer(headers=(HTML, "Content-Length: 35", "Content-Length: 35"), body=LINK, framed=False),
        "/ok",
    ),
    _raw(
        "bytes_beyond_the_length_are_dropped",
        "RFC 9112 §6.3",
        Answer(headers=(HTML, "Content-Length: 35"), body=LINK + b'<a href="/no">', payload=LINK, framed=False),
        "/ok",
    ),
    _raw("body_of_a_204_is_none", "RFC 9112 §6.3", Answer(204, (), b"junk", framed=False, payload=b"")),
    _raw("empty_page_is_a_page", "RFC 9110 §8.6", page("")),
    _raw(
        "hundred_fields_are_read", "RFC 9110 §5.4", page(LINK, HTML, *(f"X-{n}: {'v' * 50}" for n in range(100))), "/ok"
    ),
    _raw(
        "long_field_is_read",
        "docs/limits.md, fetch.max_header_bytes",
        page(LINK, HTML, f"X-Long: {'v' * 90_000}"),
        "/ok",
    ),
    Behaviour(
        "endless_head_fails",
        "docs/limits.md, fetch.max_header_bytes",
        site(
            links("/a", "/ok"),
            {"/a": Answer(headers=(HTML, *(f"X-{n}: {'v' * 9_000}" for n in range(40))), body=LINK, framed=False)},
        ),
        ("/", "/a", "/ok"),
        {"/a": "failed headers_too_large"},
    ),
    _again("silent_end_is_asked_again", "RFC 9112 §8", Answer(0, framed=False)),
    _again(
        "reset_in_the_body_is_asked_again",
        "RFC 9112 §8",
        Answer(headers=(HTML, "Content-Length: 99"), body=b"<p>", framed=False, reset=True),
    ),
    _again(
        "broken_chunk_is_asked_again",
        "RFC 9112 §8",
        Answer(headers=(HTML, "Transfer-Encoding: chunked"), body=b"3\r\n<p>\r\nzz\r\n", framed=False),
    ),
    Behaviour(
        "body_cut_at_every_attempt_is_kept_in_part",
        "docs/command.md, truncated",
        site(links("/a"), {"/a": Answer(headers=(HTML, "Content-Length: 500"), body=LINK, framed=False)}),
        ("/", "/a", "/a", "/a", "/ok"),
        truncated={"/a": "disconnect"},
    ),
    Behaviour(
        "body_over_the_limit_is_kept_in_part",
        "docs/limits.md, fetch.max_body_bytes",
        site(links("/a"), {"/a": Answer(body=LONG, payload=LONG[:MAX_BODY])}),
        ("/", "/a", "/ok"),
        truncated={"/a": "length"},
    ),
    Behaviour(
        "same_bytes_at_two_urls_are_two_pages",
        "README, what is in DIR",
        site(links("/a", "/b"), {"/a": page("same"), "/b": page("same")}),
        ("/", "/a", "/b"),
    ),
)

_PACKER: Final = zlib.compressobj(wbits=31)
_CUT: Final = _PACKER.compress(LINK) + _PACKER.flush(zlib.Z_SYNC_FLUSH)

CODINGS: Final = (
    _coded("gzip", gzip.compress(LINK, mtime=0)),
    _coded("deflate", zlib.compress(LINK)),
    _coded("br", brotli.compress(LINK)),
    _coded("zstd", zstandard.compress(LINK)),
    _raw(
        "deflate_without_its_frame_is_decoded",
        "RFC 9110 §8.4.1.2",
        page(zlib.compress(LINK)[2:-4], HTML, "Content-Encoding: deflate"),
        "/ok",
    ),
    _raw("identity_is_no_coding", "RFC 9110 §8.4.1", page(LINK, HTML, "Content-Encoding: identity"), "/ok"),
    _raw(
        "unknown_coding_leaves_the_page",
        "RFC 9110 §8.4",
        page(LINK, HTML, "Content-Encoding: none"),
        "/ok",
        truncated="undecodable",
    ),
    _raw(
        "cut_gzip_is_read_as_far_as_it_goes",
        "RFC 9110 §8.4.1.3",
        page(_CUT, HTML, "Content-Encoding: gzip"),
        "/ok",
        truncated="undecodable",
    ),
    _raw("empty_gzip_is_empty", "RFC 9110 §8.4", page("", HTML, "Content-Encoding: gzip")),
    _raw(
        "gzip_in_members_is_whole",
        "RFC 1952 §2.2",
        page(gzip.compress(b"<p>", mtime=0) + gzip.compress(LINK, mtime=0), HTML, "Content-Encoding: gzip"),
        "/ok",
    ),
)


def _robots(name: str, source: str, answer: Answer, *asked: str, gap_s: float = 0.0) -> Behaviour:
    ends = {} if asked else {"/": "failed host_unreachable"}
    return Behaviour(name, source, site(links("/a"), {"/robots.txt": answer}), asked, ends, gap_s=gap_s)


RULES: Final = (
    _robots("page_as_robots_allows_all", "RFC 9309 §2.2", page("<html>Disallow: nothing"), "/", "/a"),
    _robots("empty_robots_allows_all", "RFC 9309 §2.2.1", Answer(204, ()), "/", "/a"),
    _robots("robots_in_a_ring_allows_all", "RFC 9309 §2.3.1.2", redirect("/robots.txt"), "/", "/a"),
    _robots(
        "robots_that_cannot_be_decoded_forbids_all",
        "README, robots",
        page("User-agent: *", PLAIN, "Content-Encoding: gzip"),
    ),
    _robots("robots_that_leads_nowhere_forbids_all", "README, robots", Answer(302, ())),
    _robots("robots_at_a_denied_address_forbids_all", "README, egress", redirect("http://169.254.169.254/robots.txt")),
    _robots(
        "crawl_delay_is_kept",
        "README, robots",
        Answer(200, (PLAIN,), b"User-agent: *\nCrawl-delay: 1.5\n"),
        "/",
        "/a",
        gap_s=1.5,
    ),
    ruled(
        "gzip_robots_is_read",
        "RFC 9110 §8.4",
        page(gzip.compress(b"User-agent: *\nDisallow: /b\n", mtime=0), PLAIN, "Content-Encoding: gzip"),
        asked="/a",
        closed="/b",
    ),
    ruled(
        "query_is_part_of_a_rule",
        "RFC 9309 §2.2.2",
        "User-agent: *\nDisallow: /*?*s=\n",
        asked="/a?t=1",
        closed="/a?s=1 /b?a&s=",
    ),
    ruled(
        "paths_of_robots_have_their_case", "RFC 9309 §2.2.2", "User-agent: *\nDisallow: /B\n", asked="/b", closed="/B"
    ),
)

ANSWERS: Final = (*STATUSES, *REDIRECTS, *FRAMING, *CODINGS, *RULES)
