"""Where redirects from a seed lead, in words, for a crawl that they left without a page. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

COOKIES: Final = "the site may need cookies, which are not sent back"


@dataclass(frozen=True, slots=True)
class Hop:
    """An answer with a 3xx status. `target`: the canonical URL that it names, None where it names no usable one."""

    url: str
    status: int
    target: str | None


def redirects_end(hops: Sequence[Hop], refused: str) -> str:
    """Return where the hops, each the target of the one before, end. `refused`: why the last target was not followed,
    empty if no rule refuses it. Empty if the hops explain nothing."""
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
