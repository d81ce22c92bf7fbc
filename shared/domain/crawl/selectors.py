"""Check CSS selectors that users write in item rules: the part of Selectors Level 4 that locates an element.

A compound such as `a.more[href]` consists of a type or `*`, `#id`, `.class`, `[attribute]` (with `=`, `~=`, `|=`, `^=`,
`$=`, `*=`, and ` i`) and the PSEUDO_CLASSES. A selector combines compounds with ` `, `>`, `+`, `~`. Commas separate
selectors. A name consists of letters, digits, `_`, `-` and characters beyond ASCII. A name with other characters must
be written as the quoted value of an attribute, as in `[id="a.b"]`.

The parser that later applies the selectors accepts every selector that this module accepts.
"""

import re
from typing import Final

MAX_NESTED: Final = 3
"""How deep `:is(...)`, `:not(...)` and `:has(...)` may be nested."""

_PLAIN: Final = frozenset(
    ("empty", "first-child", "first-of-type", "last-child", "last-of-type", "only-child", "only-of-type", "root")
)
_NTH: Final = frozenset(("nth-child", "nth-last-child", "nth-last-of-type", "nth-of-type"))
_WITH_SELECTORS: Final = frozenset(("has", "is", "not"))
PSEUDO_CLASSES: Final = tuple(sorted(_PLAIN | _NTH | _WITH_SELECTORS))

_NAME: Final = r"-?(?:[A-Za-z_]|[^\x00-\x7f])(?:[A-Za-z0-9_-]|[^\x00-\x7f])*+"
_SPACE: Final = re.compile(r"[ \t\n\f\r]*+")
_COMBINATOR: Final = re.compile(r"[ \t\n\f\r]*+([>+~])[ \t\n\f\r]*+|[ \t\n\f\r]++(?![,)]|$)")
_TYPE: Final = re.compile(rf"\*|{_NAME}")
_SIMPLE: Final = re.compile(rf"[#.]{_NAME}")
_ATTRIBUTE: Final = re.compile(
    rf"\[[ \t\n\f\r]*+{_NAME}[ \t\n\f\r]*+"
    rf"(?:[~|^$*]?=[ \t\n\f\r]*+(?:\"[^\"\\\n\f\r]*+\"|'[^'\\\n\f\r]*+'|{_NAME})(?:[ \t\n\f\r]++i)?[ \t\n\f\r]*+)?\]"
)
_PSEUDO: Final = re.compile(r":([a-z-]++)(\()?")
_STEP: Final = re.compile(
    r"[ \t]*+(?:even|odd|[+-]?[0-9]{1,4}|[+-]?[0-9]{0,4}n(?:[ \t]*+[+-][ \t]*+[0-9]{1,4})?)[ \t]*+\)"
)


class _Unfit(Exception):
    """Raised for a selector that cannot be used. The message says why."""


def selector_problem(selector: str) -> str | None:
    """Return a message that says why the CSS selector cannot be used, or None if it can."""
    try:
        end = _list(selector, 0, 0, relative=False)
        if end != len(selector):
            raise _Unfit(_unexpected(selector, end))
    except _Unfit as error:
        return str(error)
    return None


def _list(text: str, at: int, nested: int, *, relative: bool) -> int:
    """Check the list of selectors that begins at index `at` of `text`. Return the index after its end.

    Raise _Unfit if a selector cannot be used. `nested`: how many pseudo-classes such as `:has()` enclose the list.
    `relative`: each selector may begin with a combinator, as in `:has(> img)`.
    """
    while True:
        at = _complex(text, _skipped(text, at), nested, relative=relative)
        at = _skipped(text, at)
        if text[at : at + 1] != ",":
            return at
        at += 1


def _complex(text: str, at: int, nested: int, *, relative: bool) -> int:
    if relative and text[at : at + 1] in (">", "+", "~"):
        at = _skipped(text, at + 1)
    at = _compound(text, at, nested)
    while (combinator := _COMBINATOR.match(text, at)) is not None:
        at = _compound(text, combinator.end(), nested)
    return at


def _compound(text: str, begin: int, nested: int) -> int:
    named = _TYPE.match(text, begin)
    at = begin if named is None else named.end()
    while (simple := _SIMPLE.match(text, at) or _ATTRIBUTE.match(text, at)) or text[at : at + 1] == ":":
        at = _pseudo(text, at, nested) if simple is None else simple.end()
    if at == begin:
        raise _Unfit(_unexpected(text, at))
    return at


def _pseudo(text: str, at: int, nested: int) -> int:
    match = _PSEUDO.match(text, at)
    name, opened = (match[1], match[2] is not None) if match is not None else ("", False)
    if match is None or (name, opened) not in _KNOWN:
        shown = text[at : at + 20] if match is None else f":{name}{'()' if opened else ''}"
        raise _Unfit(f"has the unknown pseudo-class {shown!r}; there are :{', :'.join(PSEUDO_CLASSES)}")
    if not opened:
        return match.end()
    if name in _NTH:
        step = _STEP.match(text, match.end())
        if step is None:
            raise _Unfit(f"has no number, `odd`, `even` or step such as 2n+1 in :{name}()")
        return step.end()
    if nested >= MAX_NESTED:
        raise _Unfit(f"nests more than {MAX_NESTED} levels of :is(), :not() and :has()")
    end = _list(text, match.end(), nested + 1, relative=name == "has")
    if text[end : end + 1] != ")":
        raise _Unfit(_unexpected(text, end))
    return end + 1


_KNOWN: Final = {(name, False) for name in _PLAIN} | {(name, True) for name in _NTH | _WITH_SELECTORS}


def _skipped(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None  # The pattern also matches empty text.
    return match.end()


def _unexpected(text: str, at: int) -> str:
    return (
        f"ends too early: {text!r}"
        if at >= len(text)
        else f"is no CSS selector from character {at + 1}, {text[at : at + 20]!r}"
    )
