"""/v1/crawls/{name}/stats and /progress: counters that are maintained, so that asking costs the same at any size.

Rates are the leader's, from its last word on a crawl's progress in the stream of events: every master tells the same.
"""

import asyncio
from typing import Annotated, Final

from fastapi import Path

from api.deps import Served, Services, needs, problems
from api.routing import Router
from api.schemas.crawls import NAME
from api.schemas.frontier import CrawlProgress, CrawlStats, Identity, LeftOutLink, host_body
from api.schemas.progress import Rates, rates_body
from shared.domain.access import Role
from shared.domain.errors import Transient
from shared.domain.ids import CrawlId
from shared.domain.ledger import Counters
from shared.wire.events import EventKind, decode_event, event_subject
from shared.wire.messages import Malformed

router = Router(
    prefix="/v1/crawls/{name}", tags=["progress"], dependencies=[needs(Role.VIEWER)], responses=problems(404)
)

_UNSHOWN: Final = {"version"}
RATES_S: Final = 1.0
"""How long the broker may think about rates before the rest is shown without them."""


@router.get("/stats", summary="A crawl's counters", operation_id="get_stats")
async def get_stats(name: Annotated[str, Path(pattern=NAME)], served: Served) -> CrawlStats:
    """Counters, the two identities they must keep, tallies by status and reason, and the hosts with the most pages."""
    crawl = await served.catalog.crawl(name)
    (counters, tallies, hosts), left_out, rates = await asyncio.gather(
        served.catalog.stats(crawl.crawl_id),
        served.catalog.left_out(crawl.crawl_id),
        _rates(served, crawl.crawl_id),
    )
    return CrawlStats(
        counters={each: getattr(counters, each) for each in counters.__dataclass_fields__ if each not in _UNSHOWN},
        identity=Identity(url_drift=counters.url_drift(), link_drift=counters.link_drift()),
        tallies={kind: dict(counts) for kind, counts in tallies.items()},
        left_out={
            reason: [LeftOutLink(url=each.url, page=each.page) for each in examples]
            for reason, examples in left_out.items()
        },
        top_hosts=[host_body(host) for host in hosts],
        rates=rates,
    )


@router.get("/progress", summary="How far a crawl is", operation_id="get_progress")
async def get_progress(name: Annotated[str, Path(pattern=NAME)], served: Served) -> CrawlProgress:
    """A few numbers for people and bars."""
    crawl = await served.catalog.crawl(name)
    counted, rates = await asyncio.gather(served.overview.counters([crawl.crawl_id]), _rates(served, crawl.crawl_id))
    counters = counted.get(crawl.crawl_id, Counters())
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
        rates=rates,
    )


async def _rates(served: Services, crawl_id: CrawlId) -> Rates | None:
    """As the leader told them last; None before it did, and while the broker does not answer."""
    try:
        async with asyncio.timeout(RATES_S):
            stored = await served.events.last(event_subject(EventKind.PROGRESS, str(crawl_id)))
            return None if stored is None else rates_body(stored, decode_event(stored.data))
    except (Transient, TimeoutError, Malformed):
        return None
