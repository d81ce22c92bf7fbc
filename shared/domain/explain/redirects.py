"""Describe where redirects from a seed lead, for a crawl that got no page by them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

COOKIES: Final = "the site may need cookies, which are not sent back"


@dataclass(frozen=True, slots=True)
class Hop:
    """A response with a 3xx status, as one step of a chain of redirects.

    `target`: the canonical URL that it names, or None if it names no usable one.
    """

    url: str
    status: int
    target: str | None


def redirects_end(hops: Sequence[Hop], refused: str) -> str:
    """Return a sentence on why a chain of redirects ended without a page; empty if the chain does not explain it.

    Each hop has the URL that the hop before names as its target. `refused`: why the last target was not followed, empty
    if no rule refuses it.
    """
    if not hops:
        return ""
    first, last = hops[0], hops[-1]
    if last.target is None:
        return f"{last.url} answered with status {last.status}, which names no other page."
    if last.target == last.url:
        return f"{last.url} redirects to itself (status {last.status}); {COOKIES}."
    visited = [hop.url for hop in hops]
    if last.target in visited:
        circle = visited[visited.index(last.target) :]
        return f"{first.url} leads to redirects in a circle ({' -> '.join([*circle, last.target])}); {COOKIES}."
    if refused:
        return f"{last.url} redirects to {last.target}, which is out of scope: {refused}."
    return ""
