"""What is plainly no text is never parsed as a page, whatever it is declared to be."""

import pytest

from tests.support.cpu_time import least_cpu_s
from workers.parse.mime import Media, classify, parse_content_type


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        ("text/html", b"anything", Media.HTML),
        ("Text/HTML ; charset=utf-8", b"", Media.HTML),
        ("application/xhtml+xml", b"<html/>", Media.HTML),
        ("text/html", b"%PDF-1.7 <a href=/x>", Media.OTHER),
        ("text/html", b"\x89PNG\r\n\x1a\n<a href=/x>", Media.OTHER),
        ("text/html", b"\0<a href=/x>\0\0", Media.HTML),
        ("text/html", b"OTTO is a name <a href=/x>", Media.HTML),
        ("text/html", b"ID3 tags explained <a href=/x>", Media.HTML),
        ("text/html", b"BZh <a href=/x>", Media.HTML),
        ("text/html", b"RIFF raff <a href=/x>", Media.HTML),
        ("text/html", b"BZh91AY&SY", Media.OTHER),
        ("text/html", b"ID3\x03\0", Media.OTHER),
        ("text/plain", b"a\0b", Media.OTHER),
        ("text/html charset=utf-8", b"<ul><a href=/x>", Media.HTML),
        ("text/html, text/html", b"<ul>", Media.HTML),
        ("text/html:charset=utf-8", b"<ul>", Media.HTML),
        ("text/html/", b"<ul>", Media.HTML),
        ("text/html", b"\xff\xfe<\0a\0>\0", Media.HTML),
        ("text/html; charset=utf-16", b"<\0a\0>\0", Media.HTML),
        ("application/atom+xml", b"<feed/>", Media.XML),
        ("text/plain", b"<html><a href=/x>", Media.TEXT),
        ("application/octet-stream", b"<html>", Media.OTHER),
        ("image/png", b"<html>", Media.OTHER),
        (None, b"  <!DOCTYPE html><p>", Media.HTML),
        (None, b"\xef\xbb\xbf<!-- x -->", Media.HTML),
        ("nonsense", b"<html lang=en>", Media.HTML),
        (None, b"<?xml version='1.0'?>", Media.XML),
        (None, b"<htmlx>", Media.TEXT),
        (None, b"", Media.TEXT),
        (None, b"GIF89a", Media.OTHER),
    ],
)
def test_a_declared_type_is_believed_unless_the_bytes_are_no_text(
    content_type: str | None, body: bytes, expected: Media
) -> None:
    assert classify(body, content_type) is expected


# From the examples of https://fetch.spec.whatwg.org/#content-type-header and the parsing of MIME types in
# https://mimesniff.spec.whatwg.org/#parsing-a-mime-type, then forms that servers send and the standards refuse.
@pytest.mark.parametrize(
    ("header", "essence", "charset"),
    [
        ("text/plain;charset=gbk, text/html", "text/html", None),
        ("text/html;charset=gbk;a=b, text/html;x=y", "text/html", "gbk"),
        ("text/html;charset=gbk;a=b", "text/html", "gbk"),
        ('text/html;x=",text/plain', "text/html", None),
        ("text/html;charset=gbk, x/x, text/html;x=y", "text/html", None),
        ("text/html, cannot-parse", "text/html", None),
        ("text/html, */*", "text/html", None),
        ("text/html, ", "text/html", None),
        ("TEXT/HTML;CHARSET=GBK", "text/html", "GBK"),
        ("text/html;charset=gbk;charset=windows-1255", "text/html", "gbk"),
        ("text/html;charset=();charset=GBK", "text/html", "()"),
        ("text/html; charset=gbk", "text/html", "gbk"),
        ("\ttext/html \t;charset= gbk ", "text/html", "gbk"),
        ('text/html;charset="gbk"', "text/html", "gbk"),
        ('text/html;charset="g\\bk"', "text/html", "gbk"),
        ('text/html;charset="gbk', "text/html", "gbk"),
        ('text/html;charset="gbk"x', "text/html", "gbk"),
        ("text/html;test;charset=gbk", "text/html", "gbk"),
        ("text/html;charset='gbk'", "text/html", "gbk"),
        ("text/html;", "text/html", None),
        ("x/x;charset=utf-8", "x/x", "utf-8"),
        ("", "", None),
        ("text", "", None),
        ("/html", "", None),
        ("text/html charset=utf-8", "text/html", "utf-8"),
        ("text/html:charset=koi8-r", "text/html", "koi8-r"),
        ("text/html/", "text/html", None),
        ("text/html(comment)", "text/html", None),
    ],
)
def test_a_content_type_is_read_as_the_standards_say_and_servers_mean(
    header: str, essence: str, charset: str | None
) -> None:
    assert parse_content_type(header) == (essence, charset)


@pytest.mark.parametrize(
    "header", ['"' * 100_000, '"\\' * 50_000, ";" * 100_000, "a/b;" + '="' * 50_000, "," * 100_000]
)
def test_a_hostile_content_type_costs_a_bounded_time(header: str) -> None:
    assert least_cpu_s(lambda: parse_content_type(header), enough=1.0) < 1.0
