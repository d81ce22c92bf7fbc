"""The tag scanner finds what a tree builder finds, in linear time, whatever the markup.

Two independent parsers are the judges: lexbor (a WHATWG tree builder) and the standard library's html.parser. Every
test runs with the scanner in Python and with the compiled one.
"""

import tracemalloc
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from shared.domain.crawl.spec import Extract
from tests.support.cpu_time import least_cpu_s
from tests.support.scanners import each_scanner
from tests.support.web.broken_markup import HOSTILE, PIECES
from tests.support.web.corpora import pages_of_every
from workers.page_reading import READ_ON_LOOP
from workers.parse.charset import sniff
from workers.parse.html import parse_html, read_tag
from workers.parse.references import attribute_text
from workers.parse.start_tags import ScanTags

Tag = tuple[str, tuple[tuple[str, str], ...]]
both_scanners = pytest.fixture(params=["python", "compiled"], scope="module", autouse=True)(each_scanner)
NAMES = frozenset(("a", "area", "base", "link", "meta", "iframe", "img", "source"))


def scanned(html: bytes, scan_tags: ScanTags) -> list[Tag]:
    """Every tag as the scanner sees it, sorted: of `a` the href and rel, of others all attributes. `html` is UTF-8."""
    scan = scan_tags(html, images=True)
    tags: list[Tag] = [("a", (("href", attribute_text(href, "utf-8")),)) for href in scan.hrefs]
    for raw in scan.tags:
        name, attributes = read_tag(raw)
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


def test_real_pages_have_the_tags_attributes_and_titles_that_a_tree_has(both_scanners: ScanTags) -> None:
    for path in pages_of_every(23):
        body = path.read_bytes()
        charset = sniff(body, None)
        page = parse_html(body, charset=charset, options=Extract())
        html = body.decode(charset, "replace").encode()
        assert scanned(html, both_scanners) == built(html), path
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
    for path in pages_of_every(29):
        body = path.read_bytes()
        charset = sniff(body, None)
        judge = _References()
        judge.feed(body.decode(charset, "replace"))
        page = parse_html(body, charset=charset, options=Extract())
        assert {link.href for link in page.links if link.kind == 0} == judge.hrefs, path


@settings(max_examples=400)
@example(["<a\r", 'href="', "\r", '">'])
@example(["<script>", "<!--", "<script>", "</script>", "<a href=1>", "-->", "</script>", '<A HREF="2">'])
@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_broken_markup_has_the_tags_that_a_tree_has(both_scanners: ScanTags, pieces: list[str]) -> None:
    html = "".join(pieces).encode()
    # As sets: a tree repeats unclosed links, and moves some before others.
    assert set(scanned(html, both_scanners)) == set(built(html))


@pytest.mark.long
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_markup_costs_time_and_memory_in_proportion_to_its_length(name: str) -> None:
    def parse(html: bytes) -> None:
        parse_html(html, charset="utf-8", options=Extract(srcset=True, max_links_per_page=1000))

    small, large = HOSTILE[name](40_000), HOSTILE[name](640_000)
    # 16 times the bytes: about 16 times the time if linear, 256 times if quadratic.
    enough = 80 * max(least_cpu_s(lambda: parse(small), enough=0.0005), 0.0005)
    assert least_cpu_s(lambda: parse(large), enough=enough) < enough
    traced = HOSTILE[name](160_000)
    tracemalloc.start()
    try:
        parse(traced)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(traced)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_read_on_the_loop_does_not_hold_it(name: str) -> None:
    """At most 250 ms of CPU are wanted; the rest is for slow machines."""
    page = HOSTILE[name](READ_ON_LOOP)
    options = Extract(srcset=True)
    assert least_cpu_s(lambda: parse_html(page, charset="utf-8", options=options), enough=1.0) < 1.0


def test_a_page_of_100_000_links_is_cut_at_the_limit() -> None:
    page = parse_html(HOSTILE["links"](1_500_000), charset="utf-8", options=Extract(max_links_per_page=20_000))
    assert len(page.links) == 20_000
    assert page.links_cut


def test_ten_megabytes_in_one_attribute_are_one_link() -> None:
    page = parse_html(HOSTILE["one long attribute"](10_000_000), charset="utf-8", options=Extract())
    assert [len(link.href) for link in page.links] == [10_000_000]
