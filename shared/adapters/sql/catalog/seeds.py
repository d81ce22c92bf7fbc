"""Reads the seeds of a crawl. They have their own index, so the cost does not depend on the crawl's size."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, bindparam, select, text, tuple_

from shared.adapters.sql.engine.context_joins import joined
from shared.adapters.sql.engine.schema import fetches, hosts, urls
from shared.adapters.sql.engine.url_compression import whole
from shared.domain.frontier.seed_contexts import SeedContext, decoded
from shared.domain.frontier.states import UrlState
from shared.domain.ids import CrawlId, Fingerprint, HostId
from shared.domain.reads.views import SeedView
from shared.domain.web.url import Location
from shared.ports.catalog import UrlPlace

_SEEDS: Final = text(
    "SELECT f.host_id, f.fingerprint, f.url, h.host, f.priority, f.state, f.reason, r.status, r.at_ms,"
    " s.context"
    " FROM (SELECT * FROM urls u WHERE u.crawl_id = :crawl_id AND u.via_host IS NULL"
    " AND (u.host_id, u.fingerprint) > (:after_host, :after)"
    " ORDER BY u.crawl_id, u.host_id, u.fingerprint LIMIT :max_count) f"
    " JOIN hosts h ON h.host_id = f.host_id"
    " LEFT JOIN fetches r ON r.crawl_id = f.crawl_id AND r.host_id = f.host_id AND r.fingerprint = f.fingerprint"
    f"{joined('f')} ORDER BY f.host_id, f.fingerprint"
)
_HOST_IDS: Final = select(hosts.c.host, hosts.c.host_id).where(hosts.c.host.in_(bindparam("names", expanding=True)))
_SAME: Final = (
    (fetches.c.crawl_id == urls.c.crawl_id)
    & (fetches.c.host_id == urls.c.host_id)
    & (fetches.c.fingerprint == urls.c.fingerprint)
)
_FROM: Final = urls.join(hosts, hosts.c.host_id == urls.c.host_id).outerjoin(fetches, _SAME)
_COLUMNS: Final = (
    urls.c.host_id, urls.c.fingerprint, urls.c.url, hosts.c.host, urls.c.priority, urls.c.state, urls.c.reason,
    fetches.c.status, fetches.c.at_ms,
)  # fmt: skip


def seeds(connection: Connection, crawl_id: CrawlId, *, after: UrlPlace, max_count: int) -> list[SeedView]:
    """Return at most `max_count` seeds that the crawl has, after the place `after`, ordered by host id and fingerprint.

    They come from the spec, an upload or a seed set.
    """
    place = {"crawl_id": crawl_id, "after_host": after.host_id, "after": after.fingerprint, "max_count": max_count}
    return [_seed(row, decoded(row.context)) for row in connection.execute(_SEEDS, place)]


def known(connection: Connection, crawl_id: CrawlId, locations: Sequence[Location]) -> Mapping[Fingerprint, SeedView]:
    """Return what the crawl stores of these URLs, by fingerprint. URLs that it has not found are left out.

    A URL need not be a seed: URLs that were found as links are included.
    """
    names = sorted({location.host for location in locations})
    ids = {row.host: row.host_id for row in connection.execute(_HOST_IDS, {"names": names})} if names else {}
    keys = [(ids[at.host], at.fingerprint) for at in locations if at.host in ids]
    if not keys:
        return {}
    here = (urls.c.crawl_id == crawl_id) & tuple_(urls.c.host_id, urls.c.fingerprint).in_(keys)
    rows = connection.execute(select(*_COLUMNS).select_from(_FROM).where(here))
    return {Fingerprint(bytes(row.fingerprint)): _seed(row) for row in rows}


def _seed(row: Any, context: SeedContext | None = None) -> SeedView:
    return SeedView(
        host_id=HostId(row.host_id),
        fingerprint=Fingerprint(bytes(row.fingerprint)),
        url=whole(row.url, row.host),
        priority=row.priority,
        state=UrlState(row.state),
        reason=row.reason,
        status=row.status,
        fetched_at_ms=row.at_ms,
        context=context,
    )
