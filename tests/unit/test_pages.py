"""What an answer comes to: type, title, links; redirects as discoveries; nofollow heeded where robots are obeyed."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from shared.domain.archive.model import Archived, RecordLocation
from shared.domain.crawl.scope import MAX_HOPS, CompiledScope
from shared.domain.crawl.spec import CrawlSpec, Extract, Politeness, Scope, Seed
from shared.domain.ids import CrawlId, Fingerprint, Revision
from shared.domain.web.fetch import Answer, Timings, Truncation
from shared.domain.web.url import locate
from shared.wire.messages import LeftOut
from workers.known_links import KnownLinks
from workers.outcome import answered
from workers.outlinks import OutlinkResolver
from workers.page_reading import PageReading, read
from workers.visit_crawls import VisitCrawl

PAGE = "http://site.example/dir/page.html"
AT_MS = 1_800_000_000_000
HTML = b"<title> A  page </title><a href=next>next</a><a href=http://other.example/>other</a><a href=page.html>me</a>"


class Crawl:
    """What of an ActiveCrawl a page needs."""

    def __init__(
        self, *, obeys_robots: bool = True, scope: Scope | None = None, extract: Extract | None = None
    ) -> None:
        self.spec = CrawlSpec(
            seeds=(Seed(url=PAGE),),
            scope=scope or Scope(),
            politeness=Politeness(obey_robots=obeys_robots),
            extract=extract or Extract(),
        )
        self.scope = CompiledScope(self.spec)
        self.product = "orb"
        self.skips_body: Callable[[int, str | None], bool] | None = None
        self.outlinks = OutlinkResolver(CrawlId(1), Revision(1), self.scope, self.spec.extract, KnownLinks(1 << 8))

    def obeys_robots(self, host: str) -> bool:
        return self.spec.politeness.obey_robots


def reading(
    body: bytes = HTML,
    *headers: tuple[str, str],
    status: int = 200,
    depth: int = 1,
    hops: int = 0,
    crawl: Crawl | None = None,
) -> PageReading:
    location = locate(PAGE)
    assert location is not None
    fields = headers or (("content-type", "Text/HTML; charset=utf-8"),)
    answer = Answer(PAGE, status, fields, b"", b"", body, body, "127.0.0.1", Timings())
    return read(cast(VisitCrawl, crawl or Crawl()), location, depth, hops, answer, AT_MS)


def found(page: PageReading) -> list[str]:
    return [location.url for location in page.found]


def test_a_page_has_a_type_a_title_and_its_links_in_scope_one_level_deeper() -> None:
    page = reading()
    assert (page.mime, page.title, page.links, page.depth, page.hops) == ("text/html", "A page", 1, 2, 0)
    assert found(page) == ["http://site.example/dir/next"]
    assert list(page.archived["L a/@href"]) == ["http://site.example/dir/next", "http://other.example/"]


def test_links_known_to_be_reported_count_and_are_not_reported() -> None:
    crawl = Crawl()
    first = reading(crawl=crawl)
    assert first.outlinks is not None
    crawl.outlinks.acknowledged(first.outlinks)
    again = reading(crawl=crawl)
    assert (again.links, again.found) == (1, ())


@pytest.mark.parametrize("header", ["nofollow", "noindex, NoFollow", "orb: none"])
def test_a_header_that_forbids_to_follow_is_heeded_where_robots_are(header: str) -> None:
    fields = (("content-type", "text/html"), ("x-robots-tag", header))
    assert found(reading(HTML, *fields)) == []
    assert found(reading(HTML, *fields, crawl=Crawl(obeys_robots=False))) != []


def test_a_page_that_forbids_to_follow_says_so_itself() -> None:
    forbidding = b"<meta name=robots content=nofollow>" + HTML
    assert found(reading(forbidding)) == []
    assert found(reading(forbidding, crawl=Crawl(obeys_robots=False))) != [], "as X-Robots-Tag"


@pytest.mark.parametrize(
    ("header", "directive"),
    [
        ("noindex", "noindex"),
        ("otherbot: noindex", None),
        ("otherbot: nofollow, orb: none", "noindex"),
        ("unavailable_after: 25 Jun 2010 15:00:00 PST", "unavailable_after"),
        ("unavailable_after: Fri, 25 Jun 2010 15:00:00 GMT, noarchive", "unavailable_after"),
        ("orb: unavailable_after: Friday, 25-Jun-10 15:00:00 GMT", "unavailable_after"),
        ("otherbot: unavailable_after: 2010-06-25", None),
        ("UNAVAILABLE_AFTER: 2010-06-25T15:00:00Z", "unavailable_after"),
        ("unavailable_after: 2099-06-25T15:00:00+01:00", None),
        ("unavailable_after: soon", None),
        ("unavailable_after:", None),
        ("unavailable_after: Fri", None),
        ("unavailable_after: 99999999999", None),
        ("unavailable_after: 1 Jan 2010 99:00:00 GMT", None),
    ],
)
def test_robots_directives_keep_a_page_of_any_type_unindexed(header: str, directive: str | None) -> None:
    for body, mime in ((HTML, "text/html"), (b"%PDF-1.7", "application/pdf")):
        fields = (("content-type", mime), ("x-robots-tag", header))
        page = reading(body, *fields)
        assert page.not_indexed == directive
        assert (page.html is None) == (directive is not None or mime != "text/html")
        assert reading(body, *fields, crawl=Crawl(obeys_robots=False)).not_indexed is None
    if ":" not in header.partition(",")[0].replace("unavailable_after:", "").replace("UNAVAILABLE_AFTER:", ""):
        marked = f"<meta name=robots content='{header}'>".encode() + HTML
        assert reading(marked).not_indexed == directive


def test_answer_304_has_the_directives_of_its_header_and_other_errors_none() -> None:
    tag = ("x-robots-tag", "noindex, unavailable_after: 2099-01-01")
    assert [(each.not_indexed, each.dated) for each in (reading(b"", tag, status=status) for status in (304, 404))] == [
        ("noindex", True), (None, False),
    ]  # fmt: skip
    assert reading(b"", tag, status=304, crawl=Crawl(obeys_robots=False)).not_indexed is None


@pytest.mark.parametrize(
    ("header", "etag"),
    [("noindex", '"e"'), ("unavailable_after: 2099-01-01", ""), ("unavailable_after: 2010-01-01", "")],
)
def test_page_with_a_date_of_a_directive_is_reported_without_validators(header: str, etag: str) -> None:
    fields = (("etag", '"e"'), ("x-robots-tag", header))
    for body in (HTML, b"%PDF-1.7"):
        answer = Answer(PAGE, 200, fields, b"", b"", body, body, "127.0.0.1", Timings())
        told = answered(Fingerprint(b"f" * 16), answer, reading(body, *fields), None, at_ms=AT_MS, retry_after_ms=-1)
        assert told.etag == etag


def test_directives_of_page_and_header_add_up() -> None:
    fields = (("content-type", "text/html"), ("x-robots-tag", "unavailable_after: 2099-01-01, nofollow"))
    page = reading(b"<meta name=robots content='unavailable_after: 2010-01-01'>" + HTML, *fields)
    assert (page.not_indexed, found(page)) == ("unavailable_after", [])


def test_visit_without_regard_to_robots_is_marked_in_its_metadata() -> None:
    assert ("robots", "ignore") not in reading().notes
    for status in (200, 302, 404):
        assert ("robots", "ignore") in reading(status=status, crawl=Crawl(obeys_robots=False)).notes


def test_canonical_field_is_resolved_against_the_page_itself() -> None:
    fields = (("content-type", "text/html"), ("link", "<canonical>; rel=canonical"))
    assert found(reading(b"<base href=/other/>", *fields)) == ["http://site.example/dir/canonical"]
    assert found(reading(b"<base href=/other/><link rel=canonical href=own>", *fields)) == [
        "http://site.example/other/own"
    ]
    assert found(reading(b"x", *fields, crawl=Crawl(extract=Extract(canonical_links=False)))) == []


@pytest.mark.parametrize(
    ("body", "declared", "mime"),
    [
        (HTML, "", "text/html"),
        (b"plain", "", "text/plain"),
        (b"%PDF-1.7", "", "application/octet-stream"),
        (b"", "", ""),
        (b"%PDF-1.7", "application/pdf", "application/pdf"),
        (HTML, "text/plain", "text/plain"),
    ],
)
def test_the_type_is_the_declared_one_or_what_the_bytes_say(body: bytes, declared: str, mime: str) -> None:
    assert reading(body, ("content-type", declared)).mime == mime


@pytest.mark.parametrize("status", [404, 500, 304])
def test_an_error_is_no_page_and_leads_nowhere(status: int) -> None:
    page = reading(status=status)
    assert (page.title, page.found, page.outlinks) == (None, (), None)


def test_redirect_leads_to_target_at_same_depth_one_hop_further() -> None:
    page = reading(b"", ("location", "/elsewhere#x"), status=302, depth=3, hops=2)
    assert (page.location, found(page)) == ("/elsewhere#x", ["http://site.example/elsewhere"])
    assert (page.depth, page.hops, page.links) == (3, 3, 1)


def test_seed_may_redirect_within_its_domain_and_page_may_not() -> None:
    to = ("location", "http://www.site.example/")
    assert found(reading(b"", to, status=301, depth=0)) == ["http://www.site.example/"]
    assert found(reading(b"", to, status=301, depth=1)) == []


@pytest.mark.parametrize("location", ["page.html", "mailto:x@y.example", "http://", "http://user:pw@site.example/"])
def test_a_redirect_to_itself_or_to_nothing_usable_leads_nowhere(location: str) -> None:
    assert reading(b"", ("location", location), status=301).found == ()


def test_a_chain_of_redirects_ends() -> None:
    assert reading(b"", ("location", "/on"), status=301, hops=MAX_HOPS).found == ()
    assert reading(b"", ("location", "/on"), status=301, hops=MAX_HOPS - 1).found != ()


def test_a_refresh_header_is_a_link_unless_the_page_has_its_own() -> None:
    fields = (("content-type", "text/html"), ("refresh", "0; url=/there"))
    assert found(reading(b"<p>", *fields)) == ["http://site.example/there"]
    own = b"<meta http-equiv=refresh content='0;url=/own'>"
    assert found(reading(own, *fields)) == ["http://site.example/own"]


def test_link_header_leads_on_from_the_page_whatever_its_base() -> None:
    fields = (("content-type", "text/html"), ("link", "<2>; rel=next, </x>; rel=alternate"), ("link", "</1>; rel=prev"))
    body = b"<base href=/else/><a href=here>x</a>"
    there = ["http://site.example/else/here", "http://site.example/dir/2", "http://site.example/1"]
    assert found(reading(body, *fields)) == there
    assert found(reading(body, *fields, crawl=Crawl(extract=Extract(max_links_per_page=2)))) == there[:2]
    assert found(reading(body, *fields, ("x-robots-tag", "nofollow"))) == []


def test_multiple_choices_lead_to_their_location_or_to_their_links() -> None:
    assert found(reading(HTML, ("location", "/chosen"), status=300)) == ["http://site.example/chosen"]


def test_several_content_types_count_as_one_header() -> None:
    fields = (("content-type", "text/html"), ("content-type", "text/html;charset=utf-8"))
    assert found(reading(HTML, *fields)) == ["http://site.example/dir/next"]


def test_xhtml_is_read_as_xhtml() -> None:
    body = b"<html><head><script src='x.js'/><title/></head><a href='next'/></html>"
    assert found(reading(body, ("content-type", "application/xhtml+xml"))) == ["http://site.example/dir/next"]


@pytest.mark.parametrize(
    ("body", "needs"),
    [
        (b"<html><title>App</title><script src=a.js></script><body><div id=root></div><!-- x --></body>", True),
        (b"<noscript>Please switch scripts on.</noscript><div id=root></div><SCRIPT>run()</SCRIPT>", True),
        (b"<script src=a.js></script><p>Some text", False),
        (b"<script src=a.js></script><a href=/next></a>", False),
        (b"<div></div>", False),
        (b"<script>run()</script>" + b" " * 20_000, False),
        (b"<script>" * 1_000, True),
    ],
)
def test_page_of_scripts_alone_is_told_from_others(body: bytes, needs: bool) -> None:
    assert reading(body).needs_scripts is needs


def test_location_of_a_redirect_is_read_as_utf8() -> None:
    raw = "/stra\u00dfe".encode().decode("latin-1")
    assert reading(b"", ("location", raw), status=301).location == "/stra\u00dfe"
    assert reading(b"", ("location", "/stra\u00dfe"), status=301).location == "/stra\u00dfe", "this was Latin-1"


def test_outlinks_are_counted_as_found_and_as_left_out() -> None:
    page = reading()
    assert (page.links, page.links_found, page.left_out) == (1, 3, {"other_host": 1})
    assert page.examples == {"other_host": ["http://other.example/"]}
    redirect = reading(b"", ("location", "http://other.example/"), status=301)
    assert (redirect.links, redirect.links_found, redirect.left_out) == (0, 1, {"other_host": 1})
    assert redirect.examples == {"other_host": ["http://other.example/"]}


@pytest.mark.parametrize(("location", "reason"), [("mailto:a@b.example", "scheme"), ("http://[::bad", "invalid")])
def test_a_redirect_to_no_http_url_is_counted_by_its_reason(location: str, reason: str) -> None:
    redirect = reading(b"", ("location", location), status=301)
    assert (redirect.links_found, redirect.left_out) == (1, {reason: 1})
    assert redirect.examples == {reason: [location]}
    assert reading(b"x", ("content-type", "image/png")).links_found == -1


@pytest.mark.parametrize(
    ("more", "truncated", "detail"),
    [
        ({}, "", "5 links beyond extract.max_links_per_page were left out"),
        ({"truncated": Truncation.LENGTH}, "length", "the body was cut at fetch.max_body_bytes; 5 links beyond"),
        ({"decoded_truncated": True}, "decoded", "the page was read as far as fetch.max_decoded_bytes; 5 links"),
        ({"decode_error": "it ends early"}, "undecodable", "it ends early; 5 links"),
    ],
)
def test_the_outcome_says_what_the_page_lacks(more: dict[str, Any], truncated: str, detail: str) -> None:
    answer = Answer(PAGE, 200, (), b"", b"", b"", b"", "127.0.0.1", Timings(), **more)
    page = PageReading(
        "text/html", links_found=8, left_out={"max_links_per_page": 5, "depth": 2}, examples={"depth": ["u"]}
    )
    stored = Archived(RecordLocation("s", 0, 1), b"")
    said = answered(Fingerprint(bytes(16)), answer, page, stored, at_ms=1, retry_after_ms=-1)
    assert (said.truncated, said.found) == (truncated, 8)
    assert said.left_out == [LeftOut("max_links_per_page", 5), LeftOut("depth", 2, ["u"])]
    assert said.detail.startswith(detail)
