"""Prepares XHTML for a parser of HTML, which takes `<script/>` for the start of an element without an end."""

import re
from html import escape
from typing import Final

_ATTRIBUTES: Final = r"(?:[^<>\"'/]++|\"[^\"]*+\"|'[^']*+'|/(?!>))*+"
# What is skipped comes first: comments, instructions, and scripts and styles with content.
_MARKUP: Final = re.compile(
    rf"<!--.*?(?:-->|\Z)|<\?.*?(?:\?>|\Z)|<(?i:script|style)(?=[\s>]){_ATTRIBUTES}>.*?(?:</(?i:script|style)|\Z)"
    rf"|<!\[CDATA\[(.*?)(?:\]\]>|\Z)|<([A-Za-z_][^\s<>\"'/]*+)({_ATTRIBUTES})(/?)>",
    re.DOTALL,
)
_VOID: Final = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr")
)
"""The elements that have no end tag in HTML."""


def as_html(xhtml: str) -> str:
    """Return the page with an end tag for each empty element: `<a id="x"/>` becomes `<a id="x"></a>`.

    The void elements of HTML stay unchanged. CDATA sections outside scripts and styles become text.
    """
    return _MARKUP.sub(_rewritten, xhtml)


def _rewritten(match: re.Match[str]) -> str:
    text, name, attributes, slash = match.groups()
    if text is not None:
        return escape(text, quote=False)
    return f"<{name}{attributes}></{name}>" if slash and name.lower() not in _VOID else match[0]
