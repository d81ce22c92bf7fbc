"""What was perhaps meant by a name that nobody knows."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_CLOSE: Final = 0.6
"""How alike two names must be, from 0 to 1 (difflib's ratio), for one to be taken for a slip of the other."""
_LONGER: Final = (2 - _CLOSE) / _CLOSE
"""A name that is longer than another by more than this factor is never so alike, whatever is in it."""

_SCHEME: Final = re.compile(r"([A-Za-z]{3,7})(?::/{1,3}|/{2,3})(?=[^/])").match

SUGGESTED: Final = 20
"""Wrong names of one answer for which a likely one is looked for, which costs time; the rest are told without."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that is most like `name`, whatever its case; None where none is close."""
    spelt = {each.lower(): each for each in known}
    if len(name) > _LONGER * max(map(len, spelt), default=0):
        return None
    close = get_close_matches(name.lower(), spelt, n=1, cutoff=_CLOSE)
    return spelt[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint: the name that was perhaps meant, or else all there are."""
    known = list(known)
    meant = nearest(name, known)
    return f"did you mean {meant}?" if meant is not None else f"known: {', '.join(known)}"


def url_meant(text: str) -> str | None:
    """Return the URL that a slip in a scheme (`htp://`, `https:/`, `http//`) was perhaps meant for, None if none is."""
    slip = _SCHEME(text)
    scheme = None if slip is None else nearest(slip[1], ("http", "https"))
    if slip is None or scheme is None or slip[0].lower() == f"{scheme}://":
        return None
    return f"{scheme}://{text[slip.end() :]}"


def label_meant(text: str) -> str:
    """A hint: the nearest name that a crawl or a pool can have; empty where nothing of `text` can stand in one."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower())[:63].strip("-")
    return f"did you mean {name}?" if name else ""
