"""/v1/crawls/{name}/stats and /progress: counters that are maintained, so that asking costs the same at any size."""

from typing import Annotated, Final

from fastapi import APIRouter, Path

from api.deps import Served, needs, problems
from api.schemas.crawls import NAME
from api.schemas.frontier import CrawlProgress, CrawlStats, Identity, host_body
from shared.domain.access import Role

router = APIRouter(
    prefix="/v1/crawls/{name}", tags=["progress"], dependencies=[needs(Role.VIEWER)], responses=problems(404)
)

_UNSHOWN: Final = {"version"}


@router.get("/stats", summary="A crawl's counters", operation_id="get_stats")
async def get_stats(name: Annotated[str, Path(pattern=NAME)], served: Served) -> CrawlStats:
    """Counters, the two identities they must keep, tallies by status and reason, and the hosts with the most pages."""
    crawl = await served.catalog.crawl(name)
    counters, tallies, hosts = await served.catalog.stats(crawl.crawl_id)
    return CrawlStats(
        counters={each: getattr(counters, each) for each in counters.__dataclass_fields__ if each not in _UNSHOWN},
        identity=Identity(url_drift=counters.url_drift(), link_drift=counters.link_drift()),
        tallies={kind: dict(counts) for kind, counts in tallies.items()},
        top_hosts=[host_body(host) for host in hosts],
    )


@router.get("/progress", summary="How far a crawl is", operation_id="get_progress")
async def get_progress(name: Annotated[str, Path(pattern=NAME)], served: Served) -> CrawlProgress:
    """A few numbers for people and bars."""
    crawl = await served.catalog.crawl(name)
    counters, _, _ = await served.catalog.stats(crawl.crawl_id)
    known = counters.discovered - counters.excluded
    settled = counters.done + counters.failed
    active_s = crawl.active_ms / 1000
    return CrawlProgress(
        state=crawl.state,
        finished_reason=crawl.finished_reason,
        known=known,
        settled=settled,
        share=settled / known if known else 0.0,
        pages=counters.pages,
        bytes=counters.bytes,
        active_s=active_s,
        pages_per_s=counters.pages / active_s if active_s else 0.0,
    )
