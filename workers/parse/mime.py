"""Whether a body is a page: its declared type, corrected by its first bytes."""

import re
from enum import StrEnum
from typing import Final


class Media(StrEnum):
    """What a body is, as far as the crawl cares."""

    HTML = "html"
    XML = "xml"
    TEXT = "text"
    OTHER = "other"
    """Anything else, and anything declared as text that is not text."""


HTML_TYPES: Final = frozenset(("text/html", "application/xhtml+xml", "application/vnd.wap.xhtml+xml"))
XML_TYPES: Final = frozenset(("text/xml", "application/xml"))
_UNDECLARED: Final = frozenset(("", "unknown/unknown", "application/unknown", "*/*"))

_SNIFFED_BYTES: Final = 1445
"""The resource header of https://mimesniff.spec.whatwg.org/#reading-the-resource-header"""

_BINARY_MAGIC: Final = (
    b"%PDF-", b"%!PS-Adobe-", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"\xff\xd8\xff", b"BM\x00", b"RIFF",
    b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf\x27\x1c",
    b"Rar!\x1a\x07", b"\x7fELF", b"MZ\x90\x00", b"\xca\xfe\xba\xbe", b"OggS", b"fLaC", b"ID3", b"wOFF", b"wOF2",
    b"OTTO", b"\x00\x01\x00\x00", b"\x00\x00\x01\x00", b"\x1aE\xdf\xa3", b"\x00asm", b"SQLite format 3\x00",
    b"II*\x00", b"MM\x00*", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
)  # fmt: skip
_WIDE_BOMS: Final = (b"\xfe\xff", b"\xff\xfe")
_HTML_SIGNATURE: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?[ \t\n\f\r]*<(?:!doctype html|html|head|script|iframe|h1|div|font|table|a|style|title|b|body"
    rb"|br|p|!--)(?:[ \t\n\f\r>]|(?<=--))",
    re.IGNORECASE,
)
_XML_SIGNATURE: Final = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\n\f\r]*<\?xml")


def media_type(content_type: str | None) -> str:
    """The essence of a Content-Type header (`type/subtype`, lower case), empty where it declares none."""
    essence = (content_type or "").partition(";")[0].strip().lower()
    return essence if "/" in essence else ""


def classify(body: bytes, content_type: str | None) -> Media:
    """What `body` is. A declared type is believed unless the bytes are plainly no text; an absent one is sniffed.

    After https://mimesniff.spec.whatwg.org/, which never makes HTML of what was declared as something else.
    """
    essence = media_type(content_type)
    if essence not in _UNDECLARED:
        declared = _declared(essence)
        return Media.OTHER if declared is not Media.OTHER and is_binary(body, content_type) else declared
    if is_binary(body, content_type):
        return Media.OTHER
    if _HTML_SIGNATURE.match(body) is not None:
        return Media.HTML
    return Media.XML if _XML_SIGNATURE.match(body) is not None else Media.TEXT


def _declared(essence: str) -> Media:
    if essence in HTML_TYPES:
        return Media.HTML
    if essence in XML_TYPES or essence.endswith("+xml"):
        return Media.XML
    return Media.TEXT if essence.startswith("text/") else Media.OTHER


def is_binary(body: bytes, content_type: str | None) -> bool:
    """Whether the first bytes are those of a known binary format, or hold NUL without being UTF-16."""
    if body.startswith(_BINARY_MAGIC):
        return True
    if body.find(b"\0", 0, _SNIFFED_BYTES) < 0:
        return False
    return not (body.startswith(_WIDE_BOMS) or "utf-16" in (content_type or "").lower())
