"""Prepares XHTML for a parser of HTML, which takes `<script/>` for the start of an element without an end."""

import re
from html import escape
from typing import Final

_ATTRIBUTES: Final = r"(?:[^<>\"'/]++|\"[^\"]*+\"|'[^']*+'|/(?!>))*+"
# What is skipped comes first: comments, instructions, and scripts and styles with content.
_MARKUP: Final = re.compile(
    rf"<!--.*?(?:-->|\Z)|<\?.*?(?:\?>|\Z)|<(?i:script|style)(?=[\s>]){_ATTRIBUTES}>.*?(?:</(?i:script|style)|\Z)"
    rf"|<!\[CDATA\[(.*?)(\]\]>|\Z)|<([A-Za-z_][^\s<>\"'/]*+)({_ATTRIBUTES})(/?)>",
    re.DOTALL,
)
_VOID: Final = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr")
)
"""The elements that have no end tag in HTML."""


def as_html(xhtml: str) -> str:
    """Return the page with an end tag for each empty element: `<a id="x"/>` becomes `<a id="x"></a>`.

    The void elements of HTML stay unchanged. CDATA sections outside scripts and styles become text. A CDATA section
    without an end, and a slash at the end of a value without quotes, are read as HTML.
    """
    return _MARKUP.sub(_rewritten, xhtml)


def _rewritten(match: re.Match[str]) -> str:
    text, end, name, attributes, slash = match.groups()
    if end:
        return escape(text, quote=False)
    if not slash or name.lower() in _VOID or _ends_unquoted(attributes):
        return match[0]
    return f"<{name}{attributes}></{name}>"


def _ends_unquoted(attributes: str) -> bool:
    """Return True if the attributes end with a value without quotes, such as ` href=/docs`."""
    words = attributes.split()
    return bool(words) and "=" in words[-1] and attributes[-1] not in "\"' \t\n\r\f"
