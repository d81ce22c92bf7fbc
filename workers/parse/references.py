"""Character references in attribute values, which are read differently from those in text."""

import re
from html.entities import html5
from typing import Final

_REFERENCE: Final = re.compile(r"&(?:#([0-9]+);?|#[xX]([0-9a-fA-F]+);?|([A-Za-z][A-Za-z0-9]*;?))")
_MAX_DIGITS: Final = 7
"""More significant digits than these are beyond Unicode in either base."""


_LONGEST_LEGACY: Final = max(len(name) for name in html5 if not name.endswith(";"))


def attribute_text(raw: bytes, codec: str, *, separator: str = "\ufffd") -> str:
    """An attribute's value: decoded from `codec` (invalid bytes become U+FFFD), references resolved, line ends LF.

    NUL becomes `separator`: U+FFFD as in a browser, or itself where NULs part several values.
    """
    text = raw.decode(codec, "replace")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "&" in text:
        text = _REFERENCE.sub(_in_attribute, text)
    return text.replace("\0", separator) if separator != "\0" and "\0" in text else text


def plain_text(raw: bytes, codec: str) -> str:
    """Text of an element, as `attribute_text` but with the rule of text for references without a semicolon."""
    return _REFERENCE.sub(_in_text, raw.decode(codec, "replace")).replace("\0", "\ufffd")


def _in_attribute(match: re.Match[str]) -> str:
    decimal, hexadecimal, name = match.groups()
    if name is None:
        return _numbered(decimal, hexadecimal)
    # Without its semicolon a reference counts only where neither `=` nor a letter or digit follows: so the
    # parameter `copy` of `?a=1&copy=2` stays what it is. (The expression takes all letters and digits that follow.)
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
    if 0x80 <= number <= 0x9F:  # what such numbers were always meant to be
        return bytes((number,)).decode("cp1252", "ignore") or chr(number)
    return chr(number)
