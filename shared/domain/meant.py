"""What was perhaps meant by a name that nobody knows."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_CLOSE: Final = 0.6
"""How alike two names must be, from 0 to 1 (difflib's ratio), for one to be taken for a slip of the other."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that is most like `name`, whatever its case; None where none is close."""
    spelt = {each.lower(): each for each in known}
    close = get_close_matches(name.lower(), spelt, n=1, cutoff=_CLOSE)
    return spelt[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint: the name that was perhaps meant, or else all there are."""
    known = list(known)
    meant = nearest(name, known)
    return f"did you mean {meant}?" if meant is not None else f"known: {', '.join(known)}"
