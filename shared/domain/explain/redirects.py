"""Describe where redirects from a seed lead, for a crawl that got no page by them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

COOKIES: Final = "the site may need cookies, which are not sent back"


@dataclass(frozen=True, slots=True)
class Hop:
    """An answer with a 3xx status. `target`: the canonical URL that it names, or None if it names no usable one."""

    url: str
    status: int
    target: str | None


def redirects_end(hops: Sequence[Hop], refused: str) -> str:
    """Return where the hops end. Each hop is the target of the one before.

    `refused`: why the last target was not followed, empty if no rule refuses it. The result is empty if the hops
    explain nothing.
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
