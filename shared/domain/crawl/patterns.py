r"""Regular expressions that users write: RE2 syntax, searched in time linear in the text.

RE2 does not backtrack, so neither a pattern nor a page can make a search exponential. The cost of a search is at most
proportional to the text's length times the pattern's compiled size. The size is limited, too (`MAX_PROGRAM`).

A pattern is refused for each of these reasons:

- RE2 cannot express it: lookaround, backreferences, possessive and atomic groups, `\Z`, `\u`.
- RE2 reads it differently than Python's `re`: `{,n}`, `[[:alpha:]]`, and a backslash before the digits 1 to 9.
- It has `\C` or `\Q`.
- It is for text of every script (`unicode`) and has `\w` or `\b`, which match ASCII only. `\d` and `\s` also match
  ASCII only, but are allowed.

This is the only module that imports RE2.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import re2

MAX_PROGRAM: Final = 10_000
"""A pattern may compile to at most this many instructions of RE2, and so may all patterns of one list together. A
letter compiles to one instruction, `.` to eight."""

_MEMORY: Final = 8 << 20
_CHECKED_CACHE: Final = 4096

_TOKEN: Final = re.compile(
    r"""
      \\(?P<escape>.)
    | \[\^?+\]?+(?P<set>(?:[^\]\\]|\\.)*+)\]
    | (?P<repeat>\{,[0-9]*+\})
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ADVICE: Final = {
    "(?=": "RE2 has no lookahead",
    "(?!": "RE2 has no lookahead; use exclude for what must not match",
    "(?<=": "RE2 has no lookbehind",
    "(?<!": "RE2 has no lookbehind; use exclude for what must not match",
    "(?>": "RE2 has no atomic groups and needs none; write (?:...)",
    "(?P=": "RE2 has no backreferences",
    "(?(": "RE2 has no conditional groups",
    "(?#": "RE2 has no comments",
    "\\Z": "write \\z for the end of the text",
    "\\u": "write \\x{...} for a character by its number",
    "\\U": "write \\x{...} for a character by its number",
    "\\N": "write \\x{...} for a character by its number",
}
_POSSESSIVE: Final = re.compile(r"(?:[*+?]|\})\+")


class PatternRefused(ValueError):
    """Raised for a regular expression that cannot be used. The message has the reason and what to write instead."""


def pattern_problem(pattern: str, *, unicode: bool = False) -> str | None:
    r"""Return why a regular expression cannot be used, or None if it can.

    `unicode`: it will be searched in text with characters beyond ASCII, so `\w` and `\b` are refused.
    """
    try:
        program_size(pattern, unicode=unicode)
    except PatternRefused as refused:
        return str(refused)
    return None


@lru_cache(_CHECKED_CACHE)
def _checked(pattern: str, unicode: bool) -> int | PatternRefused:
    if difference := _difference(pattern, unicode):
        return PatternRefused(difference)
    try:
        size = int(_compiled(pattern).programsize)
    except UnicodeEncodeError:
        return PatternRefused("has a lone surrogate, which no text has")
    except re2.error as error:
        reason = _words(error)
        if "pattern too large" in reason:
            return PatternRefused("is too large when compiled; shorten its repetitions")
        return PatternRefused(f"is not a regular expression of RE2: {reason}{_advice(pattern, reason)}")
    if size > MAX_PROGRAM:
        return PatternRefused(
            f"is too large: it compiles to {size:,} instructions and may have {MAX_PROGRAM:,}; shorten its repetitions"
        )
    return size


def program_size(pattern: str, *, unicode: bool = False) -> int:
    r"""Return the number of instructions that `pattern` compiles to. Raise PatternRefused if it cannot be used.

    `unicode`: it will be searched in text with characters beyond ASCII, so `\w` and `\b` are refused.
    """
    checked = _checked(pattern, unicode)
    if isinstance(checked, PatternRefused):
        raise PatternRefused(str(checked))
    return checked


def size_problem(patterns: Iterable[str]) -> str | None:
    """Return why these patterns are too large together, or None if they are not.

    Raise PatternRefused if one of them cannot be used by itself.
    """
    size = sum(program_size(pattern) for pattern in patterns)
    if size <= MAX_PROGRAM:
        return None
    return f"compile to {size:,} instructions together and may have {MAX_PROGRAM:,}"


class Patterns:
    """Several compiled regular expressions, which are searched in a text in one pass.

    `size`: how many instructions they compile to.
    """

    __slots__ = ("_all", "_patterns", "size")

    def __init__(self, patterns: Sequence[str]) -> None:
        """Compile the patterns. Raise PatternRefused if one of them cannot be used, or all together are too large."""
        self._patterns: Final = tuple(patterns)
        if (problem := size_problem(self._patterns)) is not None:
            raise PatternRefused(f"the patterns {problem}")
        self.size: Final = sum(map(program_size, self._patterns))
        self._all: Any = re2.Set.SearchSet(_options())
        # The empty pattern matches every text, so a result without it means that RE2 ran out of memory.
        for pattern in (*self._patterns, ""):
            self._all.Add(pattern)
        self._all.Compile()

    def __len__(self) -> int:
        return len(self._patterns)

    def __repr__(self) -> str:
        return f"<Patterns {len(self._patterns)}>"

    def matching(self, text: str) -> list[int]:
        """Return the indexes of the patterns that match somewhere in `text`, in ascending order."""
        if not self._patterns:
            return []
        indexes = self._all.Match(text)
        if indexes is None:
            return [at for at, pattern in enumerate(self._patterns) if _compiled(pattern).search(text) is not None]
        return sorted(indexes)[:-1]

    def first(self, text: str) -> str | None:
        """Return the first pattern that matches somewhere in `text`, or None if none does."""
        indexes = self.matching(text)
        return self._patterns[indexes[0]] if indexes else None


def value_in(pattern: str, text: str) -> str | None:
    """Return what the first group of `pattern` matches in `text`.

    Without a group, return what the whole pattern matches. Return None if the pattern does not match, or its first
    group takes no part in the match. Raise PatternRefused if the pattern cannot be used.
    """
    program_size(pattern, unicode=True)
    compiled = _compiled(pattern)
    match = compiled.search(text)
    if match is None:
        return None
    value: str | None = match[1 if compiled.groups else 0]
    return value


def _options() -> Any:
    options = re2.Options()
    options.max_mem = _MEMORY
    options.log_errors = False
    return options


def _compiled(pattern: str) -> Any:
    return re2.compile(pattern, _options())


def _difference(pattern: str, unicode: bool) -> str | None:
    r"""Return a message if RE2 and Python read a part of `pattern` differently, or if a part is not allowed.

    Return None if there is no such part. `unicode`: the pattern is for text with characters beyond ASCII, where `\w`
    and `\b` are not allowed.
    """
    for token in _TOKEN.finditer(pattern):
        if token["repeat"] is not None:
            return f"has {token['repeat']}, which RE2 takes literally; write {{0{token['repeat'][1:]}"
        in_set = token["set"]
        if in_set is not None and (at := in_set.find("[:")) >= 0 and in_set.endswith(":") and len(in_set) > at + 2:
            return f"has the class {in_set[at:]}], which is refused; write it out, as [A-Za-z]"
        for escaped in token["escape"] or "" if in_set is None else _ESCAPE.findall(in_set):
            if escaped in "123456789":
                return f"has \\{escaped}: RE2 has no backreferences; write \\x{{...}} for a character by its number"
            if escaped in "CQ":
                return f"has \\{escaped}, which is not allowed; escape single characters instead"
            if unicode and escaped in "wWbB":
                return f"has \\{escaped}, which matches ASCII letters only; write [\\pL\\pN_] for those of every script"
    return None


def _words(error: Exception) -> str:
    text = error.args[0] if error.args else ""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)


def _advice(pattern: str, reason: str) -> str:
    advice = next((advice for sign, advice in _ADVICE.items() if sign in pattern), None)
    if "repetition size" in reason:
        advice = "a repetition is at most 1000, also of what is repeated within"
    elif "repetition operator" in reason and _POSSESSIVE.search(reason):
        advice = "RE2 has no possessive repeats and needs none; leave out the +"
    return "" if advice is None else f" ({advice})"
