"""Requisites in the transaction of discoveries: their budget, and URLs that are both a requisite and a page."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct
from sqlalchemy import Connection, text

from shared.adapters.sql.engine.bulk import Bulk
from shared.domain.crawl.exclusions import OWNER
from shared.domain.crawl.requisites_spec import MAX_REQUISITES
from shared.domain.crawl.scope_change import BY_SCOPE
from shared.domain.frontier.states import (
    ALSO_PAGE,
    HTML_REQUISITE,
    IS_REQUISITE,
    RETRY,
    REVISIT,
    UrlKind,
    UrlState,
    as_page,
    kind_flags,
    kind_of,
    queued_as,
    rank_of,
    requisite_rank,
    with_extra_hops,
)
from shared.domain.frontier.store_model import DiscoveredLink
from shared.domain.ids import CrawlId, Fingerprint, HostId

Key = tuple[CrawlId, HostId, Fingerprint]

_LOCK_CRAWL = text("SELECT 1 FROM crawls WHERE crawl_id = :crawl_id FOR NO KEY UPDATE")
_QUEUED = text(
    "SELECT coalesce(sum(n), 0) FROM crawl_tallies"
    " WHERE crawl_id = :crawl_id AND kind = 'discover' AND key = 'requisites'"
)
_OF_URL = "WHERE crawl_id = :crawl_id AND host_id = :host_id AND fingerprint = :fingerprint"
_STATE = ("flags", "rank", "crawl_id", "host_id", "fingerprint")
_CHANGE: Final = Bulk(
    "UPDATE urls SET flags = :flags, rank = CASE WHEN state IN (0, 3, 5) THEN :rank ELSE rank END,"
    " attempts = CASE WHEN state IN (3, 5) THEN 0 ELSE attempts END,"
    " reason = CASE WHEN state IN (3, 5) THEN NULL ELSE reason END,"
    f" state = CASE WHEN state IN (3, 5) THEN 0 ELSE state END {_OF_URL}",
    _STATE,
)
_PLACE: Final = Bulk(
    f"UPDATE urls SET depth = :depth, hops = :hops, via_host = :via_host, via = :via {_OF_URL}",
    ("depth", "hops", "via_host", "via", "crawl_id", "host_id", "fingerprint"),
)


def remaining(connection: Connection, budgets: Mapping[CrawlId, int], required: Collection[Key]) -> dict[CrawlId, int]:
    """Return how many more requisites each crawl may queue within its budget of requisites.

    For example, a crawl with a budget of 100 that has queued 30 requisites gets 70. Requisites of all partitions count.

    - `budgets`: the budget of each crawl that has one.
    - `required`: the URLs that were found as requisites. Crawls without such a URL are not in the result.

    On PostgreSQL the rows of the crawls in the result stay locked until the commit (decision 0010).
    """
    left = {}
    for crawl_id in sorted({key[0] for key in required} & budgets.keys()) if budgets else ():
        if connection.dialect.name == "postgresql":
            connection.execute(_LOCK_CRAWL, {"crawl_id": crawl_id})
        left[crawl_id] = budgets[crawl_id] - int(connection.execute(_QUEUED, {"crawl_id": crawl_id}).scalar_one())
    return left


class Relinked(Struct, frozen=True):
    """How the stored row of a known URL changes because a new link to the URL was found.

    This class is only for links that concern requisites. One case is that the URL is stored as a requisite. The other
    case is that the new link finds the URL as a requisite. `relinked` decides the change, and `relink` writes it.

    Before the change:

    - `state`, `reason`: the URL's state, and the reason for the state.
    - `before`: the URL's flags.

    After the change:

    - `flags`: the URL's flags.
    - `rank`: the URL's place in the queue.
    - `link`: the new link, if the URL gets its depth and linking page from this link. None: the URL keeps both.
    """

    key: Key
    state: UrlState
    reason: str | None
    before: int
    flags: int
    rank: int
    link: DiscoveredLink | None = None

    @property
    def leased(self) -> bool:
        """True if the URL is in a shard that was sent to a worker."""
        return self.state is UrlState.LEASED

    def count(
        self,
        deltas: dict[str, int],
        tallies: dict[tuple[CrawlId, str, str], int],
        queued: dict[tuple[CrawlId, HostId], int],
        room: dict[CrawlId, int],
    ) -> None:
        """Count this change in four dictionaries, which are updated in place.

        - `deltas`: what to add to each counter of the URL's crawl.
        - `tallies`: what to add to each count by reason.
        - `queued`: how many URLs are added to each queue.
        - `room`: how many more requisites each crawl may queue.
        """
        crawl_id, host_id, _ = self.key
        if self.flags & ~self.before & IS_REQUISITE or (self.flags & IS_REQUISITE and self.state is UrlState.EXCLUDED):
            tallies[crawl_id, "discover", "requisites"] += 1
            if crawl_id in room:
                room[crawl_id] -= 1
        if self.leased:
            return
        if part := queued_as(self.flags):
            deltas[part] += 1
        if self.state in (UrlState.QUEUED, UrlState.WAITING):
            if part := queued_as(self.before):
                deltas[part] -= 1
            return
        deltas["queued"] += 1
        deltas[self.state.name.lower()] -= 1
        queued[crawl_id, host_id] += 1
        if self.state is UrlState.EXCLUDED:
            tallies[crawl_id, "excluded", str(self.reason)] -= 1


def relinked(
    key: Key,
    state: UrlState,
    depth: int,
    reason: str | None,
    flags: int,
    page: DiscoveredLink | None,
    *,
    requisite: bool,
    now_ms: int,
) -> Relinked | None:
    """Return how the stored row of a known URL changes because the URL is found again. None: the row does not change.

    A URL can be a requisite and a page. Such a URL is stored as a requisite with the flag ALSO_PAGE. Call this only if
    the URL is stored as a requisite, or if `requisite` is True.

    - `state`, `depth`, `reason`, `flags`: the stored values of the URL.
    - `page`: the link by which the URL is found as a page now. None: the URL is not found as a page now.
    - `requisite`: True if the URL is found as a requisite now, and the budget of requisites is not spent.

    If the URL is stored as a page:

    - It is queued or waits for a retry: it becomes a requisite with ALSO_PAGE, and gets an earlier place in the queue.
      For example, a queued page is found as an image of another page. This does not apply to a URL of depth 0, a
      sitemap or a feed.

    If the URL is stored as a requisite, and is excluded by the scope, an exclusion or the budget of requisites:

    - It is found as a requisite: it is queued as a requisite. If it is found as a page, too, it also gets ALSO_PAGE.
    - It is found only as a page: it is queued as a page.

    If the URL is stored as a requisite without ALSO_PAGE, and is found as a page:

    - It is queued, waiting or leased: it gets ALSO_PAGE.
    - It is done and is HTML: it is queued again as a page.

    In all other cases the row does not change.
    """
    if not flags & IS_REQUISITE:
        waits = state is UrlState.QUEUED or (state is UrlState.WAITING and not flags & REVISIT)
        if waits and depth > 0 and not kind_of(flags).listing:
            return Relinked(key, state, reason, flags, flags | IS_REQUISITE | ALSO_PAGE, requisite_rank(now_ms))
        return None
    if state is UrlState.EXCLUDED and (reason in (MAX_REQUISITES, OWNER) or reason in BY_SCOPE):
        if requisite:
            marked = with_extra_hops(flags | ALSO_PAGE, page.extra) if page else flags
            return Relinked(key, state, reason, flags, marked & ~RETRY, requisite_rank(now_ms), page)
        return None if page is None else _page(key, state, reason, flags, page, now_ms)
    if page is None or flags & ALSO_PAGE:
        return None
    if state is UrlState.DONE:
        return _page(key, state, reason, flags, page, now_ms) if flags & HTML_REQUISITE else None
    if state in (UrlState.QUEUED, UrlState.WAITING, UrlState.LEASED):
        marked = with_extra_hops(flags | ALSO_PAGE | kind_flags(page.kind), page.extra)
        return Relinked(key, state, reason, flags, marked, requisite_rank(now_ms), page)
    return None


def _page(key: Key, state: UrlState, reason: str | None, flags: int, page: DiscoveredLink, now_ms: int) -> Relinked:
    """Return the change that queues a known requisite as a page.

    `page`: a link to the URL as a page. The URL gets its depth and its linking page from this link.
    """
    changed = with_extra_hops(as_page(flags) & ~(RETRY | REVISIT) | kind_flags(page.kind), page.extra)
    return Relinked(key, state, reason, flags, changed, rank_of(now_ms, page.depth, page.priority), page)


def relink(connection: Connection, changes: Sequence[Relinked]) -> None:
    """Update the stored rows of the URLs in `changes`. Each change was made by `relinked`.

    The state in the row decides what is written:

    - Queued: the new flags and the new place in the queue.
    - Waiting or leased: only the new flags.
    - Done or excluded: the new flags. The URL is also queued at the new place, and its attempts count from 0 again.

    If the change has a link, the URL also gets its depth, redirects and linking page from this link.
    """
    _CHANGE.run(connection, [(each.flags, each.rank, *each.key) for each in changes])
    places = [(each.link, each.key) for each in changes if each.link is not None]
    rows = [(link.depth, link.hops, link.via_host or None, link.via or None, *key) for link, key in places]
    _PLACE.run(connection, rows)


assert UrlKind.REQUISITE.value == kind_of(IS_REQUISITE), "the flag is the kind's own bit"
