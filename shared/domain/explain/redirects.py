"""Describe where redirects from a seed lead, for a crawl that got no page from them. The module does no I/O."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

COOKIES: Final = "the site may need cookies, which are not sent back"


class Redirect(Struct, frozen=True):
    """One response with a 3xx status in a chain of redirects.

    `target`: the canonical URL to which it redirects, None if it names no valid URL.
    """

    url: str
    status: int
    target: str | None


def redirects_end(redirects: Sequence[Redirect], refused: str) -> str:
    """Return a sentence on why a chain of redirects led to no page, or an empty text if the chain does not explain it.

    - `redirects`: the responses of the chain in order. The `target` of each is the URL that gave the next response.
    - `refused`: why the last target is out of scope. Empty if it is in scope.
    """
    if not redirects:
        return ""
    first, last = redirects[0], redirects[-1]
    if last.target is None:
        return f"{last.url} answered with status {last.status}, which names no other page."
    if last.target == last.url:
        return f"{last.url} redirects to itself (status {last.status}); {COOKIES}."
    visited = [each.url for each in redirects]
    if last.target in visited:
        circle = visited[visited.index(last.target) :]
        return f"{first.url} leads to redirects in a circle ({' -> '.join([*circle, last.target])}); {COOKIES}."
    if refused:
        return f"{last.url} redirects to {last.target}, which is out of scope: {refused}."
    return ""
