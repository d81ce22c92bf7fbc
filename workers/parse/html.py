"""Reads a page's links, title, language, robots directives and other metadata.

These count as links:

- `a` and `area` (href, in SVG also xlink:href)
- `frame` and `iframe` (src)
- `link` with rel next or prev
- the srcset candidates of `img` and `source`, if the spec enables them

`link rel=alternate` (translations), stylesheets and other resources are not links to pages. Feeds are in their own
list. Values are as in the document, with character references resolved and queries in the document's encoding. They are
not resolved to URLs yet.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache, partial
from typing import Final, NamedTuple

import msgspec

from shared.domain.crawl.spec import Extract
from shared.domain.explain.excluded_links import MAX_EXAMPLES
from workers.parse.charset import is_ascii_based
from workers.parse.directives import NOTHING_FORBIDDEN, Directives, meta_robots
from workers.parse.references import attribute_text, plain_text
from workers.parse.scanner import scan_tags
from workers.parse.start_tags import ATTRIBUTE, Scan

MAX_TITLE_CHARS: Final = 512
_MAX_TITLE_BYTES: Final = 8 * 1024
MAX_FEEDS: Final = 20
"""The maximum number of feeds that are returned for a page."""

_FEEDS: Final = frozenset(("application/rss+xml", "application/atom+xml", "application/rdf+xml"))
_MAX_VALUE_CHARS: Final = 256
_CACHED_TAGS: Final = 16_384
_CACHED_TAG_BYTES: Final = 512
"""The greatest size in bytes of a tag whose result is cached. The cache then takes at most about 20 MiB."""

_NOT_FOLLOWED: Final = frozenset(("nofollow", "ugc", "sponsored"))
_REFRESH: Final = re.compile(
    r"[ \t\n\f\r]*+(?P<delay>[0-9]*+)[0-9.]*+(?:[ \t\n\f\r]*+[;,][ \t\n\f\r]*+|[ \t\n\f\r]++)"
    r"(?:url[ \t\n\f\r]*+=[ \t\n\f\r]*+)?(?:\"(?P<double>[^\"]*+)|'(?P<single>[^']*+)|(?P<bare>.*+))",
    re.IGNORECASE | re.DOTALL,
)
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_CANDIDATE: Final = re.compile(r"[ \t\n\f\r,]*+([^ \t\n\f\r]++)((?:[^,(]++|\([^)]*+\)?){0,64})")


class LinkKind(IntEnum):
    """The kind of element that contains a link.

    ANCHOR: a or area. FRAME: frame or iframe. SEQUENCE: link with rel next or prev. IMAGE: a srcset candidate.
    """

    ANCHOR = 0
    FRAME = 1
    SEQUENCE = 2
    IMAGE = 3


class PageLink(NamedTuple):
    """A link as it is written in the page. `nofollow`: its rel is nofollow, ugc or sponsored."""

    href: str
    kind: LinkKind
    nofollow: bool


class Refresh(NamedTuple):
    """A meta refresh: after `delay_s` seconds the page sends browsers to the URL `target`, as written."""

    target: str
    delay_s: int


class ParsedPage(msgspec.Struct, frozen=True, gc=False):
    """The links and metadata of an HTML page. Two links may have the same href, if their tags differ.

    - `anchors`: the hrefs of plain links, which are most links of a page. `marked`: the other links, with their kinds.
      Both are in document order.
    - `links_cut`: how many links are left out, because they come after the first `max_links_per_page`. This is a
      minimum if the page has over ten times as many links as allowed, because the rest of the page is not read.
    - `cut_links`: the hrefs of some of the links that are left out, at most MAX_EXAMPLES.
    - `feeds`: the RSS and Atom feeds that the page names.
    """

    title: str = ""
    lang: str = ""
    base_href: str | None = None
    canonical: str | None = None
    refresh: Refresh | None = None
    robots: Directives = NOTHING_FORBIDDEN
    anchors: tuple[str, ...] = ()
    marked: tuple[PageLink, ...] = ()
    feeds: tuple[str, ...] = ()
    links_cut: int = 0
    cut_links: tuple[str, ...] = ()

    @property
    def links(self) -> tuple[PageLink, ...]:
        """All links of the page, the plain ones (`anchors`) first."""
        return (*(PageLink(href, LinkKind.ANCHOR, False) for href in self.anchors), *self.marked)


def parse_html(body: bytes, *, charset: str, options: Extract, product: str = "orb", xml: bool = False) -> ParsedPage:
    """Return the links and metadata of an HTML page in the Python codec `charset`.

    The function takes linear time and never raises.

    - `options`: the limit of links, and whether images are links.
    - `product`: the crawler's product token in lower case. A meta element with this name has robots directives.
    - `xml`: the page is XHTML.
    """
    encoding = query_codec(charset)
    if not is_ascii_based(charset):
        body, charset = body.decode(charset, "replace").encode(), "utf-8"
    max_count = options.max_links_per_page
    scan = scan_tags(body, images=options.srcset, xml=xml, limit=10 * max_count + 1000)
    hrefs = list(dict.fromkeys(scan.hrefs))
    head = _Head(product)
    marked: list[PageLink] = []
    ends: list[int] = []
    interpret = _interpret
    for tag in dict.fromkeys(scan.tags):
        meaning = interpret(tag, charset) if len(tag) <= _CACHED_TAG_BYTES else _interpreted(tag, charset)
        if type(meaning) is PageLink:
            marked.append(meaning)
        elif type(meaning) is _Element:
            marked += head.add(meaning)
        ends.append(len(marked))
    cut = max(len(hrefs) + len(marked) - max_count, int(scan.cut))
    cut_links: list[str] = []
    if cut:
        marked_kept = _marked_within(scan, ends, max_count)
        plain_kept = max_count - marked_kept
        cut_links = _texts(hrefs[plain_kept : plain_kept + MAX_EXAMPLES], charset)
        cut_links += [link.href for link in marked[marked_kept:][:MAX_EXAMPLES]]
        del hrefs[plain_kept:], marked[marked_kept:]
    parsed = ParsedPage(
        title=" ".join(plain_text(scan.title[:_MAX_TITLE_BYTES], charset).split())[:MAX_TITLE_CHARS],
        lang=head.lang,
        base_href=head.base_href,
        canonical=head.canonical,
        refresh=head.refresh,
        robots=head.robots,
        anchors=tuple(_texts(hrefs, charset)),
        marked=tuple(marked),
        feeds=tuple(head.feeds),
        links_cut=cut,
        cut_links=tuple(cut_links[:MAX_EXAMPLES]),
    )
    return parsed if encoding is None else _with_queries_in(encoding, parsed)


def _marked_within(scan: Scan, ends: list[int], max_count: int) -> int:
    """Return how many of the first `max_count` different links of a page, in document order, are no plain links.

    `ends`: one number for each tag of `scan.tags`, without repeated tags. It is how many links that are no plain links
    the tags up to this one have.
    """
    plain = list(_first_places(scan.hrefs).values())
    count = 0
    for place, end in zip(_first_places(scan.tags).values(), ends, strict=True):
        left = max_count - count - bisect_left(plain, scan.before[place])
        if left <= 0:
            break
        count = min(count + left, end)
    return count


def _first_places(values: list[bytes]) -> dict[bytes, int]:
    """Return the index of the first occurrence of each value, in order."""
    places: dict[bytes, int] = {}
    for place, value in enumerate(values):
        places.setdefault(value, place)
    return places


def _with_queries_in(encoding: str, page: ParsedPage) -> ParsedPage:
    """Return the page with the query strings of all its URLs percent-encoded in the codec `encoding`.

    Only non-ASCII characters of a query string are encoded.
    """
    return msgspec.structs.replace(
        page,
        base_href=None if page.base_href is None else query_in(encoding, page.base_href),
        canonical=None if page.canonical is None else query_in(encoding, page.canonical),
        refresh=None if page.refresh is None else page.refresh._replace(target=query_in(encoding, page.refresh.target)),
        anchors=tuple([query_in(encoding, href) for href in page.anchors]),
        cut_links=tuple([query_in(encoding, href) for href in page.cut_links]),
        marked=tuple([link._replace(href=query_in(encoding, link.href)) for link in page.marked]),
        feeds=tuple([query_in(encoding, href) for href in page.feeds]),
    )


def query_codec(charset: str) -> str | None:
    """Return the codec in which a page in `charset` encodes the queries of its URLs. Return None for UTF-8."""
    # "Replacement" (ascii) and UTF-16 have UTF-8 as their output encoding.
    return None if charset == "ascii" or charset.startswith("utf-") else charset


def query_in(encoding: str, reference: str) -> str:
    """Return the reference with the non-ASCII characters of its query percent-encoded in the codec `encoding`.

    Characters that the encoding lacks become decimal references (https://url.spec.whatwg.org/#query-state).
    """
    if reference.isascii() or (begin := reference.find("?")) < 0:
        return reference
    end = reference.find("#", begin)
    end = len(reference) if end < 0 else end
    return reference[:begin] + _NOT_ASCII.sub(partial(_escaped, encoding), reference[begin:end]) + reference[end:]


def _escaped(encoding: str, match: re.Match[str]) -> str:
    try:
        octets = match[0].encode(encoding)
    except UnicodeEncodeError:
        return f"%26%23{ord(match[0])}%3B"
    return "".join([f"%{octet:02X}" for octet in octets])


def _texts(hrefs: list[bytes], charset: str) -> list[str]:
    """Return attribute values as text. The values must not contain NUL."""
    # UTF-8 values are decoded all at once, joined by NUL.
    # An invalid sequence cannot extend beyond a NUL, so it spoils one value only.
    if charset == "utf-8" and hrefs:
        return attribute_text(b"\0".join(hrefs), charset, separator="\0").split("\0")
    return [attribute_text(href, charset) for href in hrefs]


class _Element(NamedTuple):
    """An element that is read for the page's metadata, with only the attributes that are used here."""

    name: bytes
    attributes: dict[bytes, str]


class _Head:
    """Collects a page's metadata: all robots directives, at most MAX_FEEDS feeds, and the first of each other kind."""

    __slots__ = ("base_href", "canonical", "feeds", "lang", "product", "refresh", "robots")

    def __init__(self, product: str) -> None:
        self.product = product
        self.lang = ""
        self.base_href: str | None = None
        self.canonical: str | None = None
        self.refresh: Refresh | None = None
        self.robots = NOTHING_FORBIDDEN
        self.feeds: list[str] = []

    def add(self, element: _Element) -> list[PageLink]:
        """Collect the metadata of `element`. Return the links that the element contains."""
        attributes = element.attributes
        match element.name:
            case b"html":
                self.lang = self.lang or attributes.get(b"lang", "").strip()[:_MAX_VALUE_CHARS]
            case b"base":
                if self.base_href is None:
                    self.base_href = attributes.get(b"href")
            case b"meta":
                self._add_meta(attributes)
            case b"link":
                rel = attributes.get(b"rel", "").lower().split()
                if "canonical" in rel and self.canonical is None:
                    self.canonical = attributes.get(b"href")
                if "alternate" in rel and _names_feed(attributes) and len(self.feeds) < MAX_FEEDS:
                    self.feeds.append(attributes[b"href"])
                if ("next" in rel or "prev" in rel) and b"href" in attributes:
                    return [PageLink(attributes[b"href"], LinkKind.SEQUENCE, not _NOT_FOLLOWED.isdisjoint(rel))]
            case b"img" | b"source":
                return [PageLink(url, LinkKind.IMAGE, False) for url in srcset_urls(attributes.get(b"srcset", ""))]
        return []

    def _add_meta(self, attributes: dict[bytes, str]) -> None:
        content = attributes.get(b"content", "")
        if attributes.get(b"name", "").strip().lower() in ("robots", self.product):
            self.robots |= meta_robots(content)
        elif attributes.get(b"http-equiv", "").lower() == "refresh" and self.refresh is None:
            self.refresh = parse_refresh(content)


def _names_feed(attributes: dict[bytes, str]) -> bool:
    """Return True if a `link` element has a URL and the type of a feed."""
    return bool(attributes.get(b"href")) and attributes.get(b"type", "").partition(";")[0].strip().lower() in _FEEDS


def _interpreted(tag: bytes, charset: str) -> PageLink | _Element | None:
    """Return the link of the raw start tag `tag` (without `<`) if it is an a, area, frame or iframe.

    For the tag of any other element, return the attributes that `_Head.add` reads. Return None if the tag has no
    relevant attribute.
    """
    name, attributes = read_tag(tag)
    match name:
        case b"a" | b"area":
            href = attributes.get(b"href", attributes.get(b"xlink:href"))
            if href is None:
                return None
            rel = attributes.get(b"rel")
            nofollow = rel is not None and not _NOT_FOLLOWED.isdisjoint(attribute_text(rel, charset).lower().split())
            return PageLink(attribute_text(href, charset), LinkKind.ANCHOR, nofollow)
        case b"frame" | b"iframe":
            src = attributes.get(b"src")
            return None if src is None else PageLink(attribute_text(src, charset), LinkKind.FRAME, False)
        case b"img" | b"source":
            names: tuple[bytes, ...] = (b"srcset",)
        case b"base":
            names = (b"href",)
        case b"html":
            names = (b"lang",)
        case b"link":
            names = (b"href", b"rel", b"type")
        case _:
            names = (b"name", b"http-equiv", b"content")
    values = {key: attribute_text(attributes[key], charset) for key in names if key in attributes}
    return _Element(name, values) if values else None


_interpret: Final = lru_cache(_CACHED_TAGS)(_interpreted)
_NAME: Final = re.compile(rb"[^ \t\n\f\r/>]+")


def read_tag(tag: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the name and the raw attribute values of a start tag (without `<`). All names are in lower case.

    If an attribute is repeated, its first value is returned.
    """
    named = _NAME.match(tag)
    assert named is not None  # scan_tags returns tags from their name on
    attributes: dict[bytes, bytes] = {}
    for match in ATTRIBUTE.finditer(tag, named.end()):
        _, key, double, single, _, bare = match.groups()
        if key is not None:
            attributes.setdefault(key.lower(), double or single or bare or b"")
    return named[0].lower(), attributes


def parse_refresh(content: str) -> Refresh | None:
    """Return the meta refresh in `content`. None if it is malformed, or has no URL and so only reloads the page."""
    match = _REFRESH.match(content)
    if match is None or not (match["delay"] or content.lstrip(" \t\n\f\r").startswith(".")):
        return None
    target = (match["double"] or match["single"] or match["bare"] or "").strip(" \t\n\f\r")
    return Refresh(target, int(match["delay"][:6] or "0")) if target else None


def srcset_urls(srcset: str) -> Iterable[str]:
    """Yield the URLs in the value of a srcset attribute, in order."""
    position = 0
    while (match := _CANDIDATE.match(srcset, position)) is not None:
        url = match[1]
        if url.endswith(","):  # a candidate without descriptor
            position = match.end(1)
            url = url.rstrip(",")
        else:
            position = match.end()
        if url:
            yield url
