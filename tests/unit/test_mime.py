"""What is plainly no text is never parsed as a page, whatever it is declared to be."""

import pytest

from workers.parse.mime import Media, classify


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        ("text/html", b"anything", Media.HTML),
        ("Text/HTML ; charset=utf-8", b"", Media.HTML),
        ("application/xhtml+xml", b"<html/>", Media.HTML),
        ("text/html", b"%PDF-1.7 <a href=/x>", Media.OTHER),
        ("text/html", b"\x89PNG\r\n\x1a\n<a href=/x>", Media.OTHER),
        ("text/html", b"<a href=/x>\0\0", Media.OTHER),
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
