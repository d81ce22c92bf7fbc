"""The tag scanner finds what a tree builder finds, in linear time, whatever the markup.

Two independent parsers are the judges: lexbor (a WHATWG tree builder) and the standard library's html.parser.
"""

import os
import time
import tracemalloc
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from shared.domain.crawl import Extract
from tests.support.corpora import CORPORA, missing_packages
from workers.pages import READ_ON_LOOP
from workers.parse.charset import sniff
from workers.parse.html import _read_tag, parse_html
from workers.parse.references import attribute_text
from workers.parse.tags import scan_tags

Tag = tuple[str, tuple[tuple[str, str], ...]]
NAMES = frozenset(("a", "area", "base", "link", "meta", "iframe", "img", "source"))


def scanned(html: bytes) -> list[Tag]:
    """Every tag as the scanner sees it, sorted: of `a` the href and rel, of others all attributes. `html` is UTF-8."""
    scan = scan_tags(html, images=True)
    tags: list[Tag] = [("a", (("href", attribute_text(href, "utf-8")),)) for href in scan.hrefs]
    for raw in scan.tags:
        name, attributes = _read_tag(raw)
        values = {
            key.decode("utf-8", "replace").replace("\0", "\ufffd"): attribute_text(value, "utf-8")
            for key, value in attributes.items()
        }
        tags += comparable(name.decode(), values)
    return sorted(tags)


def built(html: bytes) -> list[Tag]:
    """The same as lexbor's tree has them."""
    root = LexborHTMLParser(html).root
    assert root is not None
    return sorted(
        tag
        for node in root.traverse()
        for tag in comparable(node.tag or "", {key: value or "" for key, value in node.attributes.items()})
    )


def comparable(name: str, values: dict[str, str]) -> list[Tag]:
    if name not in NAMES:
        return []
    return [(name, tuple(sorted(item for item in values.items() if name != "a" or item[0] in ("href", "rel"))))]


def corpus_pages(every: int) -> list[Path]:
    """Every n-th page of the installed documentation; in CI all of it must be installed."""
    missing = missing_packages()
    if missing:
        reason = f"not installed: {', '.join(missing)}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    roots = [root for corpus in CORPORA if (root := corpus.root())]
    return sorted(path for root in roots for path in root.rglob("*.htm*") if path.is_file())[::every]


def test_real_pages_have_the_tags_attributes_and_titles_that_a_tree_has() -> None:
    for path in corpus_pages(every=23):
        body = path.read_bytes()
        charset = sniff(body, None)
        page = parse_html(body, charset=charset, options=Extract())
        html = body.decode(charset, "replace").encode()
        assert scanned(html) == built(html), path
        title = LexborHTMLParser(html).css_first("title")
        assert page.title == (" ".join(title.text().split())[:512] if title else ""), path


class _References(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("a", "area"):
            self.hrefs |= {value or "" for key, value in attrs if key == "href"}


def test_real_pages_have_the_links_that_the_standard_library_finds() -> None:
    for path in corpus_pages(every=29):
        body = path.read_bytes()
        charset = sniff(body, None)
        judge = _References()
        judge.feed(body.decode(charset, "replace"))
        page = parse_html(body, charset=charset, options=Extract())
        assert {link.href for link in page.links if link.kind == 0} == judge.hrefs, path


PIECES = (
    '<a class="x" href="y" title="a>b <a href=no>">', '<a title="<" href="&amp;&copy=1&#0;é" id="i" >',
    '<a href="1" rel="z">',
    '<a href="\r" x="1">', '<a x="1" href="\0">', '<a x="1"href="2" href="3">', '<a href="1" y=2>', '<a href="1"/>',
    "<a href=1>", '<A HREF="2">', "<a href='3' rel=nofollow>", "</a>", "<a", "<a/href=4>", '<a href = "5" >',
    "<a href=6/>", "<a\x00b href=1>", "<a href=7 href=8>", '<a =x href="9">', '<a "href"=10>', '</a href=">">',
    "<ahref=1>", '<a href="', "<area href=11>", '<link href=12 rel="next">', '<meta name=x content="y">',
    "<base href=13>", "<img src=14>", "<!--", "-->", "--!>", "<!-->", "<!--->", "--", "-", "<!", "<?", "</", "<", ">",
    "<!doctype html>", "<![CDATA[", "]]>", "<script>", "</script>", '<script src="x">', "<script/>", "</script >",
    "</scripty>", "<SCRIPT>", "<style>", "</style>", "<title>", "</title>", "<textarea>", "</textarea>", "<xmp>",
    "</xmp>", "<iframe src=15>", "</iframe>", "<plaintext>", "<noscript>", "</noscript>", "<noembed>", "</noembed>",
    "<template>", "</template>", '"', "'", "=", " ", "\n", "\t", "\x0c", "\r", "\x00",
    "\x0b", "x", "é", "href", "href=", 'href="', "='", "/", "&amp;", "&copy=1", "&notit;", "&#65;", "&#x41", "&#0;",
    "&#128;", '<div title="<a href=no>">', "<div title='>'>", '<p class=a"b>', '<b a=b c="d"e=f g>', "<span/>",
    '<div=">', "<imgx src=q>", "<td>", "<table>", "<tr>", "<p>", "<br/>", "<h1 a=1>", '<li\thref="<a href=no>">',
)  # fmt: skip


@settings(max_examples=400)
@example(["<a\r", 'href="', "\r", '">'])
@example(["<script>", "<!--", "<script>", "</script>", "<a href=1>", "-->", "</script>", '<A HREF="2">'])
@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_broken_markup_has_the_tags_that_a_tree_has(pieces: list[str]) -> None:
    html = "".join(pieces).encode()
    # As sets: a tree repeats unclosed links, and moves some before others.
    assert set(scanned(html)) == set(built(html))


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "100,000 levels of div": lambda n: b"<div>" * (n // 5),
    "unclosed formatting": lambda n: b"".join(b"<p><b id=%d>" % i for i in range(n // 14)),
    "formatting to reopen": lambda n: b"".join(b"<b id=%d>" % i for i in range(n // 20)) + b"<p>x" * (n // 10),
    "many attributes": lambda n: b"<a " + b" ".join(b"a%d=1" % i for i in range(n // 9)) + b" href=/x>",
    "many quoted attributes": lambda n: b"<a " + b'a="" ' * (n // 5) + b"href=/x>",
    "one long attribute": lambda n: b'<a href="' + b"x" * n + b'">',
    "one long digit reference": lambda n: b'<a href="&#' + b"9" * n + b'">',
    "many ampersands": lambda n: b'<a href="' + b"&a" * (n // 2) + b'">',
    "long refresh": lambda n: b'<meta http-equiv=refresh content="' + b"0" * n + b'">',
    "long srcset": lambda n: b'<img srcset="' + b"a(" * (n // 2) + b'">',
    "srcset of commas": lambda n: b'<img srcset="' + b"a, " * (n // 3) + b'">',
    "comments never closed": lambda n: b"<!-" * (n // 3) + b"<!--" * (n // 4),
    "dashes": lambda n: b"<!--" + b"- -" * (n // 3),
    "scripts never closed": lambda n: b"<script><!--<script>" * (n // 20),
    "scripts": lambda n: b"<script><</script>" * (n // 18),
    "titles": lambda n: b"<title>x</title>" * (n // 16),
    "self-closing in svg": lambda n: b"<svg>" + b"<script/>" * (n // 9),
    "quotes": lambda n: b'<a "' * (n // 4),
    "unclosed quotes": lambda n: b'<a href="x>' * (n // 11),
    "less-than signs": lambda n: b"<" * n,
    "NULs": lambda n: b"<a\0=\0>" * (n // 6),
    "links": lambda n: b"".join(b"<a href=/%d>" % i for i in range(n // 15)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_markup_costs_time_and_memory_in_proportion_to_its_length(name: str) -> None:
    def parse(html: bytes) -> None:
        parse_html(html, charset="utf-8", options=Extract(srcset=True, max_links_per_page=1000))

    def seconds(html: bytes) -> float:
        best = float("inf")
        for _ in range(3):
            started = time.process_time()
            parse(html)
            best = min(best, time.process_time() - started)
        return best

    small, large = HOSTILE[name](40_000), HOSTILE[name](640_000)
    # 16 times the bytes: about 16 times the time if linear, 256 times if quadratic.
    assert seconds(large) < 80 * max(seconds(small), 0.0005)
    tracemalloc.start()
    try:
        parse(large)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(large)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_read_on_the_loop_does_not_hold_it(name: str) -> None:
    """At most 250 ms of CPU are wanted; the rest is for slow machines."""
    page = HOSTILE[name](READ_ON_LOOP)
    begun = time.process_time()
    parse_html(page, charset="utf-8", options=Extract(srcset=True))
    assert time.process_time() - begun < 1.0


def test_a_page_of_100_000_links_is_cut_at_the_limit() -> None:
    page = parse_html(HOSTILE["links"](1_500_000), charset="utf-8", options=Extract(max_links_per_page=20_000))
    assert len(page.links) == 20_000
    assert page.links_cut


def test_ten_megabytes_in_one_attribute_are_one_link() -> None:
    page = parse_html(HOSTILE["one long attribute"](10_000_000), charset="utf-8", options=Extract())
    assert [len(link.href) for link in page.links] == [10_000_000]
