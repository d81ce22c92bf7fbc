"""The visible text of an HTML page as lines, for comparing two versions of it. The time is linear in the page size.

This is no parser: it removes comments, scripts, styles and tags, and breaks lines where block elements begin or end.
Malformed markup is no error. Two pages with the same text in the same blocks give the same lines.
"""

import re
from html import unescape
from typing import Final

MAX_BYTES: Final = 4 << 20
"""The maximum number of bytes of a page that are compared. The rest of a longer page is ignored."""

_HIDDEN: Final = ("script", "style", "template", "noscript", "svg", "head")
_TAG: Final = re.compile(r"<(?:!--|(/?)([a-zA-Z][a-zA-Z0-9-]*)|[!?])")
_INLINE: Final = frozenset(
    (
        *("a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i"),
        *("ins", "kbd", "label", "mark", "q", "rp", "rt", "ruby", "s", "samp", "small", "span", "strike", "strong"),
        *("sub", "sup", "time", "tt", "u", "var", "wbr"),
    )
)
_BREAK: Final = "\x00"
_SPACE: Final = re.compile(r"[ \t\r\n\f\u00a0]+")


def visible_text(body: bytes, charset: str = "utf-8") -> list[str]:
    """Return the visible text of an HTML page: one line for each block, without empty ones.

    `charset` is a name of a codec; an unknown one is read as Latin-1.
    """
    return text_lines(decoded(body, charset))


def decoded(body: bytes, charset: str) -> str:
    """Return the first MAX_BYTES of a body as text. Bytes that are not valid in `charset` become U+FFFD.

    If there is no such charset, Latin-1 is used.
    """
    try:
        return body[:MAX_BYTES].decode(charset, "replace")
    except LookupError:
        return body[:MAX_BYTES].decode("latin-1")


def text_lines(html: str) -> list[str]:
    """Return the visible text of HTML source, one line for each block, without empty lines."""
    parts: list[str] = []
    ends: dict[str, list[int]] = {}
    at = 0
    html = html.replace(_BREAK, " ")
    while at < len(html):
        match = _TAG.search(html, at)
        if match is None:
            parts.append(html[at:])
            break
        parts.append(html[at : match.start()])
        closing, name = match[1], (match[2] or "").lower()
        if match[0] == "<!--":
            at = _behind(html, "-->", match.end())
            continue
        at = _behind(html, ">", match.end())
        if name and name not in _INLINE:
            parts.append(_BREAK)
        if name in _HIDDEN and not closing:
            at = _hidden_end(html, name, at, ends)
    lines = (_SPACE.sub(" ", unescape(line)).strip() for line in "".join(parts).split(_BREAK))
    return [line for line in lines if line]


def _behind(html: str, end: str, at: int) -> int:
    found = html.find(end, at)
    return len(html) if found < 0 else found + len(end)


def _hidden_end(html: str, name: str, at: int, ends: dict[str, list[int]]) -> int:
    """Return the position of the first end tag of the element `name` at or after `at`. Return `at` if there is none.

    `ends`: a cache of the positions of end tags in `html`, by the element's name. The function fills it.
    """
    found = ends.get(name)
    if found is None:
        found = ends[name] = [each.start() for each in re.finditer(f"</{name}", html, re.IGNORECASE)][::-1]
    while found and found[-1] < at:
        found.pop()
    return found[-1] if found else at
