"""The contexts of seeds in SQL. They are written with the URLs that have one, and read for leases and for lists.

A URL keeps the context of the first page or seed that led to it. If a seed is given again with labels or a source, it
gets these, but URLs found from it before keep their context. Nothing here runs for a crawl whose seeds have no context.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, bindparam, text

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.bulk import inserting
from shared.adapters.sql.engine.context_joins import DEFINED
from shared.domain.frontier.seed_contexts import SeedContext, context_id, decoded, encoded
from shared.domain.frontier.store_model import DiscoveredLink, LeaseRow, LinkWithContext
from shared.domain.ids import CrawlId, Fingerprint, HostId, Partition

Place = tuple[CrawlId, HostId, Fingerprint]
HostPlaces = tuple[CrawlId, HostId, Sequence[Fingerprint]]

_AT_ONCE: Final = 1_000
_DEFINE: Final = inserting(
    schema.seed_contexts, ("crawl_id", "partition", "context_id", "context"), "ON CONFLICT DO NOTHING"
)
_REFER: Final = inserting(
    schema.url_contexts,
    ("crawl_id", "host_id", "fingerprint", "context_id"),
    "ON CONFLICT (crawl_id, host_id, fingerprint) DO UPDATE SET context_id = excluded.context_id",
)
_OF_HOST: Final = text(
    f"SELECT x.fingerprint, s.context FROM url_contexts x{DEFINED}"
    " WHERE x.crawl_id = :crawl_id AND x.host_id = :host_id AND x.fingerprint IN :fingerprints"
).bindparams(bindparam("fingerprints", expanding=True))
_ANY: Final = text("SELECT 1 FROM seed_contexts WHERE crawl_id = :crawl_id AND partition = :partition LIMIT 1")


class GivenContexts:
    """The seed contexts that a batch of links gives to URLs.

    A new URL gets the context of the first link to it. A seed that was given with a context gets this context, even
    if the URL is known.
    """

    def __init__(self, links: Iterable[DiscoveredLink], host_ids: Mapping[str, HostId]) -> None:
        self._first: dict[Place, SeedContext | None] = {}
        self._of_seeds: dict[Place, SeedContext] = {}
        for link in links:
            key = (link.crawl_id, host_ids[link.host], link.fingerprint)
            context = link.context if isinstance(link, LinkWithContext) else None
            self._first.setdefault(key, context)
            if context is not None and not link.via:
                self._of_seeds[key] = context

    def write(self, connection: Connection, partition: Partition, new: Iterable[Place]) -> set[CrawlId]:
        """Store the contexts of the `new` URLs, and of all seeds in the batch, new or known.

        Return the crawls of the URLs for which a context was stored.
        """
        given = {key: context for key in new if (context := self._first[key]) is not None} | self._of_seeds
        ids = {context: context_id(context) for context in given.values()}
        defined = {(key[0], partition, ids[context], encoded(context)) for key, context in given.items()}
        _DEFINE.run(connection, sorted(defined))
        _REFER.run(
            connection, [(*key, ids[context]) for key, context in sorted(given.items(), key=lambda each: each[0])]
        )
        return {crawl_id for crawl_id, _, _ in given}


def crawls_with_contexts(
    connection: Connection, partition: Partition, crawl_ids: Collection[CrawlId]
) -> Collection[CrawlId]:
    """Return which of the crawls have a seed context in the partition (Store.crawls_with_contexts)."""
    return {
        crawl_id
        for crawl_id in crawl_ids
        if connection.execute(_ANY, {"crawl_id": crawl_id, "partition": partition}).first() is not None
    }


def contexts_of(connection: Connection, places: Sequence[HostPlaces]) -> Sequence[Mapping[Fingerprint, SeedContext]]:
    """Return the seed contexts of the URLs in each of `places`, by fingerprint, in the order of `places`.

    A place is a crawl, a host and some URLs. URLs without a context are left out.
    """
    return [_of_host(connection, *place) for place in places]


def _of_host(
    connection: Connection, crawl_id: CrawlId, host_id: HostId, fingerprints: Sequence[Fingerprint]
) -> Mapping[Fingerprint, SeedContext]:
    found: dict[Fingerprint, SeedContext] = {}
    for start in range(0, len(fingerprints), _AT_ONCE):
        some = list(fingerprints[start : start + _AT_ONCE])
        keys = {"crawl_id": crawl_id, "host_id": host_id, "fingerprints": some}
        for row in connection.execute(_OF_HOST, keys):
            if (context := decoded(row.context)) is not None:
                found[Fingerprint(bytes(row.fingerprint))] = context
    return found


def read_contexts(connection: Connection, partition: Partition, leases: Sequence[LeaseRow]) -> None:
    """Set `contexts` of each lease to the seed contexts of its URLs, if its crawl has any in the partition."""
    used = crawls_with_contexts(connection, partition, {lease.crawl_id for lease in leases})
    for lease in leases:
        if lease.crawl_id in used:
            lease.contexts = _of_host(connection, lease.crawl_id, lease.host_id, list(lease.urls))


def contexts_at(
    connection: Connection, crawl_id: CrawlId, urls: Iterable[tuple[HostId, Fingerprint]]
) -> Mapping[tuple[HostId, Fingerprint], SeedContext]:
    """Return the seed contexts of these URLs of a crawl. URLs without one are left out."""
    by_host: dict[HostId, list[Fingerprint]] = defaultdict(list)
    for host_id, fingerprint in urls:
        by_host[host_id].append(fingerprint)
    return {
        (host_id, fingerprint): context
        for host_id, fingerprints in by_host.items()
        for fingerprint, context in _of_host(connection, crawl_id, host_id, fingerprints).items()
    }
