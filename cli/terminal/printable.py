"""Escapes text from the web, so that it cannot control the terminal that shows it."""

from typing import Final

_BIDI: Final = frozenset((*range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF))
"""The code points of characters that reorder or hide the text around them."""


def printable(text: str) -> str:
    """Return the text with each character escaped that could control a terminal or hide text, such as `\\x1b`.

    Tabs and line breaks become spaces.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character.isprintable() and ord(character) not in _BIDI:
        return character
    return " " if character in "\t\n\r" else character.encode("unicode_escape").decode("ascii")
