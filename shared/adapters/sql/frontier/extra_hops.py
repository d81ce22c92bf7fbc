"""Updates the depth and the extra hops of known URLs to which new links lead, in the transaction of discoveries.

An extra hop is a link that leads out of the scope, or on from there. Each URL keeps the smallest numbers.
"""

from typing import Final

from msgspec.structs import replace
from sqlalchemy import Connection

from shared.adapters.sql.engine.bulk import Bulk, Row
from shared.domain.frontier.states import (
    FOUND_FEWER_HOPS,
    FOUND_NEARER,
    REVISIT,
    Merge,
    UrlState,
    extra_hops_of,
    merge_link,
    with_extra_hops,
)
from shared.domain.frontier.store_model import DiscoveredLink, DiscoveryResult
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId

_OF_URL = "WHERE crawl_id = :crawl_id AND host_id = :host_id AND fingerprint = :fingerprint"
_KEY = ("crawl_id", "host_id", "fingerprint")
_PLACE: Final = Bulk(
    f"UPDATE urls SET depth = :depth, hops = :hops, via_host = :via_host, via = :via, flags = :flags {_OF_URL}",
    ("depth", "hops", "via_host", "via", "flags", *_KEY),
)
_DEPTH: Final = Bulk(f"UPDATE urls SET depth = :depth, flags = :flags {_OF_URL}", ("depth", "flags", *_KEY))

_Key = tuple[CrawlId, HostId, Fingerprint]
KnownRow = tuple[UrlState, int, LeaseId, str | None, int, int | None]
"""The stored values of a URL: state, depth, lease, reason, flags, and the host id of the page that links to it.
The host id is None for a seed."""


def nearer_link(link: DiscoveredLink, other: DiscoveredLink) -> DiscoveredLink:
    """Return the better of two links to one URL. If the scope admits both, the result has the lesser of their depths.

    - If the scope excludes exactly one of the links: the other link is better.
    - Otherwise, if the extra hops differ: the link with fewer extra hops is better.
    - Otherwise: the link with the lesser depth is better.

    For example, the scope admits both links. One has 0 extra hops and depth 5, the other has 1 extra hop and depth 2.
    Then the first link is better, and the result is a copy of the first link with depth 2.
    """
    if link.extra == other.extra or link.outside or other.outside:
        of_link = bool(link.outside), link.extra, link.depth, bool(link.via)
        return link if of_link < (bool(other.outside), other.extra, other.depth, bool(other.via)) else other
    fewer = link if link.extra < other.extra else other
    depth = min(link.depth, other.depth)
    return fewer if fewer.depth == depth else replace(fewer, depth=depth)


class HopChanges:
    """Collects changes of the depth and the extra hops of known URLs, and writes them.

    The extra hops of a URL are the links on the way from a seed to it that lead beyond the scope.
    """

    __slots__ = ("_depths", "_places")

    def __init__(self) -> None:
        self._places: list[Row] = []
        self._depths: list[Row] = []

    def place(self, key: _Key, link: DiscoveredLink, depth: int, flags: int) -> None:
        """Record new values for a known URL.

        - `link`: gives the new linking page, the new number of redirects in a row and the new number of extra hops.
        - `depth`: the new depth.
        - `flags`: the new flags. Their bits for the number of extra hops are ignored, because `link` gives the number.
        """
        via = link.via_host or None, link.via or None
        self._places.append((depth, link.hops, *via, with_extra_hops(flags, link.extra), *key))

    def merge(
        self,
        key: _Key,
        link: DiscoveredLink,
        known: KnownRow,
        max_depth: int | None,
        result: DiscoveryResult,
    ) -> bool:
        """Record that a known URL gets the extra hops and depth of `link`, where these are less than the stored ones.

        `known`: the stored values of the URL. Changes of a leased URL are also added to `result`.

        Return True if the URL must be queued again. A fetched URL must be queued again if the crawl may now follow
        more of its outlinks: they have fewer extra hops, or come within the depth limit.
        """
        state, depth, lease_id, _, flags, _ = known
        extra, leased = extra_hops_of(flags), state is UrlState.LEASED
        stored = state is UrlState.DONE or (state is UrlState.WAITING and bool(flags & REVISIT))
        fewer, least = link.extra < extra, min(depth, link.depth)
        if not fewer and least == depth:
            return False
        if leased and least < depth:
            flags |= FOUND_NEARER
            result.lowered.append((lease_id, key[2], least))
        if fewer and leased:
            flags |= FOUND_FEWER_HOPS
            result.hops.append((lease_id, key[2], link.extra))
        if fewer:
            self.place(key, link, least, flags)
        else:
            self._depths.append((least, flags, *key))
        merge = merge_link(UrlState.DONE if stored else state, depth, link.depth, max_depth)
        return merge is Merge.QUEUE_AGAIN or (fewer and stored)

    def write(self, connection: Connection) -> None:
        """Write the recorded changes to the table of URLs."""
        _PLACE.run(connection, self._places)
        _DEPTH.run(connection, self._depths)
