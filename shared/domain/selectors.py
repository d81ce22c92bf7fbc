"""CSS selectors that users write in rules: the part of Selectors Level 4 that says where an element stands.

Compounds of a type or `*`, `#id`, `.class`, `[attribute]` (with `=`, `~=`, `|=`, `^=`, `$=`, `*=`, and ` i`) and the
pseudo-classes below; the combinators ` `, `>`, `+`, `~`; lists with commas. Names are letters, digits, `_`, `-` and
what lies beyond ASCII; others are written in an attribute's quotes. A selector is judged here, in Python, and never by
the parser that later runs it: who declares a crawl gets an answer, and cannot bring down the process that gives it.
What this accepts that parser accepts, too, which a test holds both to.
"""

import re
from typing import Final

MOST_NESTED: Final = 3
"""How deep `:is(...)`, `:not(...)` and `:has(...)` may stand in each other."""

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
    """Why a selector cannot be used."""


def selector_problem(selector: str) -> str | None:
    """Why `selector` cannot be used, or None."""
    try:
        end = _list(selector, 0, 0, relative=False)
        if end != len(selector):
            raise _Unfit(_unexpected(selector, end))
    except _Unfit as error:
        return str(error)
    return None


def _list(text: str, at: int, nested: int, *, relative: bool) -> int:
    """Where the list that begins at `at` ends. `relative`: each may begin with a combinator, as in `:has(> img)`."""
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
    while (found := _COMBINATOR.match(text, at)) is not None:
        at = _compound(text, found.end(), nested)
    return at


def _compound(text: str, begin: int, nested: int) -> int:
    named = _TYPE.match(text, begin)
    at = begin if named is None else named.end()
    while (found := _SIMPLE.match(text, at) or _ATTRIBUTE.match(text, at)) or text[at : at + 1] == ":":
        at = _pseudo(text, at, nested) if found is None else found.end()
    if at == begin:
        raise _Unfit(_unexpected(text, at))
    return at


def _pseudo(text: str, at: int, nested: int) -> int:
    found = _PSEUDO.match(text, at)
    name, opened = (found[1], found[2] is not None) if found is not None else ("", False)
    if found is None or (name, opened) not in _KNOWN:
        shown = text[at : at + 20] if found is None else f":{name}{'()' if opened else ''}"
        raise _Unfit(f"does not know {shown!r}; there are :{', :'.join(PSEUDO_CLASSES)}")
    if not opened:
        return found.end()
    if name in _NTH:
        step = _STEP.match(text, found.end())
        if step is None:
            raise _Unfit(f"has no number, `odd`, `even` or step such as 2n+1 in :{name}()")
        return step.end()
    if nested >= MOST_NESTED:
        raise _Unfit(f"nests more than {MOST_NESTED} levels of :is(), :not() and :has()")
    end = _list(text, found.end(), nested + 1, relative=name == "has")
    if text[end : end + 1] != ")":
        raise _Unfit(_unexpected(text, end))
    return end + 1


_KNOWN: Final = {(name, False) for name in _PLAIN} | {(name, True) for name in _NTH | _WITH_SELECTORS}


def _skipped(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None  # it matches nothing, too
    return found.end()


def _unexpected(text: str, at: int) -> str:
    return (
        f"ends too early: {text!r}"
        if at >= len(text)
        else f"is no CSS selector from character {at + 1}, {text[at : at + 20]!r}"
    )
