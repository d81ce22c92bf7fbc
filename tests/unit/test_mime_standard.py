"""MIME Sniffing and Fetch as data: each case has the section that it comes from.

Where a server's mistake is plain, `workers.parse.mime` believes what it means. Those cases are in `MEANT`, with what
the standards give.
"""

from typing import Final

import pytest

from workers.parse.charset import codec_of
from workers.parse.mime import Media, classify, parse_content_type

# https://fetch.spec.whatwg.org/#concept-header-extract-mime-type: the values of Content-Type headers, then the essence
# and the charset. The first seven are its examples, others are its algorithm step by step.
EXTRACTED: Final = (
    (("text/plain;charset=gbk, text/html",), "text/html", None),
    (("text/html;charset=gbk;a=b, text/html;x=y",), "text/html", "gbk"),
    (("text/html;charset=gbk;a=b", "text/html;x=y"), "text/html", "gbk"),
    (("text/html;charset=gbk", "x/x", "text/html;x=y"), "text/html", None),
    (("text/html", "cannot-parse"), "text/html", None),
    (("text/html", "*/*"), "text/html", None),
    (("text/html", ""), "text/html", None),
    (("", "text/plain"), "text/plain", None),
    (("text/html", "text/plain"), "text/plain", None),
    (("text/plain;charset=gbk", "text/html;charset=windows-1254"), "text/html", "windows-1254"),
    (("text/plain;charset=gbk", "text/plain"), "text/plain", "gbk"),
    (("text/plain;charset=gbk", "text/plain;charset=windows-1252"), "text/plain", "windows-1252"),
    (("text/plain;charset=gbk;x=foo", "text/plain"), "text/plain", "gbk"),
    (("text/html;charset=gbk", "text/plain", "text/html"), "text/html", None),
    (("text/html;charset=gbk", 'text/html;x=",text/plain'), "text/html", "gbk"),
    (("*/*", "text/html"), "text/html", None),
    (("text/html", "*/*;charset=gbk"), "text/html", None),
    (("text/html", "*/* ;charset=gbk"), "text/html", None),
    (('text/html;x="', "text/plain"), "text/html", None),
    (('text/html;"', "text/plain"), "text/html", None),
    (('text/html;"', '\\"', "text/plain"), "text/html", None),
    (('text/html;"', '\\"', "text/plain", '";charset=GBK'), "text/html", "GBK"),
)

# https://mimesniff.spec.whatwg.org/#parsing-a-mime-type, step by step.
PARSED: Final = (
    ("text/html", "text/html", None),
    ("TEXT/HTML;CHARSET=GBK", "text/html", "GBK"),
    (" \t\r\ntext/html \t;charset=gbk", "text/html", "gbk"),
    ("text/html;charset=gbk;charset=windows-1255", "text/html", "gbk"),
    ("text/html;charset=();charset=GBK", "text/html", "()"),
    ("text/html;charset=gbk(", "text/html", "gbk("),
    ("text/html;x=(;charset=gbk", "text/html", "gbk"),
    ("text/html; charset=gbk", "text/html", "gbk"),
    ("text/html;charset=gbk;", "text/html", "gbk"),
    ("text/html;;;;charset=gbk", "text/html", "gbk"),
    ("text/html;test;charset=gbk", "text/html", "gbk"),
    ("text/html;test=;charset=gbk", "text/html", "gbk"),
    ("text/html;=x;charset=gbk", "text/html", "gbk"),
    ('text/html;charset="gbk"', "text/html", "gbk"),
    ('text/html;charset="gbk', "text/html", "gbk"),
    ('text/html;charset="gbk"x', "text/html", "gbk"),
    ('text/html;charset="\\ gbk"', "text/html", " gbk"),
    ('text/html;charset="\\g\\b\\k"', "text/html", "gbk"),
    ('text/html;charset="";charset=GBK', "text/html", ""),
    ('text/html;charset=";charset=foo";charset=GBK', "text/html", ";charset=foo"),
    ("x/x;charset=utf-8", "x/x", "utf-8"),
    ("!#$%&'*+-.^_`|~09/!#$%&'*+-.^_`|~09;charset=gbk", "!#$%&'*+-.^_`|~09/!#$%&'*+-.^_`|~09", "gbk"),
    ("", "", None),
    ("\t", "", None),
    ("/", "", None),
    ("bogus", "", None),
    ("bogus/", "", None),
    ("/bogus", "", None),
    ("text /html", "", None),
    ("()/x", "", None),
)

# A value, what it is taken for, and what the standards give: "" is no type.
MEANT: Final = (
    ("text/html charset=utf-8", ("text/html", "utf-8"), ("", None)),
    ("text/html:charset=koi8-r", ("text/html", "koi8-r"), ("", None)),
    ("text/html/", ("text/html", None), ("", None)),
    ("text/html;charset='gbk'", ("text/html", "gbk"), ("text/html", "'gbk'")),
    ("text/html;charset =gbk", ("text/html", "gbk"), ("text/html", None)),
)

_NOT_TEXT: Final = b"\0\1\2\3"

# https://mimesniff.spec.whatwg.org/#matching-an-image-type-pattern and the tables behind it.
BINARY: Final = {
    "§6.1 icon": b"\0\0\1\0",
    "§6.1 cursor": b"\0\0\2\0",
    "§6.1 BMP": b"BM" + _NOT_TEXT,
    "§6.1 GIF 87": b"GIF87a",
    "§6.1 GIF 89": b"GIF89a",
    "§6.1 WebP": b"RIFF\x24\x10\x01\x01WEBPVP",
    "§6.1 PNG": b"\x89PNG\r\n\x1a\n",
    "§6.1 JPEG": b"\xff\xd8\xff",
    "§6.2 AIFF": b"FORM\0\0\x10\0AIFF",
    "§6.2 MP3 with ID3": b"ID3\x03\0\0",
    "§6.2 Ogg": b"OggS\0",
    "§6.2 MIDI": b"MThd\0\0\0\6",
    "§6.2 AVI": b"RIFF\x24\x10\x01\x01AVI ",
    "§6.2 WAVE": b"RIFF\x24\x10\x01\x01WAVE",
    "§6.2.1 MP4": b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom",
    "§6.2.2 WebM": b"\x1aE\xdf\xa3\x9f\x42\x82\x84webm",
    "§6.2.3 MP3": b"\xff\xfb\x90\x64\0\0",
    "§6.3 EOT": b"\x10\x20\0\0" + b"\1" * 30 + b"LP",
    "§6.3 TrueType": b"\0\1\0\0",
    "§6.3 OpenType": b"OTTO\0\x0b",
    "§6.3 collection": b"ttcf\0\1",
    "§6.3 WOFF": b"wOFF\0\1\0\0",
    "§6.3 WOFF 2": b"wOF2\0\1\0\0",
    "§6.4 gzip": b"\x1f\x8b\x08",
    "§6.4 ZIP": b"PK\x03\x04",
    "§6.4 RAR": b"Rar \x1a\x07\0",
    "§6.4 RAR as it is": b"Rar!\x1a\x07\0",
    "§7.1 PDF": b"%PDF-",
    "§7.1 PostScript": b"%!PS-Adobe-",
    **{
        f"§3 binary data byte {byte:02x}": b"a" + bytes((byte,))
        for byte in (*range(9), 11, *range(14, 27), *range(28, 32))
    },
}

TEXT: Final = {
    "§7.1 UTF-16 BE": b"\xfe\xff\0a",
    "§7.1 UTF-16 LE": b"\xff\xfea\0",
    "§7.1 UTF-8": b"\xef\xbb\xbf\0",
    "§7.1 nothing": b"",
    "§7.1 words": b"BM, GIF and PK are letters",
    "§3 tab, line feed, form feed, carriage return, escape": b"a\t\n\f\r\x1b",
}

TAGS: Final = (
    *("<!DOCTYPE HTML", "<HTML", "<HEAD", "<SCRIPT", "<IFRAME", "<H1", "<DIV", "<FONT", "<TABLE", "<A", "<STYLE"),
    *("<TITLE", "<B", "<BODY", "<BR", "<P"),
)
"""§7.1: each is followed by a tag-terminating byte, in any case, behind white space."""


@pytest.mark.parametrize(("values", "essence", "charset"), EXTRACTED)
def test_content_types_are_extracted_as_fetch_says(values: tuple[str, ...], essence: str, charset: str | None) -> None:
    assert parse_content_type(", ".join(values)) == (essence, charset)


@pytest.mark.parametrize(("value", "essence", "charset"), PARSED)
def test_content_type_is_parsed_as_mime_sniffing_says(value: str, essence: str, charset: str | None) -> None:
    assert parse_content_type(value) == (essence, charset)


@pytest.mark.parametrize(("value", "meant", "standard"), MEANT)
def test_plain_mistake_in_a_content_type_is_understood(
    value: str, meant: tuple[str, str | None], standard: tuple[str, str | None]
) -> None:
    assert parse_content_type(value) == meant != standard


@pytest.mark.parametrize("value", ["text/html;charset= gbk", 'text/html;charset="\tgbk "', "text/html;charset=GBK"])
def test_label_of_a_charset_is_found_within_space_in_any_case(value: str) -> None:
    """https://encoding.spec.whatwg.org/#concept-encoding-get"""
    charset = parse_content_type(value).charset
    assert charset is not None
    assert codec_of(charset) == "gb18030"


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("declared", [None, "text/plain", "unknown/unknown"])
def test_binary_pattern_of_mime_sniffing_is_no_text(name: str, declared: str | None) -> None:
    assert classify(BINARY[name], declared) is Media.OTHER


@pytest.mark.parametrize("name", TEXT)
def test_text_without_a_type_is_text(name: str) -> None:
    assert classify(TEXT[name], None) is Media.TEXT


@pytest.mark.parametrize("declared", [None, "unknown/unknown", "application/unknown", "*/*"])
@pytest.mark.parametrize("tag", TAGS)
def test_tag_of_mime_sniffing_makes_html_of_the_unknown(tag: str, declared: str | None) -> None:
    for start in (tag, tag.lower()):
        for body in (f"{start} x", f"{start}>", f"\t\n\f\r {start}>"):
            assert classify(body.encode(), declared) is Media.HTML
        assert classify(f"{start}x>".encode(), declared) is Media.TEXT
        assert classify(f"x{start}>".encode(), declared) is Media.TEXT
        assert classify(f"{start}>\0".encode(), declared) is Media.HTML, "the first table decides"


def test_comment_and_xml_declaration_are_known_by_their_first_bytes() -> None:
    """§7.1"""
    assert classify(b" <!--x", None) is Media.HTML
    assert classify(b"\n<?xml version", None) is Media.XML
    assert classify(b"<?XML version", None) is Media.TEXT
    assert classify(b"<!-x", None) is Media.TEXT


@pytest.mark.parametrize(
    ("declared", "media"),
    [
        ("text/html", Media.HTML),
        ("application/xhtml+xml", Media.HTML),
        ("text/xml", Media.XML),
        ("application/xml", Media.XML),
        ("image/svg+xml", Media.XML),
        ("application/atom+xml", Media.XML),
        ("text/plain", Media.TEXT),
        ("text/css", Media.TEXT),
        ("application/octet-stream", Media.OTHER),
        ("image/png", Media.OTHER),
        ("application/json", Media.OTHER),
    ],
)
def test_declared_type_is_not_sniffed_away(declared: str, media: Media) -> None:
    """§7: a supplied type stands, whatever the resource looks like."""
    assert classify(b"<!DOCTYPE html><a href=/x>", declared) is media
