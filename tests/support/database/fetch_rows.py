"""Leases, and accepted outcomes of pages, put into a database without an owner."""

from sqlalchemy import insert

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.executor import Executor
from shared.adapters.sql.frontier.apply import _FETCH_COLUMNS, FETCH
from shared.domain.ids import CrawlId
from shared.domain.reads.items import PageItems


async def fetched(
    run: Executor, crawl_id: CrawlId, page: PageItems, *, brings_page: bool = True, reason: str | None = None
) -> None:
    """The outcome of a fetch is accepted."""
    known = {
        "crawl_id": crawl_id,
        "host_id": page.host_id,
        "fingerprint": page.fingerprint,
        "at_ms": page.at_ms,
        "status": 200 if brings_page else 500,
        "latency_ms": 1,
        "size": 1,
        "links": 0,
        "page": brings_page,
        "reason": reason,
    }
    row = tuple(map(known.get, _FETCH_COLUMNS))
    await run.write(lambda c: FETCH.run(c, [row]))


async def leased(run: Executor, crawl_id: CrawlId, lease: int) -> None:
    """A lease is out."""
    row = {
        "lease_id": lease,
        "partition": 0,
        "term": 1,
        "crawl_id": crawl_id,
        "spec": 1,
        "host_id": 4099,
        "slot": lease,
        "pool": "default",
        "delay_ms": 0,
        "grants": 1,
        "expired": 0,
        "fingerprints": b"",
        "issued_at_ms": 0,
    }
    await run.write(lambda c: c.execute(insert(schema.leases).values(row)).close())


async def ended(run: Executor, lease: int) -> None:
    """A lease is over."""
    await run.write(lambda c: c.execute(schema.leases.delete().where(schema.leases.c.lease_id == lease)).close())
