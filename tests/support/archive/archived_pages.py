"""Pages stored as a worker stores them and reported as an owner applies it: any exchange, under any URL."""

from collections.abc import Sequence
from pathlib import Path

from shared.adapters.objects.local import LocalSegments
from shared.domain.archive.model import Archived, ArchivedCrawl, Exchange, RecordLocation
from shared.domain.frontier.states import COUNTED_AS_PAGE, UrlState
from shared.domain.frontier.store_model import Changes, FetchRow, LeaseRow, UrlChange
from shared.domain.web.url import locate
from tests.support.database.store_tables import NOW_MS, Tables, link
from workers.archive import WarcArchive


async def archived(tables: Tables, folder: Path, exchanges: Sequence[Exchange]) -> list[Archived]:
    """Store the exchanges in segments below `folder`, and make pages of them."""
    archive = WarcArchive(LocalSegments(folder), worker_id="w", software="orb/test", wall_ms=lambda: NOW_MS)
    writer = archive.writer(ArchivedCrawl(tables.crawl_id, "docs"))
    stored = [await writer.append(exchange) for exchange in exchanges]
    await archive.close()
    await reported(tables, exchanges, stored)
    return stored


async def reported(tables: Tables, exchanges: Sequence[Exchange], stored: Sequence[Archived]) -> None:
    """Make pages of the exchanges, wherever their outcomes say that they are stored."""
    await tables.found(*(link(exchange.answer.url, exchange.depth or 0) for exchange in exchanges))
    locations = [locate(exchange.answer.url) for exchange in exchanges]
    hosts = sorted({at.host for at in locations if at is not None})
    leases = {row.host: row for row in await tables.lease_all([(host, 500) for host in hosts])}
    changes = Changes(freed=[row.lease_id for row in leases.values()])
    for exchange, place in zip(exchanges, stored, strict=True):
        at = locate(exchange.answer.url)
        assert at is not None
        _settled(changes, leases[at.host], exchange, at.fingerprint, place)
    await tables.apply(changes)


def elsewhere(segment: str, offset: int = 0, length: int = 100) -> Archived:
    """What a worker that lies says of where its page is."""
    return Archived(RecordLocation(segment, offset, length), b"\0" * 20)


def _settled(changes: Changes, row: LeaseRow, exchange: Exchange, mark: bytes, place: Archived) -> None:
    crawl_id, host_id = row.crawl_id, row.host_id
    fingerprint, leased = next((each, url) for each, url in row.urls.items() if each == mark)
    changes.urls.append(UrlChange(crawl_id, host_id, fingerprint, UrlState.DONE, leased.rank, 1, COUNTED_AS_PAGE, None))
    counters, queue = changes.counters[crawl_id], changes.queue(crawl_id, host_id)
    counters["leased"] -= 1
    counters["done"] += 1
    counters["fetches"] += 1
    counters["pages"] += 1
    queue.leased -= 1
    queue.pages += 1
    mime = next((value for name, value in exchange.answer.headers if name == "content-type"), None)
    changes.fetches.append(
        FetchRow(
            crawl_id, host_id, fingerprint, exchange.fetched_at_ms, exchange.answer.status, True,
            latency_ms=12, size=len(exchange.answer.body), mime=mime, digest=place.digest,
            segment=place.location.segment, offset=place.location.offset, length=place.location.length, links=0,
        )
    )  # fmt: skip
