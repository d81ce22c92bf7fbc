"""Decides what kind of content a response body has, by its declared type, corrected by its first bytes.

The Content-Type is parsed by https://fetch.spec.whatwg.org/#concept-header-extract-mime-type. If that finds no type, a
type at the beginning of a malformed value (`text/html charset=utf-8`, `text/html/`) is used.
"""

import re
from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple


class Media(StrEnum):
    """The kinds of response bodies that the crawler treats differently."""

    HTML = "html"
    XML = "xml"
    TEXT = "text"
    OTHER = "other"
    """Any other content. Also content that is declared as text, but is not text."""


XHTML_TYPES: Final = frozenset(("application/xhtml+xml", "application/vnd.wap.xhtml+xml"))
"""Types of HTML that is parsed like XML: `<script/>` is a complete script element without content.

In other HTML the `/` is ignored, so `<script/>` only begins a script."""

HTML_TYPES: Final = frozenset(("text/html",)) | XHTML_TYPES
XML_TYPES: Final = frozenset(("text/xml", "application/xml"))
UNDECLARED: Final = frozenset(("", "unknown/unknown", "application/unknown", "*/*"))
"""Declared types that say nothing about the content, so the first bytes of the body decide."""


_SNIFFED_BYTES: Final = 1445
"""How many bytes at the start of a body are searched for binary bytes. The specification calls them the resource header
(https://mimesniff.spec.whatwg.org/#reading-the-resource-header)."""

# Signatures of letters include the bytes after them, because a text may begin with the same letters.
_BINARY_MAGIC: Final = re.compile(
    rb"%PDF-|%!PS-Adobe-|\x89PNG\r\n\x1a\n|GIF8[79]a|\xff\xd8\xff|BM\0|RIFF[\s\S]{4}(?:WEBP|WAVE|AVI )"
    rb"|PK[\x03\x05][\x04\x06]|\x1f\x8b|BZh[1-9]1AY&SY|\xfd7zXZ\0|\x28\xb5\x2f\xfd|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07|\x7fELF|MZ\x90\0"
    rb"|\xca\xfe\xba\xbe|OggS\0|fLaC\0|ID3[\x02-\x04]|wOF[F2](?:\0\x01\0\0|OTTO|true)|OTTO\0|\0\x01\0\0|\0\0\x01\0"
    rb"|\x1aE\xdf\xa3|\0asm|SQLite format 3\0|II\*\0|MM\0\*|\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
)
_BINARY_BYTE: Final = re.compile(rb"[\0-\x08\x0b\x0e-\x1a\x1c-\x1f]")
"""Matches a byte that text does not contain (https://mimesniff.spec.whatwg.org/#binary-data-byte)."""

_TEXT_BOMS: Final = (b"\xfe\xff", b"\xff\xfe", b"\xef\xbb\xbf")
_HTML_SIGNATURE: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?[ \t\n\f\r]*<(?:!doctype html|html|head|script|iframe|h1|div|font|table|a|style|title|b|body"
    rb"|br|p|!--)(?:[ \t\n\f\r>]|(?<=--))",
    re.IGNORECASE,
)
_XML_SIGNATURE: Final = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\n\f\r]*<\?xml")


_TOKEN: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_SPACE: Final = " \t\r\n"
_VALUES: Final = re.compile(r"(?:[^\",]|\"(?:[^\"\\]|\\.|\\$)*+(?:\"|$))++", re.DOTALL)
_TYPE: Final = re.compile(rf"({_TOKEN})/({_TOKEN})[ \t\r\n]*(?=;|$)")
_TYPE_AT_START: Final = re.compile(rf"({_TOKEN})/({_TOKEN})")
_PARAMETER: Final = re.compile(r";[ \t\r\n]*([^;=]*)(?:=(?:\"((?:[^\"\\]|\\.)*+)(?:\"[^;]*|\\?$)|([^;]*)))?", re.DOTALL)
_LOOSE_CHARSET: Final = re.compile(r"charset[ \t]*=[ \t]*[\"']?([^ \t;,\"']+)", re.IGNORECASE)


class ContentType(NamedTuple):
    """A parsed Content-Type header.

    `essence`: `type/subtype` in lower case, "" if none is usable. `charset`: its label, or None.
    """

    essence: str = ""
    charset: str | None = None


@lru_cache(1024)
def parse_content_type(value: str | None) -> ContentType:
    """Return the type and charset of a Content-Type header. If there are several headers, `value` joins them by commas.

    Never raises.
    """
    declared = ContentType()
    for part in _VALUES.findall(value or ""):
        part = part.strip(_SPACE)
        match = _TYPE.match(part)
        if match is None or (essence := f"{match[1]}/{match[2]}".lower()) == "*/*":
            continue
        charset = next((label for name, label in _parameters(part[match.end() :]) if name == "charset"), None)
        if charset is None and essence == declared.essence:
            charset = declared.charset
        declared = ContentType(essence, charset)
    if not declared.essence and value and (match := _TYPE_AT_START.match(value.strip(_SPACE))) is not None:
        loose = _LOOSE_CHARSET.search(value)
        return ContentType(match[0].lower(), None if loose is None else loose[1])
    return declared


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    for name, quoted, bare in _PARAMETER.findall(text):
        yield name.strip(_SPACE).lower(), re.sub(r"\\(.)", r"\1", quoted) if quoted else bare.strip(_SPACE).strip("'")


def media_type(content_type: str | None) -> str:
    """Return the `type/subtype` of a Content-Type header in lower case, "" if it declares none."""
    return parse_content_type(content_type).essence


def classify(body: bytes, content_type: str | None) -> Media:
    """Return the kind of a response body: the declared kind, or OTHER if its first bytes are clearly binary.

    If no type is declared, the first bytes decide. See https://mimesniff.spec.whatwg.org/.
    """
    essence = media_type(content_type)
    if essence not in UNDECLARED:
        declared = _declared(essence)
        if declared is Media.HTML:
            return Media.OTHER if _BINARY_MAGIC.match(body) is not None else declared
        return Media.OTHER if declared is not Media.OTHER and is_binary(body, content_type) else declared
    if _HTML_SIGNATURE.match(body) is not None:
        return Media.HTML
    if _XML_SIGNATURE.match(body) is not None:
        return Media.XML
    return Media.OTHER if is_binary(body, content_type) else Media.TEXT


def _declared(essence: str) -> Media:
    if essence in HTML_TYPES:
        return Media.HTML
    if essence in XML_TYPES or essence.endswith("+xml"):
        return Media.XML
    return Media.TEXT if essence.startswith("text/") else Media.OTHER


def is_binary(body: bytes, content_type: str | None) -> bool:
    """Return True if the first bytes of a body are those of a known binary format, or include a non-text byte.

    A non-text byte is allowed in UTF-16 and after a byte order mark.
    """
    if _BINARY_MAGIC.match(body) is not None:
        return True
    if _BINARY_BYTE.search(body, 0, _SNIFFED_BYTES) is None:
        return False
    return not (body.startswith(_TEXT_BOMS) or "utf-16" in (content_type or "").lower())
