"""/v1/crawls/{name}/lag and /v1/lag: what waits, and for how long."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Path

from api.deps import Served, Services, needs, problems
from api.routing import Router
from api.schemas.crawls import NAME
from api.schemas.progress import Lag, waiting_body
from shared.domain.access import Role
from shared.domain.errors import Transient
from shared.domain.ids import CrawlId
from shared.domain.lag import FrontierLag, Waiting

router = Router(tags=["progress"], dependencies=[needs(Role.VIEWER)])

BROKER_S = 2.0
"""How long the broker may think about reports that wait."""


@router.get("/v1/lag", summary="What waits in the cluster", operation_id="get_cluster_lag")
async def get_cluster_lag(served: Served) -> Lag:
    """Over all crawls that are under way. Two numbers that grow tell where it is held up: shards pending, that there
    are too few workers; reports pending, that the owners or their database are too slow."""
    return await _lag(served, None)


@router.get("/v1/crawls/{name}/lag", summary="What waits in a crawl", operation_id="get_lag", responses=problems(404))
async def get_lag(name: Annotated[str, Path(pattern=NAME)], served: Served) -> Lag:
    """As for the cluster; reports are not kept by crawl, so theirs is the number of all."""
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
    """None while the broker does not answer: the rest is worth showing without it."""
    try:
        async with asyncio.timeout(BROKER_S):
            return await served.backlog.unapplied(frontier.positions)
    except (Transient, TimeoutError):
        return None
