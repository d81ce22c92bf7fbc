"""/v1/crawls/{name}/urls: what is known of URLs, and why."""

import asyncio
from enum import StrEnum
from typing import Annotated, Final

import structlog
from fastapi import Path, Query, Response

from api.deps import Page, Served, Services, needs, problems
from api.errors import Kind, Problem
from api.fields import FieldError
from api.routing import Router
from api.schemas.crawls import NAME, needs_of
from api.schemas.frontier import Explanation, UrlDetail, UrlSummary, detail_body, ruling_body, url_body
from api.schemas.model import Listing
from shared.domain.access import Role
from shared.domain.crawl import CrawlSpec, decode_spec
from shared.domain.crawl_state import Standing
from shared.domain.declared import DeclaredCrawl
from shared.domain.errors import Transient
from shared.domain.explain import why, why_unknown
from shared.domain.frontier import UrlState
from shared.domain.ids import Fingerprint, HostId
from shared.domain.robots import RobotsRecord
from shared.domain.rulings import Circumstances, rulings, why_not_now
from shared.domain.url import MAX_URL_CHARS, Location, locate, origin_of
from shared.domain.views import UrlView
from shared.ports.catalog import Missing, UrlPlace
from shared.wire.messages import Malformed
from shared.wire.robots import decode_robots, robots_key

log = structlog.get_logger("orb.api")

router = Router(
    prefix="/v1/crawls/{name}/urls", tags=["urls"], dependencies=[needs(Role.VIEWER)], responses=problems(404)
)

_OPEN: Final = (UrlState.QUEUED, UrlState.WAITING)
_SAID: Final = ("robots", "crawl", "pool", "room", "capacity", "turn")
_OTHERS: Final = 1000
"""Crawls of a host, at most, that are looked at for the one whose turn it is."""
"""Rules of which the sentences tell, besides what they say themselves."""

_ROBOTS_S: Final = 1.0

Name = Annotated[str, Path(pattern=NAME)]
OneUrl = Annotated[
    str, Query(alias="url", max_length=MAX_URL_CHARS, description="Any spelling of it.", examples=["https://a.test/"])
]


class UrlStateName(StrEnum):
    """The states of a URL."""

    QUEUED = "queued"
    WAITING = "waiting"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    EXCLUDED = "excluded"


@router.get("", summary="List URLs", operation_id="list_urls")
async def list_urls(
    name: Name,
    served: Served,
    page: Page,
    response: Response,
    state: Annotated[UrlStateName | None, Query(description="Only those in this state.")] = None,
    host: Annotated[str | None, Query(min_length=1, max_length=300, description="Only those of this host.")] = None,
    status: Annotated[
        int | None, Query(ge=100, le=599, description="Only those whose last answer had this status.")
    ] = None,
) -> Listing[UrlSummary]:
    """By host. A page looks at a bounded number of URLs, so one may be short or empty before the end: follow `next`."""
    crawl = await served.catalog.crawl(name)
    after_host, after = page.place(tuple[int, bytes], (-1, b""))
    found, place = await served.catalog.urls(
        crawl.crawl_id,
        after=UrlPlace(HostId(after_host), Fingerprint(after)),
        state=None if state is None else UrlState[state.name],
        host=host,
        status=status,
        most=page.most,
    )
    at = None if place is None else (place.host_id, place.fingerprint)
    return Listing(items=[url_body(url) for url in found], next=page.next(at, response))


@router.get("/lookup", summary="Look a URL up", operation_id="lookup_url")
async def lookup_url(name: Name, url: OneUrl, served: Served) -> UrlDetail:
    """Its state, how it was found, and what came of it; 404 where the crawl has never heard of it."""
    crawl = await served.catalog.crawl(name)
    location = located(url)
    view = await served.catalog.url(crawl.crawl_id, location)
    if view is None:
        raise Missing(f"the crawl {name!r} has never heard of {location.url}")
    return detail_body(view)


@router.get("/explain", summary="Why a URL is where it is", operation_id="explain_url")
async def explain_url(name: Name, url: OneUrl, served: Served) -> Explanation:
    """Its state and why, every rule that applies with its verdict, and which of them holds it up now; also of a URL
    that was never seen, as a dry run. robots.txt is judged by what workers have shared of it."""
    crawl = await served.catalog.crawl(name)
    location, spec = located(url), decode_spec(crawl.spec)
    now_ms = served.clock.unix_ms()
    view = await served.catalog.url(crawl.crawl_id, location)
    around = await _around(served, crawl, spec, location, view)
    found = rulings(url, location, view, spec, around, now_ms)
    in_scope: bool | None = None
    via: str | None = None
    if view is not None:
        said = why(view, spec, now_ms, retry=f"orb ctl retry-failed {name}", regained_s=around.regained_s)
    else:
        via, verdicts = why_unknown(location.url, spec, host_known=around.host is not None)
        refused = next((verdict for verdict in verdicts if not verdict.allowed), None)
        in_scope = refused is None
        judged = "No scope rule would keep it out." if refused is None else f"It would be excluded: {refused.detail}."
        said = ["The crawl has never heard of it.", judged]
    if view is None or view.state in _OPEN:
        said += [f"{ruling.detail[0].upper()}{ruling.detail[1:]}." for ruling in found if ruling.rule in _SAID]
    said += [f"{warning}." for warning in needs_of(crawl.spec).warnings(served)]
    return Explanation(
        url=location.url,
        known=view is not None,
        state=None if view is None else view.state.name.lower(),
        why=said,
        in_scope=in_scope,
        linked_from=via,
        why_not_now=why_not_now(found),
        rules=[ruling_body(ruling) for ruling in found],
    )


async def _around(
    served: Services, crawl: DeclaredCrawl, spec: CrawlSpec, location: Location, view: UrlView | None
) -> Circumstances:
    """What holds around the URL, by what this master sees."""
    counters, _, _ = await served.catalog.stats(crawl.crawl_id)
    workers = served.plane.members().workers.values()
    host = view.host if view is not None else await served.catalog.host(location.host, crawl.crawl_id)
    queues = [] if host is None else await served.catalog.host_queues(host.host_id, _OTHERS)
    visits, busy = served.roster.visits(spec.pool, served.clock.elapsed())
    return Circumstances(
        standing=Standing(crawl.state, crawl.resumes_as, crawl.finished_reason),
        active_ms=crawl.active_ms,
        counters=counters,
        host=host,
        robots=await _robots(served, location.url),
        workers=sum(worker.pool == spec.pool and not worker.draining for worker in workers),
        held=served.roster.held(spec.pool, served.clock.elapsed()),
        regained_s=served.longest_grant_s + served.ack_wait_s,
        others=tuple(queue.crawl for queue in queues if queue.leased and queue.crawl != crawl.name)[:3],
        visits=visits,
        busy=busy,
    )


async def _robots(served: Services, url: str) -> RobotsRecord | None:
    """The record that workers share; None where there is none, or it cannot be had now."""
    try:
        async with asyncio.timeout(_ROBOTS_S):
            data = await served.broker.get_robots(robots_key(origin_of(url)))
        return None if data is None else decode_robots(data)
    except (Transient, TimeoutError, Malformed) as error:
        log.warning("explain.no_robots", url=url, error=str(error))
        return None


def located(url: str) -> Location:
    """The canonical form of a URL in a query; a problem where it has none."""
    location = locate(url)
    if location is None:
        raise Problem(Kind.INVALID, "the URL is not valid", errors=[FieldError("url", "is no http or https URL")])
    return location
