"""Resolves character references (`&amp;`). The rules for attribute values differ from those for text."""

import re
from html.entities import html5
from typing import Final

_REFERENCE: Final = re.compile(r"&(?:#([0-9]+);?|#[xX]([0-9a-fA-F]+);?|([A-Za-z][A-Za-z0-9]*;?))")
_MAX_DIGITS: Final = 7
"""The maximum number of digits, without leading zeros, of a numeric reference that names a Unicode character."""


_LONGEST_LEGACY: Final = max(len(name) for name in html5 if not name.endswith(";"))


def attribute_text(raw: bytes, codec: str, *, separator: str = "\ufffd") -> str:
    """Return the value of an attribute as text: decoded from `codec`, character references resolved, line ends LF.

    Invalid bytes become U+FFFD. Each NUL byte becomes `separator`, which by default is U+FFFD, too.

    If `separator` is NUL, the NUL bytes stay as they are. So one call can convert many values: join the values by NUL,
    and split the result at NUL.
    """
    text = raw.decode(codec, "replace")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "&" in text:
        text = _REFERENCE.sub(_in_attribute, text)
    return text.replace("\0", separator) if separator != "\0" and "\0" in text else text


def plain_text(raw: bytes, codec: str) -> str:
    """Return the text of an element, decoded from `codec`, with its character references resolved."""
    return _REFERENCE.sub(_in_text, raw.decode(codec, "replace")).replace("\0", "\ufffd")


def _in_attribute(match: re.Match[str]) -> str:
    decimal, hexadecimal, name = match.groups()
    if name is None:
        return _numbered(decimal, hexadecimal)
    # A reference without a semicolon counts only if no `=`, letter or digit follows. So the parameter `copy` of
    # `?a=1&copy=2` stays unchanged. (The expression matches all letters and digits that follow.)
    if not name.endswith(";") and match.string.startswith("=", match.end()):
        return match[0]
    return html5.get(name, match[0])


def _in_text(match: re.Match[str]) -> str:
    decimal, hexadecimal, name = match.groups()
    if name is None:
        return _numbered(decimal, hexadecimal)
    if name in html5:
        return html5[name]
    for length in range(min(len(name), _LONGEST_LEGACY), 1, -1):
        if (character := html5.get(name[:length])) is not None:
            return character + name[length:]
    return match[0]


def _numbered(decimal: str | None, hexadecimal: str | None) -> str:
    return _character(decimal, 10) if decimal is not None else _character(hexadecimal or "", 16)


def _character(digits: str, base: int) -> str:
    digits = digits.lstrip("0")
    number = int(digits, base) if 0 < len(digits) <= _MAX_DIGITS else 0
    if number == 0 or number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        return "\ufffd"
    if 0x80 <= number <= 0x9F:  # authors mean windows-1252, as browsers assume
        return bytes((number,)).decode("cp1252", "ignore") or chr(number)
    return chr(number)
