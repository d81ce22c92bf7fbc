"""Finds the URLs that a stylesheet loads: those of `url()` and of `@import`, by the tokens of CSS Syntax Level 3.

The tokens are those of https://www.w3.org/TR/css-syntax-3/#tokenization: comments, strings, escapes, `url(` without
quotes. A URL in `@namespace` is only a name, so it is left out. The functions take linear time and never raise.
"""

import re
from collections.abc import Iterator
from typing import Final

from workers.parse.charset import codec_of
from workers.parse.mime import parse_content_type

_ESCAPE: Final = r"\\(?:[0-9a-fA-F]{1,6}(?:\r\n|[ \t\n\f\r])?|[^0-9a-fA-F\n\r\f])"
_SPACE: Final = r"[ \t\n\f\r]"
_COMMENT: Final = r"/\*[^*]*+(?:\*(?!/)[^*]*+)*+(?:\*/|\Z)"
_STRING: Final = (
    r"\"(?P<double>(?:[^\"\\\n\r\f]++|\\(?:\r\n|[^\r]|\r|\Z))*+)(?:\"|\Z|(?=[\n\r\f]))"
    r"|'(?P<single>(?:[^'\\\n\r\f]++|\\(?:\r\n|[^\r]|\r|\Z))*+)(?:'|\Z|(?=[\n\r\f]))"
)
_NAME: Final = rf"(?:[A-Za-z0-9_\-\x80-\U0010ffff]|{_ESCAPE})++"
_TOKEN: Final = re.compile(
    rf"[^/\"'A-Za-z0-9_\-\x80-\U0010ffff\\@;{{}}]++|{_COMMENT}|{_STRING}"
    rf"|(?P<at>@{_NAME})|(?P<name>{_NAME})(?P<call>\()?|(?P<end>[;{{}}])|.",
    re.DOTALL,
)
_BARE: Final = re.compile(
    rf"{_SPACE}*+(?P<url>(?:[^\"'()\\ \t\n\f\r\x00-\x08\x0b\x0e-\x1f\x7f]++|{_ESCAPE})*+){_SPACE}*+(?:\)|\Z)"
)
_QUOTED: Final = re.compile(rf"{_SPACE}*+(?:{_STRING})")
_BAD: Final = re.compile(rf"(?:[^)\\]++|{_ESCAPE}|\\)*+(?:\)|\Z)", re.DOTALL)
_UNESCAPED: Final = re.compile(r"\\(?:([0-9a-fA-F]{1,6})(?:\r\n|[ \t\n\f\r])?|(\r\n|[\n\r\f])|(.)|\Z)", re.DOTALL)
_CHARSET: Final = re.compile(rb'@charset "([\x20\x21\x23-\x7e]{1,64})";')
_NAMES: Final = frozenset(("namespace", "charset"))


def css_urls(text: str) -> Iterator[str]:
    """Yield the URLs that the stylesheet or the declarations in `text` load, in order, as written."""
    position, end = 0, len(text)
    rule = ""
    while position < end:
        token = _TOKEN.match(text, position)
        assert token is not None  # the last alternative matches any character
        position = token.end()
        match token.lastgroup:
            case "double" | "single" if rule == "import":
                rule = ""
                yield _plain(token["double"] or token["single"] or "")
            case "at":
                rule = _plain(token["at"][1:]).lower()
            case "end":
                rule = ""
            case "call" if _plain(token["name"]).lower() in ("url", "src"):
                found = _url(text, position)
                position = found[1]
                if found[0] is not None and rule not in _NAMES:
                    yield found[0]
                rule = "" if rule == "import" else rule
            case _:
                pass


def _url(text: str, position: int) -> tuple[str | None, int]:
    """Return the URL of a `url(...)` whose contents begin at `position`, and the position after its end.

    The URL is None if it is malformed.
    """
    if (quoted := _QUOTED.match(text, position)) is not None:
        return _plain(quoted["double"] or quoted["single"] or ""), quoted.end()
    if (bare := _BARE.match(text, position)) is not None:
        return _plain(bare["url"]), bare.end()
    bad = _BAD.match(text, position)
    return None, len(text) if bad is None else bad.end()


def _plain(text: str) -> str:
    return _UNESCAPED.sub(_character, text) if "\\" in text else text


def _character(match: re.Match[str]) -> str:
    digits, line, char = match.groups()
    if digits is not None:
        number = int(digits, 16)
        return "\ufffd" if number == 0 or number > 0x10FFFF or 0xD800 <= number <= 0xDFFF else chr(number)
    return "" if line is not None else char or "\ufffd"


def css_text(body: bytes, content_type: str | None, codec: str = "utf-8") -> str:
    """Return the text of a stylesheet.

    Its encoding is given by its byte order mark, its Content-Type or its `@charset`, in this order. Otherwise it is
    `codec`. https://www.w3.org/TR/css-syntax-3/#input-byte-stream
    """
    for mark, name in ((b"\xef\xbb\xbf", "utf-8"), (b"\xfe\xff", "utf-16-be"), (b"\xff\xfe", "utf-16-le")):
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace")
    label = parse_content_type(content_type).charset
    declared = None if label is None else codec_of(label)
    if declared is None and (rule := _CHARSET.match(body)) is not None:
        declared = codec_of(rule[1].decode("ascii"))
        declared = "utf-8" if declared is not None and declared.startswith("utf-16") else declared
    return body.decode(declared or codec, "replace")
