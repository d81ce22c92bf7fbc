"""The response bodies of the frontier's state: counters, URLs, hosts and dead letters."""

from datetime import datetime
from typing import Final

from pydantic import Field

from api.schemas.model import Model, moment_of, when
from api.schemas.progress import Rates
from shared.domain.explain.rule_checks import RuleCheck
from shared.domain.explain.sentences import moment
from shared.domain.explain.waits import Waits, cause_of
from shared.domain.frontier.states import CrawlState
from shared.domain.reads.declared import DeadLetterView, HostQueue
from shared.domain.reads.views import FetchView, HostView, KnownUrl, UrlView

TRUNCATED: Final = (
    "Why the body is incomplete: `length`, `time`, `disconnect`, `decoded` or `undecodable`. Null if it is complete."
)


class Identity(Model):
    """By how much counters differ that must agree: two drifts, which are 0 while nothing is being applied."""

    url_drift: int = Field(
        description="`discovered` - (`queued` + `leased` + `done` + `failed` + `excluded`). It is 0 while nothing is "
        "being applied.",
        examples=[0],
    )
    link_drift: int = Field(
        description="`accepted` - (`new` + `known` + `refused`). It is 0 while nothing is being applied.", examples=[0]
    )


class HostSummary(Model):
    """A host, with its queue of one crawl. The queue's counters are null if no crawl was named."""

    host: str = Field(description="`name` or `name:port`, the unit of politeness.", examples=["example.org"])
    ip: str | None = Field(
        description="The IP address that was used last. Null if no connection was made.", examples=["192.0.2.7"]
    )
    queued: int | None = Field(
        description="URLs of the crawl that are queued on this host. Null if no crawl was named.", examples=[280]
    )
    waiting: int | None = Field(
        description="URLs of the crawl that wait for another attempt. Null if no crawl was named.", examples=[8]
    )
    leased: int | None = Field(
        description="URLs of the crawl that are leased to workers. Null if no crawl was named.", examples=[12]
    )
    pages: int | None = Field(
        description="Pages of the crawl that are stored. Null if no crawl was named.", examples=[870]
    )
    delay_s: float = Field(
        description="The longest delay in seconds that robots.txt, an operator or the host's own 429 answers ask "
        "for. A crawl's own delay may be longer.",
        examples=[1.0],
    )
    latency_s: float = Field(description="The duration of the last fetch in seconds.", examples=[0.085])
    failures: int = Field(description="The number of failures in a row.", examples=[0])
    last_failure: str | None = Field(
        description="The reason of the last failure. Null if there was none.", examples=["connect_timeout"]
    )
    blocked_until: datetime | None = Field(
        description="Until when no request is sent to the host. Null if it is not blocked.",
        examples=["2030-01-01T08:12:30Z"],
    )
    visited_at: datetime | None = Field(
        description="When the host was last visited. Null if it never was.", examples=["2030-01-01T08:12:30Z"]
    )


class LeftOutLink(Model):
    """A link that a page has and the crawl did not follow."""

    url: str = Field(
        description="The first 300 characters of the link's URL. An ellipsis marks a longer one.",
        examples=["https://example.com/"],
    )
    page: str = Field(description="The URL of a page with this link.", examples=["https://example.org/guide/"])


class CrawlStats(Model):
    """The counters of a crawl, counts by status and reason, and its rates."""

    counters: dict[str, int] = Field(
        description="The number of URLs by state, and of pages and bytes.",
        examples=[{"discovered": 120, "queued": 20, "done": 100, "pages": 97}],
    )
    identity: Identity = Field(description="Two identities between the counters.")
    tallies: dict[str, dict[str, int]] = Field(
        description="Counts by HTTP status, by reason of failure and by reason of exclusion. `left_out` counts links "
        "that were not followed, by reason. `truncated` counts pages with an incomplete body.",
        examples=[{"status": {"200": 97, "404": 3}, "left_out": {"other_host": 51}}],
    )
    left_out: dict[str, list[LeftOutLink]] = Field(
        description="For each reason in `tallies.left_out`, up to 20 links that the crawl has not discovered "
        "otherwise.",
        examples=[{"other_host": [{"url": "https://example.com/", "page": "https://example.org/guide/"}]}],
    )
    top_hosts: list[HostSummary] = Field(description="The hosts with the most pages.")
    rates: Rates | None = Field(
        description="The current speed. Null before it was measured, and while NATS does not answer."
    )


class WaitingHost(Model):
    """A host to which no request is sent now."""

    host: str = Field(description="The host, with its port if that is not the scheme's own.", examples=["example.org"])
    reason: str = Field(
        description="`refuses` (429 or 503), `silent` (not reached), `crawl_delay`, `slowed`, `delay` or `retry`.",
        examples=["refuses"],
    )
    until: datetime = Field(
        description="The earliest moment of the next request to the host.", examples=["2030-01-01T08:12:30Z"]
    )
    urls: int = Field(description="The number of its URLs that are queued.", examples=[12])
    text: str = Field(
        description="The wait as a sentence.",
        examples=["until 2030-01-01T08:12:30Z for example.org: it answered 429 (too many requests)"],
    )


class CrawlWaits(Model):
    """What hosts with queued URLs wait for. At most 200 of these hosts are examined."""

    standing: bool = Field(description="No host may be asked now, and no request is under way.")
    number: int = Field(description="The number of examined hosts that wait.", examples=[1])
    more: bool = Field(description="The crawl has more hosts than were looked at.")
    hosts: list[WaitingHost] = Field(description="At most 5, those that may be asked first.")


class CrawlProgress(Model):
    """The progress of a crawl, in a few numbers."""

    state: CrawlState = Field(description="The state of the crawl.")
    finished_reason: str | None = Field(
        description="Why the crawl finished: `complete`, `cancelled` or the budget that ended it. Null if it has not "
        "finished.",
        examples=["complete"],
    )
    known: int = Field(
        description="The number of URLs that the crawl has discovered and not excluded.", examples=[1200]
    )
    completed: int = Field(description="The number of these URLs that are done or failed.", examples=[900])
    progress: float = Field(
        description="`completed` / `known`, from 0 to 1. It falls while the crawl discovers URLs faster than it "
        "fetches them.",
        examples=[0.75],
    )
    pages: int = Field(description="The number of stored pages.", examples=[870])
    bytes: int = Field(description="The payload of these pages in bytes.", examples=[15877500])
    active_s: float = Field(description="Seconds during which the crawl was running, over all runs.", examples=[750.0])
    pages_per_s: float = Field(description="Stored pages per second, over the whole of `active_s`.", examples=[4.2])
    rates: Rates | None = Field(
        description="The current speed. Null before it was measured, and while NATS does not answer."
    )
    waits: CrawlWaits = Field(
        description="The reasons why hosts of a crawl that is seeding or running are not fetched now; empty otherwise."
    )


class UrlSummary(Model):
    """A URL of a crawl, in a list of URLs."""

    url: str = Field(description="The URL in canonical form.", examples=["https://example.org/guide/"])
    host: str = Field(description="`name` or `name:port` of its host.", examples=["example.org"])
    state: str = Field(description="`queued`, `waiting`, `leased`, `done`, `failed` or `excluded`.", examples=["done"])
    reason: str | None = Field(description="Why it failed or was excluded. Null otherwise.", examples=["http_404"])
    depth: int = Field(description="The number of links between a seed and this URL.", examples=[1])
    attempts: int = Field(description="The number of attempts that were made.", examples=[1])
    discovered_from: str | None = Field(
        description="The URL of the page on which it was discovered. Null for a seed.",
        examples=["https://example.org/"],
    )
    status: int | None = Field(
        description="The HTTP status of the last fetch. Null if there was no answer.", examples=[200]
    )
    mime: str | None = Field(
        description="The media type of the answer. Null if there was none.", examples=["text/html"]
    )
    size: int | None = Field(
        description="The size of the body in bytes, as transferred. Null if there was none.", examples=[18250]
    )
    fetched_at: datetime | None = Field(
        description="When it was last fetched. Null if it never was.", examples=["2030-01-01T08:12:30Z"]
    )
    redirect: str | None = Field(
        description="The URL that it redirects to. Null if it does not redirect.", examples=["https://example.org/new/"]
    )
    truncated: str | None = Field(description=TRUNCATED, examples=["length"])


class FetchSummary(Model):
    """What the last fetch of a URL returned."""

    at: datetime = Field(description="When the fetch began.", examples=["2030-01-01T08:12:30Z"])
    status: int | None = Field(description="The HTTP status. Null if there was no answer.", examples=[200])
    page: bool = Field(description="True if the archive's index has a record of the answer.")
    reason: str | None = Field(description="Why the fetch failed. Null if it did not.", examples=["connect_timeout"])
    detail: str | None = Field(
        description="The error message. Null if there was none.", examples=["connection refused"]
    )
    latency_ms: int = Field(description="The duration of the fetch in milliseconds.", examples=[85])
    size: int = Field(description="The size of the body in bytes, as transferred.", examples=[18250])
    mime: str | None = Field(
        description="The media type of the answer. Null if there was none.", examples=["text/html"]
    )
    title: str | None = Field(description="The title of the page. Null if it has none.", examples=["A guide"])
    redirect: str | None = Field(
        description="The URL that it redirects to. Null if it does not redirect.", examples=["https://example.org/new/"]
    )
    links: int = Field(description="The number of its links that the crawl followed.", examples=[42])
    links_found: int | None = Field(
        description="The number of all its links. Null if they were not counted.", examples=[51]
    )
    left_out: dict[str, int] = Field(
        description="The number of its links that were not followed, by reason.", examples=[{"other_host": 9}]
    )
    truncated: str | None = Field(description=TRUNCATED, examples=["length"])


class UrlDetail(Model):
    """All that is known of a URL in a crawl."""

    url: str = Field(description="The URL in canonical form.", examples=["https://example.org/guide/"])
    fingerprint: str = Field(
        description="The hash of the URL, 32 hexadecimal digits.", examples=["8a5edab282632443219e051e4ade2d1d"]
    )
    state: str = Field(description="`queued`, `waiting`, `leased`, `done`, `failed` or `excluded`.", examples=["done"])
    reason: str | None = Field(description="Why it failed or was excluded. Null otherwise.", examples=["http_404"])
    depth: int = Field(description="The number of links between a seed and this URL.", examples=[1])
    priority: int = Field(
        description="Its priority, from -100 to 100. Higher priorities are fetched first.", examples=[0]
    )
    attempts: int = Field(description="The number of attempts that were made.", examples=[1])
    due_at: datetime | None = Field(
        description="When it is tried again. Null if no retry is scheduled.", examples=["2030-01-01T08:12:30Z"]
    )
    leased_at: datetime | None = Field(
        description="When it was leased to a worker. Null if it is not leased.", examples=["2030-01-01T08:12:30Z"]
    )
    discovered_from: list[str] = Field(
        description="The URLs of the pages that led to it, nearest first. Empty for a seed.",
        examples=[["https://example.org/"]],
    )
    fetch: FetchSummary | None = Field(description="The last fetch. Null if it was never fetched.")
    host: HostSummary = Field(description="Its host.")
    evidence: list[str] = Field(
        description="The evidence of the dead letters about this URL.",
        examples=[["5 grants of it ran out without a report"]],
    )


class RuleVerdict(Model):
    """What one rule of a crawl says about a URL."""

    rule: str = Field(description="The name of the rule.", examples=["robots"])
    allowed: bool = Field(description="True if the rule allows a fetch of the URL now.")
    detail: str = Field(description="Why the rule allows or forbids it.", examples=["Disallow: /private/"])


class Explanation(Model):
    """The state of a URL and the rules that apply to it."""

    url: str = Field(description="The URL in canonical form.", examples=["https://example.org/private/"])
    known: bool = Field(description="True if the crawl has discovered the URL.")
    state: str | None = Field(
        description="`queued`, `waiting`, `leased`, `done`, `failed` or `excluded`. Null if the URL is not known.",
        examples=["excluded"],
    )
    why: list[str] = Field(
        description="Sentences that explain the state.", examples=[["robots.txt of its host forbids it"]]
    )
    in_scope: bool | None = Field(
        description="True if the scope of the crawl includes the URL. Null if the URL is known."
    )
    linked_from: str | None = Field(
        description="The host from which a link to the URL is assumed. Null if the URL is known.",
        examples=["example.org"],
    )
    blocking_reason: str | None = Field(
        description="The detail of the first rule that forbids a fetch of the URL now. Null if none does.",
        examples=["robots.txt of its host forbids it"],
    )
    rules: list[RuleVerdict] = Field(description="Every rule that applies, in the order of evaluation.")


class HostDetail(Model):
    """A host and its queues of several crawls."""

    host: HostSummary = Field(description="The host.")
    queues: list["QueueSummary"] = Field(description="The queues of at most 100 crawls on this host.")


class QueueSummary(Model):
    """The counters of a crawl's queue on one host."""

    crawl: str = Field(description="The name of the crawl.", examples=["docs"])
    queued: int = Field(description="The number of queued URLs.", examples=[280])
    waiting: int = Field(description="The number of URLs that wait for another attempt.", examples=[8])
    leased: int = Field(description="The number of URLs that are leased to workers.", examples=[12])
    pages: int = Field(description="The number of stored pages.", examples=[870])


class DeadLetter(Model):
    """A URL or message that was given up."""

    id: int = Field(description="The number of the dead letter.", examples=[5])
    crawl_id: int | None = Field(
        description="The number of its crawl. Null if the message could not be read.", examples=[7]
    )
    kind: str = Field(description="What was given up: `url`, or the kind of message.", examples=["url"])
    partition: int = Field(description="The partition that it belongs to.", examples=[12])
    at: datetime = Field(description="When it was given up.", examples=["2030-01-01T08:12:30Z"])
    url: str | None = Field(
        description="The URL. Null if a whole message was given up.", examples=["https://example.org/guide/"]
    )
    evidence: str = Field(
        description="What was tried, and how it ended.", examples=["5 grants of it ran out without a report"]
    )


def host_body(host: HostView, *, of_a_crawl: bool = True) -> HostSummary:
    """Return a host as the API shows it. `of_a_crawl`: include the counters of its queue."""
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
    """Return a URL as a list of URLs shows it."""
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
    """Return a URL with all details, as the API shows it."""
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


def ruling_body(ruling: RuleCheck) -> RuleVerdict:
    """Return what a rule says about a URL, as the API shows it."""
    return RuleVerdict(rule=ruling.rule, allowed=ruling.allowed, detail=ruling.detail)


def queue_body(queue: HostQueue) -> QueueSummary:
    """Return a crawl's queue on a host as the API shows it."""
    return QueueSummary(
        crawl=queue.crawl, queued=queue.queued, waiting=queue.waiting, leased=queue.leased, pages=queue.pages
    )


def letter_body(letter: DeadLetterView) -> DeadLetter:
    """Return a dead letter as the API shows it."""
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


def waits_body(waits: Waits, now_ms: int, *, more: bool, in_flight: bool) -> CrawlWaits:
    """Return what hosts wait for, as the API shows it.

    `more`: not all hosts were examined. `in_flight`: requests are in progress.
    """
    hosts = []
    for wait in waits.hosts:
        until_ms = now_ms + round(wait.wait_s * 1000)
        text = cause_of(wait, f"until {moment(until_ms)}")
        hosts.append(
            WaitingHost(host=wait.host, reason=wait.reason, until=moment_of(until_ms), urls=wait.urls, text=text)
        )
    standing = waits.standing and not (more or in_flight)
    return CrawlWaits(standing=standing, number=waits.number, more=more, hosts=hosts)
