"""Suggestions: the name or URL that a user probably meant by a misspelled one."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_CLOSE: Final = 0.6
"""The least similarity, from 0 to 1 (difflib's ratio), at which a name may be a misspelling of another."""
_LONGER: Final = (2 - _CLOSE) / _CLOSE
"""If one name is more than this many times as long as another, their similarity is always below `_CLOSE`."""

_SCHEME: Final = re.compile(r"([A-Za-z]{3,7})(?::/{1,3}|/{2,3})(?=[^/])").match

SUGGESTED: Final = 20
"""The maximum number of unknown names in one answer for which suggestions are searched. Each search costs time."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name in `known` that is most similar to `name`, ignoring case, or None if none is similar enough."""
    spelt = {each.lower(): each for each in known}
    if len(name) > _LONGER * max(map(len, spelt), default=0):
        return None
    close = get_close_matches(name.lower(), spelt, n=1, cutoff=_CLOSE)
    return spelt[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for a message: "did you mean X?" with the name in `known` that is most similar to `name`.

    If none is similar enough, the hint lists all of `known`.
    """
    known = list(known)
    meant = nearest(name, known)
    return f"did you mean {meant}?" if meant is not None else f"known: {', '.join(known)}"


def url_meant(text: str) -> str | None:
    """Return `text` with its misspelled scheme corrected (`htp://`, `https:/`, `http//`).

    Return None if it has no such error.
    """
    slip = _SCHEME(text)
    scheme = None if slip is None else nearest(slip[1], ("http", "https"))
    if slip is None or scheme is None or slip[0].lower() == f"{scheme}://":
        return None
    return f"{scheme}://{text[slip.end() :]}"


def label_meant(text: str) -> str:
    """Return "did you mean X?", where X is `text` changed into a valid name of a crawl or pool.

    Return "" if `text` has no character that is valid in a name.
    """
    name = re.sub(r"[^a-z0-9]+", "-", text.lower())[:63].strip("-")
    return f"did you mean {name}?" if name else ""
