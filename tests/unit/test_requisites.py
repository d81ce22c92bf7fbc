"""Requisites of pages and stylesheets as discoveries: their kind, scope and bounds, and when they are none."""

import pytest

from shared.domain.crawl.requisites_spec import MAX_REQUISITE_HOPS, Requisites
from shared.domain.crawl.scope import CompiledScope
from shared.domain.crawl.spec import Budget, CrawlSpec, Scope, Seed
from shared.domain.crawl.spec_parse import SpecError, parse_spec
from shared.domain.frontier.requisites import requisite_done
from shared.domain.frontier.states import ALSO_PAGE, HTML_REQUISITE, IS_REQUISITE, UrlKind, UrlState, kind_of, queued_as
from shared.domain.frontier.store_model import LeasedUrl
from shared.domain.ids import CrawlId, Revision
from shared.domain.web.fetch import Answer, Timings
from shared.domain.web.url import locate
from workers.discoveries import batches_by_stream, links_of
from workers.known_links import KnownLinks
from workers.outlinks import OutlinkResolver
from workers.page_reading import PageReading, read
from workers.parse.requisites import requisites_of

PAGE = "http://a.example/dir/page"
HTML = b"<img src=1.png><img src=http://b.example/2.png><a href=next>next</a><a href=1.png>picture</a>"


class Crawl:
    """What of a VisitCrawl a page needs."""

    def __init__(self, requisites: Requisites, budget: Budget | None = None, scope: Scope | None = None) -> None:
        scope = scope or Scope(max_depth=0, requisites=requisites)
        self.crawl_id, self.revision, self.partitions = CrawlId(1), Revision(1), 1
        self.spec = CrawlSpec(seeds=(Seed(url=PAGE),), scope=scope, budget=budget or Budget())
        self.scope = CompiledScope(self.spec)
        self.product = "orb"
        self.skips_body = None
        self.outlinks = OutlinkResolver(CrawlId(1), Revision(1), self.scope, self.spec.extract, KnownLinks(1 << 8))

    def obeys_robots(self, host: str) -> bool:
        return True


def reading(
    crawl: Crawl,
    body: bytes = HTML,
    mime: str = "text/html",
    *,
    kind: UrlKind = UrlKind.PAGE,
    hops: int = 0,
    status: int = 200,
    headers: tuple[tuple[str, str], ...] = (),
) -> PageReading:
    page = locate(PAGE)
    assert page is not None
    answer = Answer(PAGE, status, (("content-type", mime), *headers), b"", b"", body, body, "127.0.0.1", Timings())
    return read(crawl, page, 0, hops, answer, 0, kind)  # type: ignore[arg-type]


def found(page: PageReading) -> list[str]:
    return [] if page.requisites is None else [location.url for location in page.requisites.fresh]


def test_queries_of_requisites_are_encoded_as_the_page_is() -> None:
    """As the queries of links are; those in CSS are in UTF-8."""
    html = (
        "<img src='/é?q=é&x=ж#é' srcset='/s?é 2x'><link rel=preload href='/p?é' imagesrcset='/i?é'>"
        "<style>a{background:url(/c?é)}</style><p style='background:url(/d?é)'>"
    )
    page = html.encode("cp1252", "xmlcharrefreplace")
    assert list(requisites_of(page, "cp1252")) == [
        "/é?q=%E9&x=%26%231078%3B#é", "/s?%E9", "/p?%E9", "/i?%E9", "/c?é", "/d?é",
    ]  # fmt: skip
    assert list(requisites_of("<img src='/i?é'>".encode("utf-16-le"), "utf-16-le")) == ["/i?é"]
    crawl = Crawl(Requisites.SAME_HOST)
    body = "<img src='/i?q=é'>".encode("cp1252")
    assert found(reading(crawl, body, "text/html; charset=windows-1252")) == ["http://a.example/i?q=%E9"]


def test_items_of_a_page_are_extracted_as_its_type_says() -> None:
    for mime, xml in (("application/xhtml+xml", True), ("text/html", False)):
        html = reading(Crawl(Requisites.NONE), mime=mime).html
        assert html is not None
        assert html.xml == xml


def test_xhtml_page_with_empty_script_has_the_requisites_behind_it() -> None:
    body = b"<html><script src='a.js'/><img src='b.png'/></html>"
    urls = ["http://a.example/dir/a.js", "http://a.example/dir/b.png"]
    assert found(reading(Crawl(Requisites.ALL), body, "application/xhtml+xml")) == urls
    assert found(reading(Crawl(Requisites.ALL), body)) == urls[:1]


@pytest.mark.parametrize(
    ("requisites", "urls", "left_out"),
    [
        (Requisites.NONE, [], {"depth": 2}),
        (Requisites.SAME_HOST, ["http://a.example/dir/1.png"], {"depth": 2, "requisite_host": 1}),
        (Requisites.ALL, ["http://a.example/dir/1.png", "http://b.example/2.png"], {"depth": 2}),
    ],
)
def test_requisites_of_a_page_are_found_at_its_own_depth(
    requisites: Requisites, urls: list[str], left_out: dict[str, int]
) -> None:
    page = reading(Crawl(requisites))
    assert found(page) == urls
    assert page.left_out == left_out, "the depth limit is for links"
    assert page.requisites is None or (page.requisites.depth, page.requisite_hops) == (0, 1)


def test_requisite_and_link_of_one_url_are_both_reported() -> None:
    crawl = Crawl(Requisites.ALL, scope=Scope(requisites=Requisites.ALL))
    page = locate(PAGE)
    assert page is not None
    pages = links_of(crawl, 1, page, reading(crawl))  # type: ignore[arg-type]
    batches = [batch for some in batches_by_stream(pages).values() for batch in some]
    origins = [origin for batch in batches for origin in batch.origins]
    sent = {(link.url, link.kind, link.depth) for origin in origins for link in origin.links}
    assert ("http://a.example/dir/1.png", UrlKind.PAGE, 1) in sent
    assert ("http://a.example/dir/1.png", UrlKind.REQUISITE, 0) in sent


def test_requisites_are_reported_once_and_apart_from_links() -> None:
    crawl = Crawl(Requisites.ALL, scope=Scope(requisites=Requisites.ALL))
    first = reading(crawl)
    assert first.requisites is not None
    crawl.outlinks.acknowledged(first.requisites)
    again = reading(crawl)
    assert found(again) == []
    assert [location.url for location in again.found] == ["http://a.example/dir/next", "http://a.example/dir/1.png"]


def test_page_with_too_many_requisites_has_the_first_ones() -> None:
    body = b"".join(b"<img src=%d.png>" % n for n in range(50))
    page = reading(Crawl(Requisites.ALL, Budget(max_requisites_per_page=10)), body)
    assert len(found(page)) == 10
    assert page.left_out["max_requisites_per_page"] >= 1


def test_stylesheet_has_requisites_up_to_the_bound_of_hops() -> None:
    crawl, sheet = Crawl(Requisites.ALL), b"@import 'b.css'; a { background: url(c.png) }"
    page = reading(crawl, sheet, "text/css", kind=UrlKind.REQUISITE, hops=MAX_REQUISITE_HOPS - 1)
    assert (found(page), page.requisite_hops) == (["http://a.example/dir/b.css", "http://a.example/dir/c.png"], 5)
    last = reading(crawl, sheet, "text/css", kind=UrlKind.REQUISITE, hops=MAX_REQUISITE_HOPS)
    assert found(last) == []
    assert last.left_out == {"redirects": 2}


def test_redirect_of_a_requisite_leads_to_a_requisite() -> None:
    to = (("location", "http://b.example/x.png"),)
    page = reading(Crawl(Requisites.ALL), b"", "text/html", kind=UrlKind.REQUISITE, hops=1, status=302, headers=to)
    assert ([each.url for each in page.found], page.kind, page.hops) == (
        ["http://b.example/x.png"],
        UrlKind.REQUISITE,
        2,
    )
    own = reading(Crawl(Requisites.SAME_HOST), b"", kind=UrlKind.REQUISITE, hops=1, status=302, headers=to)
    assert own.left_out == {"requisite_host": 1}


def test_html_requisite_has_no_links() -> None:
    page = reading(Crawl(Requisites.ALL), kind=UrlKind.REQUISITE, hops=1)
    assert (page.found, page.requisites, page.html) == ((), None, None)


@pytest.mark.parametrize(
    ("mime", "flags", "state", "after"),
    [
        ("image/png", IS_REQUISITE, UrlState.DONE, IS_REQUISITE),
        ("image/png", IS_REQUISITE | ALSO_PAGE, UrlState.DONE, IS_REQUISITE | ALSO_PAGE),
        ("text/html", IS_REQUISITE, UrlState.DONE, IS_REQUISITE | HTML_REQUISITE),
        ("text/html", IS_REQUISITE | ALSO_PAGE, UrlState.QUEUED, 0),
    ],
)
def test_requisite_becomes_a_page_only_if_it_is_linked_html(mime: str, flags: int, state: UrlState, after: int) -> None:
    url = LeasedUrl("http://a.example/x", 1, 1, 1, 1, 0, flags, -5)
    end = requisite_done(url, flags, 200, mime, 1)
    assert (end.state, end.flags, end.stored) == (state, after, True)
    assert end.state is UrlState.DONE or end.rank > 0


def test_requisites_are_a_kind_and_a_part_of_the_queue() -> None:
    assert kind_of(IS_REQUISITE | ALSO_PAGE | 32) is UrlKind.REQUISITE
    assert not UrlKind.REQUISITE.listing
    assert queued_as(IS_REQUISITE | 16) == "requisites"


def test_budget_without_requisites_is_refused_with_its_path() -> None:
    spec = {"seeds": [PAGE], "budget": {"max_requisites": 5}}
    with pytest.raises(SpecError, match=r"budget\.max_requisites"):
        parse_spec(spec)
    assert parse_spec({**spec, "scope": {"requisites": "same-host"}}).budget.max_requisites == 5
