"""What the frontier knows, as it is shown: numbers, URLs, hosts, and what was given up."""

from datetime import datetime
from typing import Final

from pydantic import Field

from api.schemas.model import Model, moment_of, when
from api.schemas.progress import Rates
from shared.domain.declared import DeadLetterView, HostQueue
from shared.domain.frontier import CrawlState
from shared.domain.rulings import Ruling
from shared.domain.views import FetchView, HostView, KnownUrl, UrlView

TRUNCATED: Final = (
    "Why the body is not whole: `length`, `time`, `disconnect`, `decoded` or `undecodable`; null where it is."
)


class Identity(Model):
    """Two identities that hold whenever nothing is being applied: their drifts are 0."""

    url_drift: int = Field(description="discovered - (queued + leased + done + failed + excluded)")
    link_drift: int = Field(description="accepted - (new + known + refused)")


class HostSummary(Model):
    """A host, with its queue of one crawl (nulls where none was asked for)."""

    host: str = Field(description="`name` or `name:port`, the unit of politeness.", examples=["example.org"])
    ip: str | None
    queued: int | None
    waiting: int | None = Field(description="For another attempt.")
    leased: int | None
    pages: int | None
    delay_s: float = Field(
        description="Seconds that its robots.txt, an operator or its own 429s ask for, whichever is longest."
    )
    latency_s: float
    failures: int = Field(description="In a row.")
    last_failure: str | None
    blocked_until: datetime | None
    visited_at: datetime | None


class LeftOutLink(Model):
    """A link that a rule left out."""

    url: str = Field(description="The first 300 characters, with an ellipsis if there are more.")
    page: str = Field(description="A page that has the link.")


class CrawlStats(Model):
    """Maintained counters, never a scan."""

    counters: dict[str, int] = Field(examples=[{"discovered": 120, "queued": 20, "done": 100, "pages": 97}])
    identity: Identity
    tallies: dict[str, dict[str, int]] = Field(
        description="By status, by reason of failure and of exclusion. `left_out` counts links of pages that a rule "
        "left out, `truncated` the pages whose body is not whole.",
        examples=[{"status": {"200": 97, "404": 3}, "left_out": {"other_host": 51}}],
    )
    left_out: dict[str, list[LeftOutLink]] = Field(
        description="Of each reason in `tallies.left_out` up to 20 links that the crawl has not taken up since."
    )
    top_hosts: list[HostSummary] = Field(description="Those with the most pages.")
    rates: Rates | None = Field(description="Null before there are any, and while the broker does not answer.")


class CrawlProgress(Model):
    """How far a crawl is."""

    state: CrawlState
    finished_reason: str | None
    known: int = Field(description="URLs the crawl has heard of and has not excluded.")
    settled: int = Field(description="Of these, done or failed for good.")
    share: float = Field(description="settled / known; it falls while the crawl finds more than it fetches.")
    pages: int
    bytes: int
    active_s: float
    pages_per_s: float = Field(description="Over all the time the crawl was worked on.")
    rates: Rates | None = Field(description="Null before there are any, and while the broker does not answer.")


class UrlSummary(Model):
    """A URL in a list."""

    url: str
    host: str
    state: str = Field(examples=["done"])
    reason: str | None
    depth: int
    attempts: int
    discovered_from: str | None
    status: int | None
    mime: str | None
    size: int | None
    fetched_at: datetime | None
    redirect: str | None
    truncated: str | None = Field(description=TRUNCATED)


class FetchSummary(Model):
    """The fetch of a URL that stands."""

    at: datetime
    status: int | None
    page: bool = Field(description="Its record is in the archive's index.")
    reason: str | None
    detail: str | None
    latency_ms: int
    size: int
    mime: str | None
    title: str | None
    redirect: str | None
    links: int = Field(description="Outlinks that were taken up.")
    links_found: int | None = Field(description="All outlinks; null where they were not counted.")
    left_out: dict[str, int] = Field(description="Outlinks that were left out, by reason.")
    truncated: str | None = Field(description=TRUNCATED)


class UrlDetail(Model):
    """Everything known of one URL."""

    url: str
    fingerprint: str
    state: str
    reason: str | None
    depth: int
    priority: int
    attempts: int
    due_at: datetime | None = Field(description="When it is tried again, if it waits for that.")
    leased_at: datetime | None
    discovered_from: list[str] = Field(description="The pages that led here, nearest first.")
    fetch: FetchSummary | None
    host: HostSummary
    evidence: list[str]


class RuleVerdict(Model):
    """What one rule says of a URL now."""

    rule: str = Field(examples=["robots"])
    allowed: bool = Field(description="False: it keeps the URL from being fetched now, or for good.")
    detail: str


class Explanation(Model):
    """Why a URL is in the state it is in, or what would become of one the crawl has never seen."""

    url: str
    known: bool
    state: str | None
    why: list[str] = Field(description="Sentences: the state, its reason, and what applies now.")
    in_scope: bool | None = Field(description="Of a URL that was never seen.")
    linked_from: str | None = Field(description="The host whose page is supposed to link to it.")
    why_not_now: str | None = Field(description="The first rule that keeps it from being fetched now; null: none does.")
    rules: list[RuleVerdict] = Field(description="Every rule that applies, in the order in which the URL meets them.")


class HostDetail(Model):
    """A host and what crawls have to do there."""

    host: HostSummary
    queues: list["QueueSummary"]


class QueueSummary(Model):
    """A crawl's queue on one host."""

    crawl: str
    queued: int
    waiting: int
    leased: int
    pages: int


class DeadLetter(Model):
    """What was given up. `url` is null where it was a whole message."""

    id: int
    crawl_id: int | None
    kind: str
    partition: int
    at: datetime
    url: str | None
    evidence: str


def host_body(host: HostView, *, of_a_crawl: bool = True) -> HostSummary:
    """The host as it is shown; its queue only where the view is of one crawl."""
    return HostSummary(
        host=host.host,
        ip=host.ip,
        queued=host.queued if of_a_crawl else None,
        waiting=host.waiting if of_a_crawl else None,
        leased=host.leased if of_a_crawl else None,
        pages=host.pages if of_a_crawl else None,
        delay_s=max(host.crawl_delay_ms, host.operator_delay_ms, host.slowed_ms) / 1000,
        latency_s=host.latency_ms / 1000,
        failures=host.failures,
        last_failure=host.last_failure,
        blocked_until=when(host.blocked_until_ms or None),
        visited_at=when(host.visited_at_ms or None),
    )


def url_body(url: KnownUrl) -> UrlSummary:
    """The URL as a list shows it."""
    return UrlSummary(
        url=url.url,
        host=url.host,
        state=url.state.name.lower(),
        reason=url.reason,
        depth=url.depth,
        attempts=url.attempts,
        discovered_from=url.discovered_from,
        status=url.status or None,
        mime=url.mime,
        size=url.size,
        fetched_at=when(url.fetched_at_ms),
        redirect=url.redirect,
        truncated=url.truncated,
    )


def detail_body(view: UrlView) -> UrlDetail:
    """Everything known of the URL."""
    return UrlDetail(
        url=view.url,
        fingerprint=view.fingerprint.hex(),
        state=view.state.name.lower(),
        reason=view.reason,
        depth=view.depth,
        priority=view.priority,
        attempts=view.attempts,
        due_at=when(view.due_ms or None),
        leased_at=when(view.leased_at_ms),
        discovered_from=list(view.chain),
        fetch=None if view.fetch is None else _fetch(view.fetch),
        host=host_body(view.host),
        evidence=list(view.evidence),
    )


def ruling_body(ruling: Ruling) -> RuleVerdict:
    """The ruling as it is shown."""
    return RuleVerdict(rule=ruling.rule, allowed=ruling.allowed, detail=ruling.detail)


def queue_body(queue: HostQueue) -> QueueSummary:
    """The queue as it is shown."""
    return QueueSummary(
        crawl=queue.crawl, queued=queue.queued, waiting=queue.waiting, leased=queue.leased, pages=queue.pages
    )


def letter_body(letter: DeadLetterView) -> DeadLetter:
    """The dead letter as it is shown."""
    return DeadLetter(
        id=letter.id,
        crawl_id=letter.crawl_id,
        kind=letter.kind,
        partition=letter.partition,
        at=moment_of(letter.at_ms),
        url=letter.url,
        evidence=letter.evidence,
    )


def _fetch(fetch: FetchView) -> FetchSummary:
    return FetchSummary(
        at=moment_of(fetch.at_ms),
        status=fetch.status or None,
        page=fetch.page,
        reason=fetch.reason,
        detail=fetch.detail,
        latency_ms=fetch.latency_ms,
        size=fetch.size,
        mime=fetch.mime,
        title=fetch.title,
        redirect=fetch.redirect,
        links=fetch.links,
        links_found=fetch.links_found,
        left_out=dict(fetch.left_out),
        truncated=fetch.truncated,
    )
