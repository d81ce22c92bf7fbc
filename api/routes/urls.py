"""/v1/crawls/{name}/urls: the state of the URLs of a crawl, and the reasons for it."""

import asyncio
from enum import StrEnum
from typing import Annotated, Final

import structlog
from fastapi import Path, Query, Response

from api.http.deps import Page, Served, Services, problems
from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.http.routing import Router
from api.schemas.crawls import NAME, needs_of
from api.schemas.frontier import Explanation, RuleVerdict, UrlDetail, UrlSummary, detail_body, url_body
from api.schemas.model import Listing
from shared.domain.crawl.spec import CrawlSpec, decode_spec
from shared.domain.crawl.state import CrawlStatus
from shared.domain.errors import Transient
from shared.domain.explain.rule_checks import ExplainContext, blocking_reason, rule_checks
from shared.domain.explain.sentences import why, why_unknown
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.seed_contexts import labels_of, source_of
from shared.domain.frontier.states import CrawlState, UrlState
from shared.domain.ids import Fingerprint, HostId
from shared.domain.reads.declared import DeclaredCrawl
from shared.domain.reads.views import HostView, UrlView
from shared.domain.web.addresses import parse_address
from shared.domain.web.robots import RobotsRecord
from shared.domain.web.url import MAX_URL_CHARS, Location, locate, origin_of
from shared.ports.catalog import Missing, UrlPlace
from shared.wire.messages import Malformed
from shared.wire.robots import decode_robots, robots_key

log = structlog.get_logger("orb.api")

router = Router(prefix="/v1/crawls/{name}/urls", tags=["urls"], responses=problems(404))

_OPEN: Final = (UrlState.QUEUED, UrlState.WAITING)
_SAID: Final = ("robots", "crawl", "pool", "resource_pressure", "capacity", "turn", "rediscover")
"""Names of rules. `explain_url` adds the results of these rules to `why`, the sentences of the explanation.

The results are added only if the URL is queued, waiting or unknown. The field `rules` always has the results of all
rules.
"""

_SEEDED: Final = {
    CrawlState.CREATED: "it is published after `start`",
    CrawlState.PAUSED: "it is published after `resume`",
    CrawlState.FINISHED: "it is published when the crawl runs again",
    CrawlState.RUNNING: "it was published, and is not applied yet or became a dead letter",
}
"""For each state in which a crawl publishes no seeds: a phrase on when it publishes the seeds of its spec."""

_OTHERS: Final = 1000
"""To find other crawls that fetch from a host, at most this many queues of the host are read."""

_ROBOTS_S: Final = 1.0

Name = Annotated[str, Path(pattern=NAME)]
OneUrl = Annotated[
    str,
    Query(
        alias="url",
        max_length=MAX_URL_CHARS,
        description="The URL. It is put into canonical form.",
        examples=["https://a.test/"],
    ),
]


class UrlStateName(StrEnum):
    """The states of a URL in requests and responses of the API."""

    QUEUED = "queued"
    WAITING = "waiting"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    EXCLUDED = "excluded"


@router.get("", summary="List URLs")
async def list_urls(
    name: Name,
    served: Served,
    page: Page,
    response: Response,
    state: Annotated[UrlStateName | None, Query(description="Only URLs in this state.")] = None,
    host: Annotated[str | None, Query(min_length=1, max_length=300, description="Only URLs of this host.")] = None,
    status: Annotated[
        int | None, Query(ge=100, le=599, description="Only URLs whose last answer had this HTTP status.")
    ] = None,
) -> Listing[UrlSummary]:
    """List the URLs of a crawl by host.

    A page of the list examines a bounded number of URLs, so it may be short or empty before the end of the list.
    Continue until `next` is null.
    """
    crawl = await served.catalog.crawl(name)
    after_host, after = page.place(tuple[int, bytes], (-1, b""))
    rows, place = await served.catalog.urls(
        crawl.crawl_id,
        after=UrlPlace(HostId(after_host), Fingerprint(after)),
        state=None if state is None else UrlState[state.name],
        host=host,
        status=status,
        max_count=page.max_count,
    )
    at = None if place is None else (place.host_id, place.fingerprint)
    return Listing(items=[url_body(url) for url in rows], next=page.next(at, response))


@router.get("/lookup", summary="Look up a URL")
async def lookup_url(name: Name, url: OneUrl, served: Served) -> UrlDetail:
    """Return the state of a URL, how it was discovered, and its last fetch; 404 if the crawl has not discovered it."""
    crawl = await served.catalog.crawl(name)
    location = located(url)
    view = await served.catalog.url(crawl.crawl_id, location)
    if view is None:
        raise Missing(f"the crawl {name!r} does not know {location.url}")
    return detail_body(view)


@router.get("/explain", summary="Explain the state of a URL")
async def explain_url(name: Name, url: OneUrl, served: Served) -> Explanation:
    """Return the state of a URL, every rule that applies to it, and the rule that blocks it now.

    A URL that the crawl does not know is judged as if it were discovered now. A seed of the spec is judged as a seed.
    robots.txt is applied as workers last fetched it.
    """
    crawl = await served.catalog.crawl(name)
    location, spec = located(url), decode_spec(crawl.spec)
    now_ms = served.clock.unix_ms()
    view = await served.catalog.url(crawl.crawl_id, location)
    around = await _around(served, crawl, spec, location, view)
    rulings = rule_checks(url, location, view, spec, around, now_ms)
    in_scope: bool | None = None
    via: str | None = None
    if view is not None:
        sentences = why(view, spec, now_ms, retry=f"orb ctl retry-failed {name}", regained_s=around.regained_s)
    else:
        via, verdicts = why_unknown(location.url, spec, host_known=around.host is not None)
        refused = next((verdict for verdict in verdicts if not verdict.allowed), None)
        in_scope = refused is None
        judged = "No scope rule would keep it out." if refused is None else f"It would be excluded: {refused.detail}."
        known = "The crawl does not know this URL."
        if via is None:
            when = _SEEDED.get(crawl.state, "it is being published")
            known = f"It is a seed of the spec, and the crawl does not know it yet: {when}."
        sentences = [known, judged]
    if view is None or view.state in _OPEN:
        sentences += [f"{ruling.detail[0].upper()}{ruling.detail[1:]}." for ruling in rulings if ruling.rule in _SAID]
    sentences += [f"{warning}." for warning in needs_of(crawl.spec).warnings(served)]
    return Explanation(
        url=location.url,
        known=view is not None,
        state=None if view is None else view.state.name.lower(),
        why=sentences,
        in_scope=in_scope,
        linked_from=via,
        labels=labels_of(None if view is None else view.context),
        source=source_of(None if view is None else view.context),
        blocking_reason=blocking_reason(rulings),
        rules=[RuleVerdict.of(ruling) for ruling in rulings],
    )


async def _around(
    served: Services, crawl: DeclaredCrawl, spec: CrawlSpec, location: Location, view: UrlView | None
) -> ExplainContext:
    """Read what the explanation of a URL needs besides the URL's row: the state of crawl, host, workers and rules.

    `view`: the URL's row; None if the crawl does not know the URL.
    """
    counters, _, _ = await served.catalog.stats(crawl.crawl_id)
    workers = served.plane.members().workers.values()
    host = view.host if view is not None else await served.catalog.host(location.host, crawl.crawl_id)
    queues = [] if host is None else await served.catalog.host_queues(host.host_id, _OTHERS)
    visits, busy = served.roster.visits(spec.pool, served.clock.elapsed())
    pressure = served.roster.pressure(spec.pool, served.clock.elapsed())
    commands = await served.catalog.partitions_with_commands(crawl.crawl_id)
    return ExplainContext(
        rediscovering=commands.get(CommandKind.REDISCOVER, 0),
        standing=CrawlStatus(crawl.state, crawl.resumes_as, crawl.finished_reason),
        active_ms=crawl.active_ms,
        counters=counters,
        host=host,
        robots=await _robots(served, location.url),
        workers=sum(worker.pool == spec.pool and not worker.draining for worker in workers),
        held=None if pressure is None else pressure.reason,
        regained_s=served.longest_grant_s + served.ack_wait_s,
        others=tuple(queue.crawl for queue in queues if queue.leased and queue.crawl != crawl.name)[:3],
        visits=visits,
        busy=busy,
        ahead=served.wanted().config.config.master.dispatch_ahead_ratio,
        excluded=await _exclusion(served, location, host),
        revision=crawl.revision,
    )


async def _exclusion(served: Services, location: Location, host: HostView | None) -> str | None:
    """Return a sentence that names the exclusion of the URL and its reason. Return None if no exclusion covers the URL.

    The exclusion may be of the URL, its host, or the host's last known address. `host`: the state of the URL's host;
    None if unknown.
    """
    exclusions = served.exclusions()
    target = exclusions.first(location.url, location.host)
    address = None if host is None or host.ip is None else parse_address(host.ip)
    if target is None and address is not None:
        target = exclusions.of_address(address)
    if target is None:
        return None
    rows = await served.desired.exclusions(after=0, max_count=1, target=target)
    return f"the exclusion of {target} covers it" + "".join(f": {row.terms.reason}" for row in rows)


async def _robots(served: Services, url: str) -> RobotsRecord | None:
    """Return the robots.txt of the URL's origin, as workers have stored it in the broker.

    Return None if none is stored, or if it cannot be read now.
    """
    try:
        async with asyncio.timeout(_ROBOTS_S):
            data = await served.broker.get_robots(robots_key(origin_of(url)))
        return None if data is None else decode_robots(data)
    except (Transient, TimeoutError, Malformed) as error:
        log.warning("shared_robots.omitted", url=url, error=str(error))
        return None


def located(url: str) -> Location:
    """Return the canonical form of a URL that a request names. Raise ApiProblem if it is not an http or https URL."""
    location = locate(url)
    if location is None:
        raise ApiProblem(
            ProblemKind.INVALID, "the URL is not valid", errors=[FieldError("url", "is not an http or https URL")]
        )
    return location
