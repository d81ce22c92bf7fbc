"""Parses the entries of a sitemap or feed in XML with expat, piece by piece.

The text is not trusted: a file that declares entities is refused, and no DTD or other file is ever loaded. The depth of
nesting and the size of a token are limited. XInclude elements are ignored.

An element is recognized by its name and its depth in the file. If the root element has a prefix, as in `s:urlset`, the
other elements must have the same prefix, as in `s:url`. In RSS 1.0 they must have no prefix. Namespaces are not
checked, because many real files declare a wrong one or none.
"""

from enum import StrEnum
from typing import Final, NamedTuple
from xml.parsers import expat

from shared.domain.web.sitemaps import date_s
from shared.domain.web.url import MAX_URL_CHARS, canonicalize

MAX_XML_DEPTH: Final = 64
"""The deepest nesting of elements that is read. Deeper nesting ends the parsing. Real files have under ten levels."""

MAX_TOKEN_BYTES: Final = 1 << 20
"""The greatest size of one tag, comment or declaration in bytes. A larger token ends the parsing."""

_NO_XML_CHARACTER: Final = bytes(32 if byte < 32 and byte not in b"\t\n\r" else byte for byte in range(256))


class Listing(StrEnum):
    """The forms of sitemaps and feeds. The values are shown to users."""

    SITEMAP = "sitemap"
    INDEX = "sitemap index"
    RSS = "RSS feed"
    ATOM = "Atom feed"
    TEXT = "text sitemap"


class Entry(NamedTuple):
    """An entry of a sitemap or feed. `reference`: its URL, as it is written in the file.

    `base`: the URL to which `reference` may be relative. None: it must be absolute, as in sitemaps. `lastmod`: when the
    page last changed according to the entry (Unix seconds), 0 if unknown.
    """

    reference: str
    base: str | None = None
    lastmod: int = 0


class _Stopped(Exception):
    """Raised by a handler to stop the parser. The message is the reason."""


_ROOTS: Final = {
    "urlset": Listing.SITEMAP,
    "sitemapindex": Listing.INDEX,
    "rss": Listing.RSS,
    "RDF": Listing.RSS,
    "feed": Listing.ATOM,
    "entry": Listing.ATOM,
}
_ITEMS: Final = {Listing.SITEMAP: "url", Listing.INDEX: "sitemap", Listing.RSS: "item", Listing.ATOM: "entry"}
_FIELDS: Final = {
    Listing.SITEMAP: ("loc", "lastmod"),
    Listing.INDEX: ("loc", "lastmod"),
    Listing.RSS: ("link", "pubDate"),
    Listing.ATOM: ("link", "updated"),
}
"""For each form, two child elements of an entry: the element with the URL, and the element with the date."""


class XmlListing:
    """Parses the file at `url`. Call `feed` with each piece of its text, then `close`. Both return complete entries.

    - `dates`: also read the `lastmod` of entries.
    - `form`: the form of the file, None until its root element is read.
    - `problem`: why the text cannot be parsed any further, empty if it can. Do not call `feed` after that.
    """

    def __init__(self, url: str, *, dates: bool) -> None:
        self._with_dates = dates
        self._plain = self._dates = frozenset[str]()
        self.form: Listing | None = None
        self.problem = ""
        self._entries: list[Entry] = []
        self._fed = 0
        self._depth = 0
        self._prefix = ""
        self._item = self._guid_name = ""
        self._atom = False
        self._item_depth = 0  # 0 outside an item
        self._text: list[str] | None = None
        self._chars = 0
        self._link = self._guid = ""
        self._lastmod = 0
        self._base: str | None = None
        self._bases: list[str] = [url]
        self._parser = parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.EntityDeclHandler = self._entity

    def feed(self, text: str) -> list[Entry]:
        """Parse the next piece of text. Return the entries that it completes.

        A character that XML does not have counts as a space, because the parser would stop there.
        """
        text = text.replace("\ufffe", " ").replace("\uffff", " ")
        return self._parse(text.encode("utf-8", "replace").translate(_NO_XML_CHARACTER), False)

    def close(self) -> list[Entry]:
        """Parse what remains at the end of the text. Return the entries that it completes."""
        return self._parse(b"", True)

    def _parse(self, data: bytes, final: bool) -> list[Entry]:
        self._fed += len(data)
        try:
            self._parser.Parse(data, final)
            if self._fed - self._parser.CurrentByteIndex > MAX_TOKEN_BYTES:
                raise _Stopped(f"a tag or comment has more than {MAX_TOKEN_BYTES >> 20} MiB")
        except _Stopped as reason:
            self.problem = str(reason)
        except expat.ExpatError as error:
            self.problem = f"its XML is invalid in line {error.lineno}: {expat.ErrorString(error.code)}"
        entries, self._entries = self._entries, []
        return entries

    def _entity(self, name: str, *_: object) -> None:
        raise _Stopped(f"it declares the entity {name[:40]!r}")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        depth = self._depth = self._depth + 1
        item_depth = self._item_depth
        if depth == item_depth + 1 and name in self._plain and item_depth:
            self._capture()
            return
        if depth > MAX_XML_DEPTH:
            raise _Stopped(f"its elements are nested more than {MAX_XML_DEPTH} deep")
        if depth == 1:
            self._root(name)
        if self._atom:
            self._bases.append(_base(attributes.get("xml:base"), self._bases[-1]))
        if not item_depth:
            if name == self._item and depth <= 3:
                self._item_depth = depth
                self._link = self._guid = ""
                self._lastmod = 0
        elif depth == item_depth + 1:
            self._field(name, attributes)

    def _root(self, name: str) -> None:
        prefix, colon, local = name.rpartition(":")
        self.form = _ROOTS.get(local)
        if self.form is None:
            raise _Stopped(f"its root element is {name[:40]}")
        # In RSS 1.0 the root is of RDF, and the items are of RSS.
        self._prefix = "" if local == "RDF" else prefix + colon
        self._item = self._prefix + _ITEMS[self.form]
        self._atom = self.form is Listing.ATOM
        self._guid_name = f"{self._prefix}guid" if self.form is Listing.RSS else ""
        link, date = _FIELDS[self.form]
        self._dates = frozenset((self._prefix + date,)) if self._with_dates else frozenset[str]()
        # The base of an Atom element must be noted before its text, so its fields take the longer way.
        self._plain = frozenset[str]() if self._atom else self._dates | {self._prefix + link}

    def _field(self, name: str, attributes: dict[str, str]) -> None:
        """Read the start tag of an item's child element: a field of an Atom entry, or the guid of an RSS item.

        Any other element is ignored.
        """
        if self._atom:
            if name in self._dates:
                self._capture()
            elif name == f"{self._prefix}link" and attributes.get("rel", "alternate").strip().lower() in _ALTERNATE:
                href = attributes.get("href", "").strip()
                if href and not self._link:
                    self._link, self._base = href[: MAX_URL_CHARS + 1], self._bases[-1]
        elif name == self._guid_name and attributes.get("isPermaLink", "true").lower() == "true":
            self._capture()

    def _capture(self) -> None:
        self._text, self._chars = [], 0
        self._parser.CharacterDataHandler = self._characters

    def _characters(self, data: str) -> None:
        if self._text is not None and self._chars <= MAX_URL_CHARS:
            self._text.append(data[: MAX_URL_CHARS + 1])
            self._chars += len(data)

    def _end(self, name: str) -> None:
        depth, self._depth = self._depth, self._depth - 1
        if self._atom:
            self._bases.pop()
        if self._text is not None and depth == self._item_depth + 1:
            value = "".join(self._text).strip()
            self._text = None
            self._parser.CharacterDataHandler = None
            if name in self._dates:
                self._lastmod = date_s(value)
            elif name == self._guid_name:
                # Most identifiers that are not URLs do not say so.
                self._guid = self._guid or (value if "://" in value else "")
            else:
                self._link = self._link or value
        elif depth == self._item_depth:
            self._item_depth = 0
            if reference := self._link or self._guid:
                base = self._bases[0] if self.form is Listing.RSS else self._base
                self._entries.append(Entry(reference, base, self._lastmod))


_ALTERNATE: Final = frozenset(("", "alternate", "http://www.iana.org/assignments/relation/alternate"))


def _base(own: str | None, outer: str) -> str:
    """Return the base URL of an Atom element: its attribute xml:base, relative to the base of its parent (RFC 4287 §2).

    `own`: the value of the attribute, None without one. `outer`: the base of the parent.
    """
    return outer if own is None else canonicalize(own, outer) or outer
