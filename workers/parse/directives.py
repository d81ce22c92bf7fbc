"""Robots directives of a page: its meta elements and the X-Robots-Tag header."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

# Directives that carry a value after a colon; any other `word:` names the product that what follows is for.
_VALUED: Final = frozenset(("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"))


@dataclass(frozen=True, slots=True)
class Directives:
    """What robots are asked not to do. Several sources add up: the union holds."""

    noindex: bool = False
    nofollow: bool = False

    def __or__(self, other: "Directives") -> "Directives":
        return Directives(self.noindex or other.noindex, self.nofollow or other.nofollow)


NOTHING_FORBIDDEN: Final = Directives()


def meta_robots(content: str) -> Directives:
    """The content of a meta element whose name is `robots` or our product token; unknown directives are ignored."""
    return _directives(content.lower().replace(",", " ").split())


def x_robots_tag(values: Iterable[str], product: str = "orb") -> Directives:
    """All X-Robots-Tag headers of an answer: directives for everyone, and those for `product` (in lower case).

    `otherbot: noindex, nofollow` holds to the end of its header, or up to the next product named there.
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
