"""Reads the entries of a sitemap or feed in batches, within limits. It raises no exception, whatever the bytes are.

The forms are those of sitemaps.org (XML, sitemap index, text), RSS 0.9x, 1.0 and 2.0, and Atom (RFC 4287). A file may
be compressed by gzip. It is decompressed, decoded and parsed in pieces, so the memory in use does not grow with the
file.
"""

import codecs
import re
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Final

from shared.domain.web.coding import Decoding
from shared.domain.web.url import MAX_URL_CHARS
from workers.discover.xml_listing import Entry, Listing, XmlListing
from workers.parse.charset import codec_of
from workers.parse.mime import parse_content_type

MAX_ENTRIES: Final = 50_000
"""The maximum number of entries that are read from one sitemap or feed. sitemaps.org sets this limit for a file."""

MAX_LISTING_BYTES: Final = 50 << 20
"""The maximum of bytes that are read from one sitemap or feed, after decompression. sitemaps.org sets this limit."""

BATCH: Final = 1_000
_PIECE: Final = 64 * 1024
_GZIP: Final = b"\x1f\x8b"
_BOMS: Final = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xfe\xff", "utf-16-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\0<\0", "utf-16-be"),
    (b"<\0", "utf-16-le"),
)
_DECLARATION: Final = re.compile(rb"\s*<\?xml\s[^>]{0,256}?encoding\s*=\s*[\"']([A-Za-z0-9._:-]{1,64})[\"']")
_HEAD: Final = 512
_BINARY: Final = re.compile(rb"[\0-\x08\x0e-\x1a]")
_UTF_16: Final = tuple(mark for mark, codec in _BOMS if codec != "utf-8")
_LEADING: Final = "\ufeff \t\r\n"


class ListingReader:
    """Reads the sitemap or feed at `url`. Iterate over it once: it yields its entries in batches of `BATCH` or more.

    The last batch may be smaller. `dates`: also read the `lastmod` of entries.

    `form` is valid after the first batch, `problem` and `entries` after the iteration:

    - `form`: the form of the file. None: it is neither a sitemap nor a feed.
    - `problem`: why the file was not read to its end, in words. Empty if it was.
    - `entries`: the number of entries that were read.
    """

    def __init__(self, url: str, body: bytes, content_type: str | None, *, dates: bool = False) -> None:
        self.form: Listing | None = None
        self.problem = ""
        self.entries = 0
        self._url = url
        self._body = body
        self._content_type = content_type
        self._dates = dates

    def __iter__(self) -> Iterator[list[Entry]]:
        batch: list[Entry] = []
        for entries in self._read():
            batch += entries
            over = self.entries + len(batch) - MAX_ENTRIES
            if over > 0:
                del batch[-over:]
                self.problem = f"entries beyond the first {MAX_ENTRIES} were not read"
                break
            if len(batch) >= BATCH:
                self.entries += len(batch)
                yield batch
                batch = []
        if batch:
            self.entries += len(batch)
            yield batch

    def _read(self) -> Iterator[list[Entry]]:
        texts = self._texts()
        first = ""
        for text in texts:
            first += text
            if first := first.lstrip(_LEADING):
                break
        if first.startswith("<"):
            yield from self._xml(first, texts)
        elif first:
            self.form = Listing.TEXT
            yield from _lines(first, texts)
        else:
            self.problem = self.problem or "it is empty"

    def _xml(self, first: str, texts: Iterator[str]) -> Iterator[list[Entry]]:
        parser = XmlListing(self._url, dates=self._dates)
        pieces = _mended(first, texts)
        for text in pieces:
            entries = parser.feed(text)
            self.form = parser.form
            yield entries
            if parser.problem:
                self.problem = parser.problem
                return
        # Input that was cut says so itself: the parser would only report its consequence.
        if not self.problem:
            entries = parser.close()
            self.form, self.problem = parser.form, parser.problem
            yield entries

    def _texts(self) -> Iterator[str]:
        """Yield the decoded text of the file in pieces. Set `problem` if the file is binary, too long or damaged."""
        pieces = self._pieces()
        head = b""
        for piece in pieces:
            head += piece
            if len(head) >= _HEAD:
                break
        if _BINARY.search(head, 0, _HEAD) is not None and not head.startswith(_UTF_16):
            self.problem = "it is binary"
            return
        decoder = codecs.getincrementaldecoder(_codec(head, self._content_type))("replace")
        yield decoder.decode(head)
        for piece in pieces:
            yield decoder.decode(piece)
        yield decoder.decode(b"", True)

    def _pieces(self) -> Iterator[bytes]:
        body = self._body
        raw = (body[start : start + _PIECE] for start in range(0, len(body), _PIECE))
        decoding = Decoding(raw, "gzip" if body.startswith(_GZIP) else "", MAX_LISTING_BYTES)
        yield from decoding
        if decoding.truncated:
            self.problem = f"what comes after {MAX_LISTING_BYTES >> 20} MiB was not read"
        elif decoding.error:
            self.problem = decoding.error


def _codec(head: bytes, content_type: str | None) -> str:
    """Return the Python codec for a file that begins with `head`. The default is UTF-8.

    A byte order mark decides first, then the charset of `content_type`, then the XML declaration.
    """
    for mark, codec in _BOMS:
        if head.startswith(mark):
            return codec
    declared = parse_content_type(content_type)
    label = declared.charset
    if label is not None and (codec_found := codec_of(label)) is not None:
        return codec_found
    match = _DECLARATION.match(head)
    own = None if match is None else codec_of(match[1].decode("ascii"))
    # A declaration that was read as ASCII cannot be in UTF-16.
    return "utf-8" if own is None or own.startswith("utf-16") else own


_LINE_END: Final = re.compile(r"\r\n?|\n")


def _lines(first: str, texts: Iterator[str]) -> Iterator[list[Entry]]:
    """Yield the lines of a text sitemap as entries, one list for each piece of text. Leave out empty lines.

    `first`: the first piece of the text, `texts`: the following ones. A line over `MAX_URL_CHARS` is cut to
    `MAX_URL_CHARS` + 1 characters.
    """
    begun = ""
    for text in chain((first,), texts):
        lines = _LINE_END.split(begun + text)
        begun = lines.pop()[: MAX_URL_CHARS + 1]
        yield [Entry(line) for each in lines if (line := each.strip()[: MAX_URL_CHARS + 1])]
    if line := begun.strip():
        yield [Entry(line)]


_AMPERSAND: Final = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9A-Fa-f]{1,6});)")
_NUMERIC: Final = re.compile(r"&#(?:([0-9]{1,7})|x([0-9A-Fa-f]{1,6}));")
_XML_CHARACTER: Final = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""A character that XML may have (https://www.w3.org/TR/xml/#charsets)."""
_MARKER: Final = 16
"""The maximum length, in characters, of markup that must not be split between two pieces of text.

Such markup is a character reference (`&#xE9;`), `<![CDATA[` or `]]>`."""


def _mended(first: str, texts: Iterator[str]) -> Iterator[str]:
    """Yield the XML text, and escape each `&` that does not begin a valid reference. CDATA sections stay unchanged.

    The parser would stop at a bare `&` in a URL, and at an entity of HTML such as `&nbsp;`. It would also stop at a
    numeric reference to a character that XML does not have, so such a reference becomes a space. `first`: the first
    piece of the text, `texts`: the following ones.
    """
    held, in_cdata = "", False
    for text in chain((first,), texts):
        held += text
        cut = len(held) - _MARKER
        if cut <= 0:
            continue
        # Nothing that begins before the cut may end after it.
        begun = max(held.rfind(char, max(0, cut - _MARKER), cut) for char in "&<]")
        if begun >= 0:
            cut = begun - 1 if held[begun - 1 : begun] == "]" else begun
        mended, in_cdata = _escaped(held[:cut], in_cdata)
        held = held[cut:]
        yield mended
    yield _escaped(held, in_cdata)[0]


def _escaped(text: str, in_cdata: bool) -> tuple[str, bool]:
    if "&" not in text and "<![CDATA[" not in text and not in_cdata:
        return text, False
    parts: list[str] = []
    at = 0
    while True:
        if in_cdata:
            end = text.find("]]>", at)
            parts.append(text[at:] if end < 0 else text[at:end])
        else:
            end = text.find("<![CDATA[", at)
            part = _AMPERSAND.sub("&amp;", text[at:] if end < 0 else text[at:end])
            parts.append(_NUMERIC.sub(_valid, part) if "&#" in part else part)
        if end < 0:
            return "".join(parts), in_cdata
        in_cdata, at = not in_cdata, end + 3
        parts.append(text[end:at])


def _valid(reference: re.Match[str]) -> str:
    """Return a numeric reference unchanged, or a space if XML does not have its character."""
    decimal, hexadecimal = reference.groups()
    number = int(decimal) if decimal is not None else int(hexadecimal, 16)
    return reference[0] if number <= sys.maxunicode and _XML_CHARACTER.match(chr(number)) else " "
