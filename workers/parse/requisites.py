"""Finds what an HTML page needs to be replayed: its stylesheets, images, scripts, fonts and media.

This is a second pass over a page, for crawls that fetch requisites. It follows the tokenizer rules of `tags.py` for
comments, raw text and quoted values. It reads a bounded part of a page and takes linear time.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from workers.parse.charset import is_ascii_based
from workers.parse.css import css_urls
from workers.parse.html import query_codec, query_in, read_tag, srcset_urls
from workers.parse.references import attribute_text
from workers.parse.tags import FOREIGN, past_markup, raw_text_end, tag_end

MAX_REQUISITE_BYTES: Final = 4 << 20
"""The bytes of a page or stylesheet that are searched for requisites."""

_LINKS: Final = frozenset(
    ("stylesheet", "icon", "preload", "modulepreload", "apple-touch-icon", "mask-icon", "manifest")
)
_LAZY: Final = (b"src", b"data-src")
_SETS: Final = (b"srcset", b"data-srcset")
_URLS: Final[Mapping[bytes, tuple[bytes, ...]]] = {
    b"img": _LAZY,
    b"source": _LAZY,
    b"video": (*_LAZY, b"poster"),
    b"audio": _LAZY,
    b"track": (b"src",),
    b"script": (b"src",),
    b"embed": (b"src",),
    b"object": (b"data",),
    b"input": (b"src",),
    b"image": (b"href", b"xlink:href", b"src"),
    b"feimage": (b"href", b"xlink:href"),
    b"use": (b"href", b"xlink:href"),
    b"link": (b"href",),
    **dict.fromkeys((b"body", b"table", b"td", b"th"), (b"background",)),
}
"""Maps the name of an element to the names of its attributes that have one URL as value."""

_RAW: Final = frozenset((b"script", b"style", b"title", b"textarea", b"xmp", b"iframe", b"noembed"))
_START: Final = re.compile(rb"<(/?)([a-zA-Z][^ \t\n\f\r/>]*+)")
_SPACES: Final = " \t\n\f\r"


def requisites_of(html: bytes, charset: str, *, xml: bool = False) -> Iterator[str]:
    """Yield the URLs of the requisites that the page `html` names, as written there, in order, with repeats.

    `charset` is the Python codec in which the page is encoded. `data:` URLs and references within the page are left
    out. The query of a URL in an attribute is encoded in the page's encoding, as in links. The query of a `url()` in
    CSS stays unchanged. `xml`: the page is XHTML, so `<script/>` and similar elements are empty.
    """
    html, encoding = html[:MAX_REQUISITE_BYTES], query_codec(charset)
    if not is_ascii_based(charset):
        html, charset = html.decode(charset, "replace").encode(), "utf-8"
    for reference in _references(html, charset, encoding, xml):
        reference = reference.strip(_SPACES)
        if loads(reference):
            yield reference


def loads(reference: str) -> bool:
    """Return True if a browser would request `reference` from a server.

    Return False if it is empty, a fragment, or has a scheme of inline content such as `data:`.
    """
    return bool(reference) and not reference.startswith("#") and reference[:11].lower().partition(":")[0] not in _INLINE


_INLINE: Final = frozenset(("data", "blob", "about", "javascript", "mailto"))


def _references(html: bytes, charset: str, encoding: str | None, xml: bool) -> Iterator[str]:
    position, end = 0, len(html)
    foreign = 0  # how many svg and math elements are open
    while (position := html.find(b"<", position)) >= 0:
        start = _START.match(html, position)
        if start is None:
            position = past_markup(html, position, cdata=xml or foreign > 0)
            continue
        behind = tag_end(html, start.end())
        if behind < 0:
            return
        name, tag = start[2].lower(), html[position + 1 : behind]
        position = behind
        self_closing = tag.endswith(b"/>")
        if name in FOREIGN and not self_closing:
            foreign = max(0, foreign - 1) if start[1] else foreign + 1
        if start[1]:
            continue
        if name in _URLS or b"style" in tag[len(name) :].lower():
            attributes = read_tag(tag)[1]
            urls = _of_element(name, attributes, charset)
            yield from urls if encoding is None else (query_in(encoding, url) for url in urls)
            if b"style" in attributes:
                yield from css_urls(attribute_text(attributes[b"style"], charset))
        if name == b"plaintext":
            return
        if name in _RAW and not ((foreign or xml) and self_closing):
            position = raw_text_end(html, behind, name)
            if name == b"style":
                yield from css_urls(html[behind:position].decode(charset, "replace"))
    assert position <= end


def _of_element(name: bytes, attributes: Mapping[bytes, bytes], charset: str) -> Iterator[str]:
    """Yield the URLs of requisites in an element's attributes, apart from those in CSS."""
    wanted = _URLS.get(name, ())
    keys = (*wanted, b"rel", *_SETS)
    values = {key: attribute_text(attributes[key], charset) for key in keys if key in attributes}
    if name == b"link" and _LINKS.isdisjoint(values.get(b"rel", "").lower().split()):
        return
    if name == b"input" and attributes.get(b"type", b"").lower() != b"image":
        wanted = ()
    for key in wanted:
        if key in values:
            yield values[key]
    if name == b"link" and b"imagesrcset" in attributes:
        yield from srcset_urls(attribute_text(attributes[b"imagesrcset"], charset))
    if name in (b"img", b"source"):
        for key in _SETS:
            yield from srcset_urls(values.get(key, ""))
