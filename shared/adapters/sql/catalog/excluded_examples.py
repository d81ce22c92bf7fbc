"""Reads examples of the links that a crawl excluded."""

from typing import TYPE_CHECKING, Final

from shared.adapters.sql.engine.query import Query
from shared.adapters.sql.engine.url_compression import whole
from shared.domain.explain.excluded_links import MAX_EXAMPLES, ExcludedLinkExample
from shared.domain.ids import CrawlId
from shared.domain.web.url import locate

if TYPE_CHECKING:
    from shared.adapters.sql.engine.query import ReadConnection

_EXAMPLES: Final = Query(
    "SELECT l.reason, l.url AS link, u.url, h.host FROM links_left_out l"
    " JOIN urls u ON u.crawl_id = l.crawl_id AND u.host_id = l.host_id AND u.fingerprint = l.fingerprint"
    " JOIN hosts h ON h.host_id = l.host_id"
    " WHERE l.crawl_id = :crawl_id ORDER BY l.crawl_id, l.partition, l.reason, l.url"
)
_KNOWN: Final = Query(
    "SELECT 1 FROM urls u JOIN hosts h ON h.host_id = u.host_id"
    " WHERE u.crawl_id = :crawl_id AND h.host = :host AND u.fingerprint = :fingerprint"
)


def examples(connection: "ReadConnection", crawl_id: CrawlId) -> dict[str, list[ExcludedLinkExample]]:
    """Return examples of links that the crawl's rules excluded, by exclusion reason: at most MAX_EXAMPLES for each.

    A link is left out if the crawl has found its URL since, for example from another page or under a changed spec.
    """
    result: dict[str, list[ExcludedLinkExample]] = {}
    for row in _EXAMPLES.rows(connection, crawl_id=crawl_id):
        some = result.setdefault(row.reason, [])
        if len(some) >= MAX_EXAMPLES:
            continue
        place = locate(row.link)
        keys = {} if place is None else {"host": place.host, "fingerprint": place.fingerprint}
        if not keys or _KNOWN.first(connection, crawl_id=crawl_id, **keys) is None:
            some.append(ExcludedLinkExample(row.link, whole(row.url, row.host)))
    return {reason: some for reason, some in result.items() if some}
