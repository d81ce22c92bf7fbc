"""/v1/crawls/{name}/lag and /v1/lag: how many URLs, shards and reports wait, and for how long."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Path

from api.http.deps import Served, Services, needs, problems
from api.http.routing import Router
from api.schemas.crawls import NAME
from api.schemas.progress import Lag, waiting_body
from shared.domain.errors import Transient
from shared.domain.frontier.lag import FrontierLag, Waiting
from shared.domain.ids import CrawlId
from shared.domain.ops.access import Role

router = Router(tags=["progress"], dependencies=[needs(Role.VIEWER)])

BROKER_S = 2.0
"""Timeout of the broker's count of waiting reports."""


@router.get("/v1/lag", summary="Get the lag of the cluster")
async def get_cluster_lag(served: Served) -> Lag:
    """Return the lag of all running crawls.

    Growing `shards_pending` means too few workers; growing `reports_pending` means slow owners or a slow database.
    """
    return await _lag(served, None)


@router.get("/v1/crawls/{name}/lag", summary="Get the lag of a crawl", responses=problems(404))
async def get_lag(name: Annotated[str, Path(pattern=NAME)], served: Served) -> Lag:
    """Return the lag of one crawl. Reports are not counted by crawl, so their number is that of all crawls."""
    crawl = await served.catalog.crawl(name)
    return await _lag(served, crawl.crawl_id)


async def _lag(served: Services, crawl_id: CrawlId | None) -> Lag:
    now_ms = served.clock.unix_ms()
    frontier = await served.overview.lag(crawl_id, now_ms)
    reports = await _reports(served, frontier)
    return Lag(
        at=datetime.fromtimestamp(now_ms / 1000, UTC),
        due_urls=waiting_body(frontier.due),
        shards_pending=waiting_body(frontier.pending),
        shards_in_flight=waiting_body(frontier.in_flight),
        reports_pending=None if reports is None else waiting_body(reports),
    )


async def _reports(served: Services, frontier: FrontierLag) -> Waiting | None:
    """Return the waiting reports; None if the broker does not answer, so that the rest is still shown."""
    try:
        async with asyncio.timeout(BROKER_S):
            return await served.backlog.unapplied(frontier.positions)
    except (Transient, TimeoutError):
        return None
