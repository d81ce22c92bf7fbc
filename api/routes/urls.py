"""/v1/crawls/{name}/urls: what is known of URLs, and why."""

from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from api.deps import Page, Served, needs, problems
from api.errors import FieldError, Kind, Problem
from api.schemas.crawls import NAME
from api.schemas.frontier import Explanation, UrlDetail, UrlSummary, detail_body, url_body, verdict_body
from api.schemas.model import Listing
from shared.domain.access import Role
from shared.domain.crawl import decode_spec
from shared.domain.explain import why, why_unknown
from shared.domain.frontier import CrawlState, UrlState
from shared.domain.ids import Fingerprint, HostId
from shared.domain.url import MAX_URL_CHARS, Location, locate
from shared.ports.catalog import Missing, UrlPlace

router = APIRouter(
    prefix="/v1/crawls/{name}/urls", tags=["urls"], dependencies=[needs(Role.VIEWER)], responses=problems(404)
)

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
    host: Annotated[str | None, Query(max_length=300, description="Only those of this host.")] = None,
) -> Listing[UrlSummary]:
    """By host. A page looks at a bounded number of URLs, so one may be short or empty before the end: follow `next`."""
    crawl = await served.catalog.crawl(name)
    after_host, after = page.place(tuple[int, bytes], (-1, b""))
    found, place = await served.catalog.urls(
        crawl.crawl_id,
        after=UrlPlace(HostId(after_host), Fingerprint(after)),
        state=None if state is None else UrlState[state.name],
        host=host,
        most=page.most,
    )
    at = None if place is None else (place.host_id, place.fingerprint)
    return Listing(items=[url_body(url) for url in found], next=page.next(at, response))


@router.get("/lookup", summary="Look a URL up", operation_id="lookup_url")
async def lookup_url(name: Name, url: OneUrl, served: Served) -> UrlDetail:
    """Its state, how it was found, and what came of it; 404 where the crawl has never heard of it."""
    crawl = await served.catalog.crawl(name)
    location = _located(url)
    view = await served.catalog.url(crawl.crawl_id, location)
    if view is None:
        raise Missing(f"the crawl {name!r} has never heard of {location.url}")
    return detail_body(view)


@router.get("/explain", summary="Why a URL is where it is", operation_id="explain_url")
async def explain_url(name: Name, url: OneUrl, served: Served) -> Explanation:
    """Why, and what applies now; for a URL that was never seen, what each scope rule would say of it."""
    crawl = await served.catalog.crawl(name)
    location, spec = _located(url), decode_spec(crawl.spec)
    view = await served.catalog.url(crawl.crawl_id, location)
    held = [] if crawl.state is CrawlState.RUNNING else [f"The crawl is {crawl.state}: nothing new is sent out."]
    if view is not None:
        said = why(view, spec, served.clock.unix_ms())
        open_states = (UrlState.QUEUED, UrlState.WAITING)
        return Explanation(
            url=view.url,
            known=True,
            state=view.state.name.lower(),
            why=said + (held if view.state in open_states else []),
            in_scope=None,
            linked_from=None,
            rules=[],
        )
    host = await served.catalog.host(location.host, crawl.crawl_id)
    via, verdicts = why_unknown(location.url, spec, host_known=host is not None)
    refused = next((verdict for verdict in verdicts if not verdict.allowed), None)
    judged = "No scope rule would keep it out." if refused is None else f"It would be excluded: {refused.detail}."
    return Explanation(
        url=location.url,
        known=False,
        state=None,
        why=["The crawl has never heard of it.", judged, *held],
        in_scope=refused is None,
        linked_from=via,
        rules=[verdict_body(verdict) for verdict in verdicts],
    )


def _located(url: str) -> Location:
    location = locate(url)
    if location is None:
        raise Problem(Kind.INVALID, "the URL is not valid", errors=[FieldError("url", "is no http or https URL")])
    return location
