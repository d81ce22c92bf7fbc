"""Detects a page's encoding: by byte order mark, then the Content-Type header, then the page's own declaration.

Labels have their meanings in the WHATWG Encoding Standard, so `latin1` and `ascii` mean windows-1252. The meta element
is located by the prescan of the HTML standard. A page without a declaration is UTF-8 if its bytes are valid UTF-8, else
windows-1252. Functions return names of Python codecs, each of which decodes any bytes with `errors="replace"`. The
codecs `whatwg_...` are those of `windows_codecs`.
"""

import re
from typing import Final

import workers.parse.windows_codecs  # noqa: F401  # registers the codecs
from workers.parse.mime import XHTML_TYPES, parse_content_type
from workers.parse.scanner import scan_tags
from workers.parse.start_tags import ATTRIBUTE

_PRESCAN_BYTES: Final = 1024
_LATE_BYTES: Final = 64 * 1024
"""How many bytes at the start of a page are searched for a meta element if the prescan finds none, as in browsers."""

# Python codec -> the labels of the WHATWG encoding that it implements.
_LABELS: Final[dict[str, str]] = {
    "utf-8": "unicode-1-1-utf-8 unicode11utf8 unicode20utf8 utf-8 utf8 x-unicode20utf8",
    "cp866": "866 cp866 csibm866 ibm866",
    "iso8859-2": "csisolatin2 iso-8859-2 iso-ir-101 iso8859-2 iso88592 iso_8859-2 iso_8859-2:1987 l2 latin2",
    "iso8859-3": "csisolatin3 iso-8859-3 iso-ir-109 iso8859-3 iso88593 iso_8859-3 iso_8859-3:1988 l3 latin3",
    "iso8859-4": "csisolatin4 iso-8859-4 iso-ir-110 iso8859-4 iso88594 iso_8859-4 iso_8859-4:1988 l4 latin4",
    "iso8859-5": "csisolatincyrillic cyrillic iso-8859-5 iso-ir-144 iso8859-5 iso88595 iso_8859-5 iso_8859-5:1988",
    "iso8859-6": "arabic asmo-708 csiso88596e csiso88596i csisolatinarabic ecma-114 iso-8859-6 iso-8859-6-e "
    "iso-8859-6-i iso-ir-127 iso8859-6 iso88596 iso_8859-6 iso_8859-6:1987",
    "iso8859-7": "csisolatingreek ecma-118 elot_928 greek greek8 iso-8859-7 iso-ir-126 iso8859-7 iso88597 iso_8859-7 "
    "iso_8859-7:1987 sun_eu_greek",
    "iso8859-8": "csiso88598e csisolatinhebrew hebrew iso-8859-8 iso-8859-8-e iso-ir-138 iso8859-8 iso88598 iso_8859-8 "
    "iso_8859-8:1988 visual csiso88598i iso-8859-8-i logical",
    "iso8859-10": "csisolatin6 iso-8859-10 iso-ir-157 iso8859-10 iso885910 l6 latin6",
    "iso8859-13": "iso-8859-13 iso8859-13 iso885913",
    "iso8859-14": "iso-8859-14 iso8859-14 iso885914",
    "iso8859-15": "csisolatin9 iso-8859-15 iso8859-15 iso885915 iso_8859-15 l9",
    "iso8859-16": "iso-8859-16",
    "koi8-r": "cskoi8r koi koi8 koi8-r koi8_r",
    "koi8-u": "koi8-ru koi8-u",
    "mac-roman": "csmacintosh mac macintosh x-mac-roman",
    "whatwg_cp874": "dos-874 iso-8859-11 iso8859-11 iso885911 tis-620 windows-874",
    "whatwg_cp1250": "cp1250 windows-1250 x-cp1250",
    "whatwg_cp1251": "cp1251 windows-1251 x-cp1251",
    "whatwg_cp1252": "ansi_x3.4-1968 ascii cp1252 cp819 csisolatin1 ibm819 iso-8859-1 iso-ir-100 iso8859-1 iso88591 "
    "iso_8859-1 iso_8859-1:1987 l1 latin1 us-ascii windows-1252 x-cp1252 x-user-defined",
    "whatwg_cp1253": "cp1253 windows-1253 x-cp1253",
    "whatwg_cp1254": "cp1254 csisolatin5 iso-8859-9 iso-ir-148 iso8859-9 iso88599 iso_8859-9 iso_8859-9:1989 l5 latin5 "
    "windows-1254 x-cp1254",
    "whatwg_cp1255": "cp1255 windows-1255 x-cp1255",
    "cp1256": "cp1256 windows-1256 x-cp1256",
    "whatwg_cp1257": "cp1257 windows-1257 x-cp1257",
    "whatwg_cp1258": "cp1258 windows-1258 x-cp1258",
    "mac-cyrillic": "x-mac-cyrillic x-mac-ukrainian",
    "gb18030": "chinese csgb2312 csiso58gb231280 gb2312 gb_2312 gb_2312-80 gbk iso-ir-58 x-gbk gb18030",
    "big5hkscs": "big5 big5-hkscs cn-big5 csbig5 x-x-big5",
    "euc_jp": "cseucpkdfmtjapanese euc-jp x-euc-jp",
    "iso2022_jp": "csiso2022jp iso-2022-jp",
    "cp932": "csshiftjis ms932 ms_kanji shift-jis shift_jis sjis windows-31j x-sjis",
    "cp949": "cseuckr csksc56011987 euc-kr iso-ir-149 korean ks_c_5601-1987 ks_c_5601-1989 ksc5601 ksc_5601 "
    "windows-949",
    # WHATWG's "replacement": encodings that can hide markup. Only their ASCII part is decoded.
    "ascii": "csiso2022kr hz-gb-2312 iso-2022-cn iso-2022-cn-ext iso-2022-kr replacement",
    "utf-16-be": "unicodefffe utf-16be",
    "utf-16-le": "csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff utf-16 utf-16le",
}
_CODECS: Final = {label: codec for codec, labels in _LABELS.items() for label in labels.split()}

_BOMS: Final = ((b"\xef\xbb\xbf", "utf-8"), (b"\xfe\xff", "utf-16-be"), (b"\xff\xfe", "utf-16-le"))
_NOT_ASCII_BASED: Final = frozenset(("utf-16-be", "utf-16-le", "iso2022_jp"))

_CONTENT: Final = re.compile(
    rb"charset[ \t\n\f\r]*=[ \t\n\f\r]*(?:\"([^\"]*)\"|'([^']*)'|([^ \t\n\f\r;\"']+))", re.IGNORECASE
)
_XML_DECLARATION: Final = re.compile(
    rb"<\?xml[ \t\n\r][^>]{0,256}?encoding[ \t\n\r]*=[ \t\n\r]*(?:\"([^\">]*)\"|'([^'>]*)')"
)
_MARKUP: Final = re.compile(rb"<(?:!--|([!?])|/?([a-zA-Z][^ \t\n\f\r/>]*+)|/)")


def codec_of(label: str) -> str | None:
    """Return the Python codec for a WHATWG encoding label, None for an unknown one.

    Case and space around it are ignored.
    """
    return _CODECS.get(label.strip(" \t\n\f\r").lower())


def is_ascii_based(codec: str) -> bool:
    """Return True if tags can be found in a page in `codec` without decoding the page.

    This needs a codec in which the bytes of `<`, `>`, `=`, quotes and spaces never belong to another character. UTF-8
    is such a codec, UTF-16 is not.
    """
    return codec not in _NOT_ASCII_BASED


def sniff(body: bytes, content_type: str | None) -> str:
    """Return the Python codec of the page `body` that came with the header `content_type`. Never raises."""
    for mark, codec in _BOMS:
        if body.startswith(mark):
            return codec
    declared = parse_content_type(content_type)
    if declared.charset is not None and (codec_found := codec_of(declared.charset)) is not None:
        return codec_found
    by_declaration, by_meta = _declared_by_xml(body), _prescan(body[:_PRESCAN_BYTES])
    first, second = (by_declaration, by_meta) if declared.essence in XHTML_TYPES else (by_meta, by_declaration)
    own = first or second or _declared_late(body)
    return own or ("utf-8" if _is_utf8(body) else "whatwg_cp1252")


def _declared_by_xml(body: bytes) -> str | None:
    """Return the codec for the encoding that the XML declaration at the beginning of `body` names.

    Return None if there is no such declaration, or its encoding is unknown.
    """
    match = _XML_DECLARATION.match(body)
    return None if match is None else _of_ascii_markup(match[1] or match[2])


def _declared_late(body: bytes) -> str | None:
    """Search the first `_LATE_BYTES` of the page for a meta element with a known encoding. Return its codec.

    The first such element decides. Meta elements in comments and scripts are skipped. Return None if there is no such
    element. Also return None for a page of at most `_PRESCAN_BYTES`: the prescan has already searched all of it.
    """
    head = body[:_LATE_BYTES]
    if len(body) <= _PRESCAN_BYTES or b"charset" not in head.lower():
        return None
    for tag in scan_tags(head).tags:
        if tag[:4].lower() == b"meta":
            attributes, _ = _attributes(tag, 4)
            if (codec := _declared_by_meta(attributes)) is not None:
                return codec
    return None


def _is_utf8(body: bytes) -> bool:
    """Return True if `body` is valid UTF-8. An incomplete character at the end is ignored."""
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


def _prescan(head: bytes) -> str | None:
    """Return the codec for the encoding that a meta element in `head` names, by the prescan of the HTML standard.

    Return None if there is none.
    https://html.spec.whatwg.org/multipage/parsing.html#prescan-a-byte-stream-to-determine-its-encoding
    """
    if b"charset" not in head.lower():
        return None
    position = 0
    while (match := _MARKUP.search(head, position)) is not None:
        position = match.end()
        if match[0] == b"<!--":
            at = head.find(b"-->", match.start() + 2)
            if at < 0:
                return None
            position = at + 3
        elif match[2] is None:
            at = head.find(b">", position)
            if at < 0:
                return None
            position = at + 1
        else:
            attributes, position = _attributes(head, position)
            if position < 0:
                return None
            if match[2].lower() == b"meta" and (codec := _declared_by_meta(attributes)) is not None:
                return codec
    return None


def _attributes(head: bytes, position: int) -> tuple[dict[bytes, bytes], int]:
    """Return the attributes of the tag whose name ends at `position`, and the position after its `>`.

    The position is -1 if the tag does not end. If an attribute is repeated, its first value is returned.
    """
    attributes: dict[bytes, bytes] = {}
    while (match := ATTRIBUTE.match(head, position)) is not None:
        position = match.end()
        if match["end"] is not None:
            return attributes, position
        if match["open"] is not None:
            break
        attributes.setdefault(match["name"].lower(), match["double"] or match["single"] or match["bare"] or b"")
    return attributes, -1


def _declared_by_meta(attributes: dict[bytes, bytes]) -> str | None:
    label = attributes.get(b"charset")
    if label is None and attributes.get(b"http-equiv", b"").lower() == b"content-type":
        match = _CONTENT.search(attributes.get(b"content", b""))
        label = None if match is None else match[1] or match[2] or match[3]
    if label is None:
        return None
    return _of_ascii_markup(label)


def _of_ascii_markup(label: bytes) -> str | None:
    """Return the codec for the encoding that a page names in its own markup. Return None if it is unknown.

    If `label` names UTF-16, the label is wrong, and the codec for UTF-8 is returned. The label was found by searching
    for ASCII text, which a page that really is UTF-16 does not have.
    """
    codec = codec_of(label.decode("latin-1"))
    return "utf-8" if codec in ("utf-16-be", "utf-16-le") else codec
