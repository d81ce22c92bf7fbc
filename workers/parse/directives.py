"""Robots directives of a page: its meta elements and the X-Robots-Tag header."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

# Directives that have a value after a colon. Any other `word:` names the product that the next directives are for.
_VALUED: Final = frozenset(("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"))


@dataclass(frozen=True, slots=True)
class Directives:
    """What a page forbids to robots. If several sources state directives, all of them count."""

    noindex: bool = False
    nofollow: bool = False

    def __or__(self, other: "Directives") -> "Directives":
        return Directives(self.noindex or other.noindex, self.nofollow or other.nofollow)


NOTHING_FORBIDDEN: Final = Directives()


def meta_robots(content: str) -> Directives:
    """Parse the content of a meta element named `robots` or by the crawler's product token. Skip unknown directives."""
    return _directives(content.lower().replace(",", " ").split())


def x_robots_tag(values: Iterable[str], product: str = "orb") -> Directives:
    """Parse all X-Robots-Tag headers of an answer. Return the directives for all robots and for `product`.

    `product` is in lower case. A directive after `otherbot:` is for that robot only, up to the end of the header or to
    the next product name in it.
    """
    words: list[str] = []
    for value in values:
        ours = True
        for part in value.lower().split(","):
            head, colon, rest = part.partition(":")
            if colon and head.strip() not in _VALUED:
                ours = head.strip() == product
                part = rest
            if ours:
                words.append(part.strip())
    return _directives(words)


def _directives(words: Iterable[str]) -> Directives:
    noindex = nofollow = False
    for word in words:
        noindex = noindex or word in ("noindex", "none")
        nofollow = nofollow or word in ("nofollow", "none")
    return Directives(noindex, nofollow) if noindex or nofollow else NOTHING_FORBIDDEN
