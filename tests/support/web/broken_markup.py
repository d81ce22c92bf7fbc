"""Markup that no author wrote: pieces to join at random, pages cut and spoiled, and pages made to cost much."""

import random
from collections.abc import Callable, Sequence
from typing import Final

PIECES: Final = (
    '<a class="x" href="y" title="a>b <a href=no>">', '<a title="<" href="&amp;&copy=1&#0;é" id="i" >',
    '<a href="1" rel="z">',
    '<a href="\r" x="1">', '<a x="1" href="\0">', '<a x="1"href="2" href="3">', '<a href="1" y=2>', '<a href="1"/>',
    "<a href=1>", '<A HREF="2">', "<a href='3' rel=nofollow>", "</a>", "<a", "<a/href=4>", '<a href = "5" >',
    "<a href=6/>", "<a\x00b href=1>", "<a href=7 href=8>", '<a =x href="9">', '<a "href"=10>', '</a href=">">',
    "<ahref=1>", '<a href="', "<area href=11>", '<link href=12 rel="next">', '<meta name=x content="y">',
    "<base href=13>", "<img src=14>", "<!--", "-->", "--!>", "<!-->", "<!--->", "--", "-", "<!", "<?", "</", "<", ">",
    "<!doctype html>", "<![CDATA[", "]]>", "<script>", "</script>", '<script src="x">', "<script/>", "</script >",
    "</scripty>", "<SCRIPT>", "<style>", "</style>", "<title>", "</title>", "<textarea>", "</textarea>", "<xmp>",
    "</xmp>", "<iframe src=15>", "</iframe>", "<plaintext>", "<noscript>", "</noscript>", "<noembed>", "</noembed>",
    "<template>", "</template>", '"', "'", "=", " ", "\n", "\t", "\x0c", "\r", "\x00",
    "\x0b", "x", "é", "href", "href=", 'href="', "='", "/", "&amp;", "&copy=1", "&notit;", "&#65;", "&#x41", "&#0;",
    "&#128;", '<div title="<a href=no>">', "<div title='>'>", '<p class=a"b>', '<b a=b c="d"e=f g>', "<span/>",
    '<div=">', "<imgx src=q>", "<td>", "<table>", "<tr>", "<p>", "<br/>", "<h1 a=1>", '<li\thref="<a href=no>">',
)  # fmt: skip
"""What a scanner has to tell apart; joined in any order they make a document."""

FOREIGN_PIECES: Final = (
    "<svg>", "</svg>", "<svg/>", "<math>", "</math>", "<SVG >", "<svgx>", "<template shadowrootmode=open>",
    "<template a='shadowrootmode=closed'>", '<template shadowrootmode = "closed">', "<template/>", "<TEMPLATE x>",
    "<frame src=1>", "<html lang=x>", "<frameset>", "<source srcset='x 2x'>", "<img srcset=y>", "<![cdata[",
    "<plaintext", "<a" + ' x="1"' * 16 + ' href="2">', "<a" + ' x="1"' * 17 + ' href="2">',
    '<a href="1"' + ' x="2"' * 16 + ">", '<a href="1"' + ' x="2"' * 17 + ">", '<a href="" REL="x">', '<a hreF="x" >',
    "<td>" * 300, "<script>" + "< " * 300 + "</script>", "<a " + "x=1 " * 40 + ">",
)  # fmt: skip
"""What a tree builder reads differently from a scanner, and what lies at the bounds of the scanner's expression."""

HOSTILE: dict[str, Callable[[int], bytes]] = {
    "100,000 levels of div": lambda n: b"<div>" * (n // 5),
    "unclosed formatting": lambda n: b"".join(b"<p><b id=%d>" % i for i in range(n // 14)),
    "formatting to reopen": lambda n: b"".join(b"<b id=%d>" % i for i in range(n // 20)) + b"<p>x" * (n // 10),
    "many attributes": lambda n: b"<a " + b" ".join(b"a%d=1" % i for i in range(n // 9)) + b" href=/x>",
    "many quoted attributes": lambda n: b"<a " + b'a="" ' * (n // 5) + b"href=/x>",
    "one long attribute": lambda n: b'<a href="' + b"x" * n + b'">',
    "one long digit reference": lambda n: b'<a href="&#' + b"9" * n + b'">',
    "many ampersands": lambda n: b'<a href="' + b"&a" * (n // 2) + b'">',
    "long refresh": lambda n: b'<meta http-equiv=refresh content="' + b"0" * n + b'">',
    "long srcset": lambda n: b'<img srcset="' + b"a(" * (n // 2) + b'">',
    "srcset of commas": lambda n: b'<img srcset="' + b"a, " * (n // 3) + b'">',
    "comments never closed": lambda n: b"<!-" * (n // 3) + b"<!--" * (n // 4),
    "dashes": lambda n: b"<!--" + b"- -" * (n // 3),
    "scripts never closed": lambda n: b"<script><!--<script>" * (n // 20),
    "scripts": lambda n: b"<script><</script>" * (n // 18),
    "titles": lambda n: b"<title>x</title>" * (n // 16),
    "self-closing in svg": lambda n: b"<svg>" + b"<script/>" * (n // 9),
    "quotes": lambda n: b'<a "' * (n // 4),
    "unclosed quotes": lambda n: b'<a href="x>' * (n // 11),
    "less-than signs": lambda n: b"<" * n,
    "NULs": lambda n: b"<a\0=\0>" * (n // 6),
    "links": lambda n: b"".join(b"<a href=/%d>" % i for i in range(n // 15)),
}
"""Markup of about n bytes each that costs a tree builder, or a careless scanner, more than its length."""


def joined(draw: random.Random) -> bytes:
    """Return some of the pieces in some order."""
    return "".join(draw.choices(PIECES + FOREIGN_PIECES, k=draw.randint(1, 24))).encode()


def spoiled(draw: random.Random, pages: Sequence[bytes]) -> bytes:
    """Return a part of one of `pages` in which bytes were changed, removed, repeated and put in."""
    page = draw.choice(pages)
    at = draw.randrange(max(1, len(page) - 3000))
    part = bytearray(page[at : at + draw.randint(1, 3000)])
    for _ in range(draw.randint(1, 8)):
        at = draw.randrange(len(part) + 1)
        match draw.randrange(5):
            case 0:
                del part[at : at + draw.randint(1, 20)]
            case 1:
                part[at:at] = draw.choice(PIECES + FOREIGN_PIECES).encode()
            case 2:
                part[at:at] = bytes((draw.choice(b"<>/=\"'! \t\r\n\f-a\0\x80\xff"),))
            case 3:
                part[at:at] = part[at : at + draw.randint(1, 60)]
            case _:
                part[at : at + 12] = part[at : at + 12].swapcase()
    return bytes(part)
