"""What a page says of itself, and that its links are those that a reader could follow."""

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.crawl.spec import Extract
from tests.support.scanners import each_scanner
from workers.parse.charset import sniff
from workers.parse.directives import Directives, x_robots_tag
from workers.parse.html import LinkKind, ParsedPage, Refresh, parse_html, parse_refresh, srcset_urls

both_scanners = pytest.fixture(params=["python", "compiled"], scope="module", autouse=True)(each_scanner)
OPTIONS = Extract()


def parsed(html: str | bytes, options: Extract = OPTIONS) -> ParsedPage:
    return parse_html(html if isinstance(html, bytes) else html.encode(), charset="utf-8", options=options)


def hrefs(html: str | bytes) -> list[str]:
    return [link.href for link in parsed(html).links]


def test_a_page_says_its_title_language_base_canonical_and_directives() -> None:
    page = parsed(
        '<!doctype html><HTML lang=" de "><title> Fish\n &amp; Chips </title><base href="/b/"><base href="/c/">'
        '<link rel="Canonical" href="/k"><meta name="ROBOTS" content="NOINDEX, foo"><meta name=orb content=nofollow>'
        "<meta name=otherbot content=none><meta http-equiv=Refresh content=\"5; URL='/next'\">"
    )
    assert (page.title, page.lang, page.base_href, page.canonical) == ("Fish & Chips", "de", "/b/", "/k")
    assert page.robots == Directives(noindex=True, nofollow=True)
    assert page.refresh == Refresh("/next", 5)
    assert page.links == ()


def test_links_are_those_of_anchors_areas_frames_and_sequences() -> None:
    page = parsed(
        "<a href=1>x</a><area href='2'><iframe src=\"3\"></iframe><frame src=4><link rel=next href=5><link rel=prev "
        'href=6><link rel=stylesheet href=no><link rel=alternate href=no><a name=no><img src=no srcset="no 2x">'
    )
    assert [(link.href, link.kind) for link in page.links] == [
        ("1", LinkKind.ANCHOR),
        ("2", LinkKind.ANCHOR),
        ("3", LinkKind.FRAME),
        ("4", LinkKind.FRAME),
        ("5", LinkKind.SEQUENCE),
        ("6", LinkKind.SEQUENCE),
    ]


def test_rel_of_a_link_is_read_as_words_in_any_case() -> None:
    page = parsed(
        '<a href=1 rel="external NoFollow"><a rel=ugc href=2><a href=3 rel="x\nsponsored"><a href=4 rel=nofollower>'
        '<a href="5" rel="no&#102;ollow">'
    )
    assert [link.nofollow for link in page.links] == [True, True, True, False, True]


def test_srcset_candidates_are_links_only_on_request() -> None:
    html = '<img srcset="a.png 1x, b.png 2x"><source srcset="c.png">'
    assert parsed(html).links == ()
    assert [link.href for link in parsed(html, Extract(srcset=True)).links] == ["a.png", "b.png", "c.png"]


@pytest.mark.parametrize(
    ("srcset", "urls"),
    [
        ("", []),
        (" , ,", []),
        ("a", ["a"]),
        ("a, b", ["a", "b"]),
        ("a,b 2x", ["a,b"]),
        ("data:,x 1x, b 2x", ["data:,x", "b"]),
        ("a calc(1, 2) , b", ["a", "b"]),
    ],
)
def test_srcset_is_split_as_the_standard_splits_it(srcset: str, urls: list[str]) -> None:
    assert list(srcset_urls(srcset)) == urls


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("0;url=/x", Refresh("/x", 0)),
        (' 3.7 ; URL = "/x" tail', Refresh("/x", 3)),
        ("0, /x", Refresh("/x", 0)),
        ("0 /x", Refresh("/x", 0)),
        ("0;urlx", Refresh("urlx", 0)),
        (".5; url=/x", Refresh("/x", 0)),
        ("5", None),
        ("5;", None),
        ("url=/x", None),
        ("", None),
        ("9" * 100_000 + ";url=/x", Refresh("/x", 999_999)),
    ],
)
def test_refresh_is_read_as_browsers_read_it(content: str, expected: Refresh | None) -> None:
    assert parse_refresh(content) == expected


@pytest.mark.parametrize(
    ("html", "links"),
    [
        ("<!-- <a href=no> --><a href=1>", ["1"]),
        ("<!--><a href=1>", ["1"]),
        ("<!-- --!><a href=1>", ["1"]),
        ("<!-- never closed <a href=no>", []),
        ("<script>'<a href=no>'</script><a href=1>", ["1"]),
        ("<script><!-- <script> </script> <a href=no> --></script><a href=1>", ["1"]),
        ("<script><!-- </script><a href=1>", ["1"]),
        ("<style><a href=no></style><textarea><a href=no></textarea><title><a href=no></title><a href=1>", ["1"]),
        ("<svg><script href=x.js /></svg><a href=1><script></script>", ["1"]),
        ("<svg><title/></svg><a href=1>", ["1"]),
        ("<svg><![CDATA[ <a href=no> ]]></svg><![CDATA[ > <a href=1>", ["1"]),
        ("<template><a href=no><template></template><a href=no></template><a href=1>", ["1"]),
        ("<template shadowrootmode=open><a href=1></template><a href=2>", ["1", "2"]),
        ("<template><template shadowrootmode=open><a href=no></template></template><a href=1>", ["1"]),
        ("<noscript><a href=1></noscript>", ["1"]),
        ("<frameset><noframes><a href=1></noframes></frameset>", ["1"]),
        ("<svg><a xlink:href=1></a><a href=2 xlink:href=no></a></svg>", ["1", "2"]),
        ("<div title='<a href=no>'><div title=\"<a href='no'>\"><a href=1>", ["1"]),
        ("<div title=it's><a href=1>'", ["1"]),
        ("<a class=a\"b href='1'>", ["1"]),
        ("<a title='>' href=1>", ["1"]),
        ("<a href=1 href=2>", ["1"]),
        ("<a\thref\n=\r\n 1/>", ["1/"]),
        ("<a/href=1>", ["1"]),
        ("<ahref=no><a:b href=no></a href=no><a href=1", []),
        ('<a href="1', []),
        ("<a href><a href=>", ["", ""]),
        ("<plaintext><a href=no>", []),
        ("< a href=no><a href=1>", ["1"]),
        ("<? <a href=no><a href=1>", ["1"]),
        ("<a href='?a=1&copy=2&amp;b&copy;&#x41;&notin;&#65'>", ["?a=1&copy=2&b©A∉A"]),
        ("<a href='&#0;&#xD800;&#x110000;&#" + "9" * 5000 + ";&#128;'>", ["\ufffd" * 4 + "€"]),
        (b"<a href='\xff\0x'>", ["\ufffd\ufffdx"]),
    ],
)
def test_markup_is_tokenised_as_the_standard_says(html: str | bytes, links: list[str]) -> None:
    assert hrefs(html) == links


def test_pages_in_other_encodings_have_their_own_links() -> None:
    html = "<title>Ünï</title><a href='/日本?é'>"
    for codec in ("utf-16-le", "utf-8", "gb18030"):
        page = parse_html(html.encode(codec), charset=codec, options=OPTIONS)
        query = "%A8%A6" if codec == "gb18030" else "é"
        assert (page.title, page.links[0].href) == ("Ünï", f"/日本?{query}")
    page = parse_html("<a href='/日本'>".encode("iso2022_jp"), charset="iso2022_jp", options=OPTIONS)
    assert page.links[0].href == "/日本"


def test_links_beyond_the_limit_are_cut_and_said_to_be() -> None:
    html = "".join(f"<a href=/{number}>" for number in range(50)) + "<meta name=robots content=nofollow>"
    page = parsed(html, Extract(max_links_per_page=20))
    assert [link.href for link in page.links] == [f"/{number}" for number in range(20)]
    assert (page.links_cut, page.cut_links) == (30, tuple(f"/{number}" for number in range(20, 40)))
    assert page.robots.nofollow
    assert not parsed(html, Extract(max_links_per_page=50)).links_cut
    assert parsed(html, Extract(max_links_per_page=0)).links == ()
    marked = parsed("<a href=/1><a rel=x href=/2><a rel=x href=/3>", Extract(max_links_per_page=2))
    assert (marked.links_cut, marked.cut_links, len(marked.links)) == (1, ("/3",), 2)


@pytest.mark.parametrize("max_count", range(9))
def test_links_beyond_the_limit_are_the_last_of_the_page(max_count: int) -> None:
    """In document order, with plain links and others mixed."""
    html = (
        "<base href=/b><link rel=next href=/0><a rel=noopener href='/1'>1</a><a href='/2'>2</a><a rel=noopener "
        "href='/1'>"
        '<a href="/3"><a href="/4"><iframe src=/5></iframe><a href="/3"><img srcset="/6, /7 2x"><a href="/8">'
    )
    page = parsed(html, Extract(max_links_per_page=max_count, srcset=True))
    assert sorted(link.href for link in page.links) == [f"/{number}" for number in range(max_count)]
    assert (page.links_cut, sorted(page.cut_links)) == (9 - max_count, [f"/{number}" for number in range(max_count, 9)])


def test_page_with_ten_times_too_many_links_has_the_first_ones() -> None:
    html = "<a rel=x href=/m>" + "".join(f'<a href="/{number}">' for number in range(2_000)) + "<a rel=x href=/n>"
    page = parsed(html, Extract(max_links_per_page=3))
    assert sorted(link.href for link in page.links) == ["/0", "/1", "/m"]
    assert page.links_cut > 1_000


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], Directives()),
        (["noindex"], Directives(noindex=True)),
        (["NoIndex, NoFollow"], Directives(True, True)),
        (["none"], Directives(True, True)),
        (["otherbot: noindex, nofollow"], Directives()),
        (["orb: nofollow"], Directives(nofollow=True)),
        (["otherbot: noindex, orb: nofollow"], Directives(nofollow=True)),
        (["otherbot: noindex", "nofollow"], Directives(nofollow=True)),
        (["unavailable_after: 25 Jun 2010 15:00:00 PST, noindex"], Directives(True, False, 1_277_506_800_000)),
    ],
)
def test_x_robots_tag_holds_for_everyone_or_for_the_product_it_names(values: list[str], expected: Directives) -> None:
    assert x_robots_tag(values) == expected


@given(st.binary(max_size=400), st.sampled_from(["utf-8", "cp1252", "utf-16-le", "cp932", "iso2022_jp", "ascii"]))
def test_no_bytes_are_too_broken(body: bytes, charset: str) -> None:
    parse_html(body, charset=charset, options=Extract(srcset=True))


@pytest.mark.parametrize("element", ["script", "title", "style", "textarea", "iframe", "noembed", "xmp", "template"])
def test_in_xhtml_an_element_that_closes_itself_is_empty(element: str) -> None:
    html = f"<html><{element}/><a href='1'>x</a></html>".encode()
    assert [link.href for link in parse_html(html, charset="utf-8", options=OPTIONS, xml=True).links] == ["1"]
    assert not [link for link in parse_html(html, charset="utf-8", options=OPTIONS).links if link.href == "1"]


def test_in_xhtml_a_cdata_section_is_text() -> None:
    html = b"<p><![CDATA[ <a href='no'> ]]></p><a href='1'/>"
    assert [link.href for link in parse_html(html, charset="utf-8", options=OPTIONS, xml=True).links] == ["1"]


def test_queries_are_encoded_as_the_document_is() -> None:
    """https://url.spec.whatwg.org/#query-state; what the encoding lacks becomes a decimal reference."""
    html = (
        "<base href='/b?é'><a href='/é?q=é&x=€ж#é'><meta http-equiv=refresh content='0;url=/r?é'>"
        "<link rel=canonical href='/c?é'><link rel=alternate type=application/rss+xml href='/f?é'>"
    )
    page = parse_html(html.encode("cp1252", "xmlcharrefreplace"), charset="cp1252", options=OPTIONS)
    assert page.links[0].href == "/é?q=%E9&x=%80%26%231078%3B#é"
    assert page.refresh is not None
    assert (page.refresh.target, page.canonical, page.feeds) == ("/r?%E9", "/c?%E9", ("/f?%E9",))
    assert page.base_href == "/b?%E9"
    page = parse_html("<a href='/あ?q=あ'>".encode("iso2022_jp"), charset="iso2022_jp", options=OPTIONS)
    assert unquote_to_bytes(page.links[0].href.partition("?")[2]) == "q=あ".encode("iso2022_jp")


def test_query_in_utf8_of_a_page_declared_latin1_keeps_its_bytes() -> None:
    """A browser sends them unchanged, too: each byte is a character of windows-1252."""
    body = "<title>Россия</title><a href='/s?q=Россия'>".encode()
    charset = sniff(body, "text/html; charset=iso-8859-1")
    page = parse_html(body, charset=charset, options=OPTIONS)
    assert unquote_to_bytes(page.links[0].href) == "/s?q=Россия".encode()
    assert "\ufffd" not in page.title
