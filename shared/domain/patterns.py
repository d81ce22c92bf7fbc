"""Regular expressions that users write: Python's dialect, searched in canonical URLs of bounded length.

Python's engine backtracks, so a pattern such as `(a+)+$` takes exponential time on a URL made for it. An unbounded
repeat around another unbounded repeat is the cause in practice and is refused; possessive and atomic inner repeats
(`(?:/[^/]++)+`, `(?>...)`) cannot backtrack and are taken. What remains is polynomial in a URL's length, which the
spec bounds, as it bounds the length and number of patterns. (Overlapping alternatives under a repeat, `(?:a|a)+`, are
not detected: patterns come from the crawl's operator, never from the web.)
"""

import re
from typing import Final

_TOKEN: Final = re.compile(
    r"""
      (?P<escape>\\.)
    | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])
    | (?P<atomic>\(\?>)
    | (?P<comment>\(\?\#[^)]*\))
    | (?P<open>\()
    | (?P<close>\))
    | (?P<repeat>(?:[*+?]|\{[0-9]*,?[0-9]*\})[+?]?)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


def pattern_problem(pattern: str) -> str | None:
    """Why `pattern` cannot be used, or None."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is not a regular expression: {error}"
    if _nested_repeat(pattern):
        return "repeats a repeat without bound, which can take exponential time"
    return None


def _nested_repeat(pattern: str) -> bool:
    """Whether an unbounded repeat applies to a group that has, at any depth, an unbounded repeat able to backtrack."""
    enclosing: list[
        tuple[bool, bool]
    ] = []  # of each open group: whether what surrounds it repeats; whether it is atomic
    repeats = False  # whether the current group has had such a repeat
    closed = False  # whether the last atom is a group with one
    for token in _TOKEN.finditer(pattern):
        match token.lastgroup:
            case "open" | "atomic":
                enclosing.append((repeats, token.lastgroup == "atomic"))
                repeats = closed = False
            case "close":
                outer, atomic = enclosing.pop()
                closed = repeats and not atomic
                repeats = outer or closed
            case "repeat":
                if _unbounded(token[0]):
                    if closed and not _possessive(token[0]):
                        return True
                    repeats = repeats or not _possessive(token[0])
                closed = False
            case _:
                closed = False
    return False


def _unbounded(repeat: str) -> bool:
    return repeat[0] in "*+" or (repeat[0] == "{" and ",}" in repeat)


def _possessive(repeat: str) -> bool:
    return len(repeat) > 1 and repeat.endswith("+")
