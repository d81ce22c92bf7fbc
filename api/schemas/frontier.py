"""The response bodies of the frontier's state: counters, URLs, hosts and dead letters."""

from datetime import datetime
from typing import Final

from api.schemas.model import Model, field, moment_of, when
from api.schemas.progress import QueuedParts, Rates
from shared.domain.explain.sentences import moment
from shared.domain.explain.waits import Waits, cause_of
from shared.domain.frontier.politeness import FOREVER_MS
from shared.domain.frontier.seed_contexts import labels_of, source_of
from shared.domain.frontier.states import CrawlState
from shared.domain.reads.views import HostView, KnownUrl, UrlView

TRUNCATED: Final = (
    "Why the body is incomplete: `length`, `time`, `disconnect`, `decoded` or `undecodable`. Null if it is complete."
)


class CounterCheck(Model):
    """Shows whether a crawl's counters add up. Each field is a counter minus the sum of its parts.

    A field is 0, except while a message is being applied. A field that stays different from 0 shows a defect.
    """

    url_drift: int = field(
        "`discovered` - (`queued` + `leased` + `done` + `failed` + `excluded`). It is 0 while nothing is "
        "being applied.",
        0,
    )
    link_drift: int = field("`accepted` - (`new` + `known` + `refused`). It is 0 while nothing is being applied.", 0)


class HostSummary(Model):
    """A host, and the counters of its queue in one crawl. The counters are null if the request named no crawl."""

    host: str = field("`name` or `name:port`, the unit of politeness.", "example.org")
    ip: str | None = field("The IP address that was used last. Null if no connection was made.", "192.0.2.7")
    queued: int | None = field("URLs of the crawl that are queued on this host. Null if no crawl was named.", 280)
    waiting: int | None = field("URLs of the crawl that wait for another attempt. Null if no crawl was named.", 8)
    leased: int | None = field("URLs of the crawl that are leased to workers. Null if no crawl was named.", 12)
    pages: int | None = field("Pages of the crawl that are stored. Null if no crawl was named.", 870)
    delay_s: float = field(
        "The longest delay in seconds that robots.txt, the host's policy or its own 429 answers ask "
        "for. A crawl's own delay may be longer.",
        1.0,
    )
    latency_s: float = field("The duration of the last fetch in seconds.", 0.085)
    failures: int = field("The number of failures in a row.", 0)
    last_failure: str | None = field("The reason of the last failure. Null if there was none.", "connect_timeout")
    blocked_until: datetime | None = field(
        "Until when no request is sent to the host, by its own answers or its policy. Null if it is not blocked.",
        "2030-01-01T08:12:30Z",
    )
    visited_at: datetime | None = field("When the host was last visited. Null if it never was.", "2030-01-01T08:12:30Z")


class LeftOutLink(Model):
    """A link that the crawl did not follow, and a page that has it."""

    url: str = field(
        "The first 300 characters of the link's URL. An ellipsis marks a longer one.", "https://example.com/"
    )
    page: str = field("The URL of a page with this link.", "https://example.org/guide/")


class CrawlStats(Model):
    """The counters of a crawl, its counts by status and by reason, and its rates."""

    counters: dict[str, int] = field(
        "The number of URLs by state, and of pages and bytes.",
        {"discovered": 120, "queued": 20, "done": 100, "pages": 97},
    )
    queued_by: QueuedParts = field("The parts of the counter `queued`.")
    identity: CounterCheck = field("Shows whether the counters add up.")
    tallies: dict[str, dict[str, int]] = field(
        "Counts by HTTP status, by reason of failure and by reason of exclusion. `left_out` counts links "
        "that were not followed, by reason. `truncated` counts pages with an incomplete body, `not_indexed` those that "
        "robots directives, `media.stored` or `media.fetched` keep out of lists, exports and items. "
        "`discover` counts the sitemaps and "
        "feeds that were read, and the URLs found first in them (`listed`). `revisited` counts fetches of pages that "
        "were stored before, by what they found.",
        {"status": {"200": 97, "404": 3}, "left_out": {"other_host": 51}},
    )
    left_out: dict[str, list[LeftOutLink]] = field(
        "For each reason in `tallies.left_out`, up to 20 links that the crawl has not discovered otherwise.",
        {"other_host": [{"url": "https://example.com/", "page": "https://example.org/guide/"}]},
    )
    top_hosts: list[HostSummary] = field("The hosts with the most pages.")
    rates: Rates | None = field("The current speed. Null before it was measured, and while NATS does not answer.")


class WaitingHost(Model):
    """A host that gets no request now, with the reason and the end of the wait."""

    host: str = field("The host, with its port if that is not the scheme's own.", "example.org")
    reason: str = field(
        "`refuses` (429 or 503), `silent` (not reached), `crawl_delay`, `slowed`, `delay`, `retry`, `recrawl` or "
        "`policy`.",
        "refuses",
    )
    until: datetime = field(
        "The earliest moment of the next request to the host. The last second of 9999 if its policy blocks it without "
        "an end.",
        "2030-01-01T08:12:30Z",
    )
    urls: int = field("The number of its URLs that are queued.", 12)
    text: str = field(
        "The wait as a sentence.", "until 2030-01-01T08:12:30Z for example.org: it answered 429 (too many requests)"
    )


class CrawlWaits(Model):
    """The hosts with queued URLs that get no request now, and why. At most 200 hosts are examined."""

    standing: bool = field("No host may be asked now, and no request is under way.")
    number: int = field("The number of examined hosts that wait.", 1)
    more: bool = field("The crawl has more hosts than were looked at.")
    hosts: list[WaitingHost] = field("At most 5, those that may be asked first.")


class CrawlProgress(Model):
    """The progress of a crawl, in a few numbers."""

    state: CrawlState = field("The state of the crawl.")
    finished_reason: str | None = field(
        "Why the crawl finished: `complete`, `cancelled`, `refreshed` or the budget that ended it. Null if it has not "
        "finished.",
        "complete",
    )
    known: int = field("The number of URLs that the crawl has discovered and not excluded.", 1200)
    completed: int = field("The number of these URLs that are done or failed.", 900)
    progress: float = field(
        "`completed` / `known`, from 0 to 1. It falls while the crawl discovers URLs faster than it fetches them.", 0.75
    )
    pages: int = field("The number of stored pages.", 870)
    bytes: int = field("The payload of these pages in bytes.", 15877500)
    active_s: float = field("Seconds during which the crawl was running, over all runs.", 750.0)
    pages_per_s: float = field("Stored pages per second, over the whole of `active_s`.", 4.2)
    rates: Rates | None = field("The current speed. Null before it was measured, and while NATS does not answer.")
    next_due_at: datetime | None = field(
        "When the next stored page is due, of the examined hosts. Null if the crawl fetches each page once, or none "
        "waits.",
        "2030-01-02T08:12:30Z",
    )
    commands: dict[str, int] = field(
        "Commands in progress: the number of partitions that still apply each kind. With `rediscover` the links that a "
        "wider scope admits are read from the archive; `tallies.rediscovered` of /stats counts what it has done.",
        {"rediscover": 12},
    )
    waits: CrawlWaits = field(
        "The reasons why hosts of a crawl that is seeding or running are not fetched now; empty otherwise."
    )


class UrlSummary(Model):
    """A URL of a crawl, in a list of URLs."""

    url: str = field("The URL in canonical form.", "https://example.org/guide/")
    host: str = field("`name` or `name:port` of its host.", "example.org")
    state: str = field("`queued`, `waiting`, `leased`, `done`, `failed` or `excluded`.", "done")
    reason: str | None = field("Why it failed or was excluded. Null otherwise.", "http_404")
    depth: int = field("The number of links between a seed and this URL.", 1)
    attempts: int = field("The number of attempts that were made.", 1)
    discovered_from: str | None = field(
        "The URL of the page on which it was discovered. Null for a seed.", "https://example.org/"
    )
    status: int | None = field("The HTTP status of the last fetch. Null if there was no answer.", 200)
    mime: str | None = field("The media type of the answer. Null if there was none.", "text/html")
    size: int | None = field("The size of the body in bytes, as transferred. Null if there was none.", 18250)
    fetched_at: datetime | None = field("When it was last fetched. Null if it never was.", "2030-01-01T08:12:30Z")
    redirect: str | None = field(
        "The URL that it redirects to. Null if it does not redirect.", "https://example.org/new/"
    )
    truncated: str | None = field(TRUNCATED, "length")


class FetchSummary(Model):
    """The result of the last fetch of a URL."""

    at: datetime = field("When the fetch began.", "2030-01-01T08:12:30Z")
    status: int | None = field("The HTTP status. Null if there was no answer.", 200)
    page: bool = field("True if the archive's index has a record of the answer.")
    reason: str | None = field("Why the fetch failed. Null if it did not.", "connect_timeout")
    detail: str | None = field("The error message. Null if there was none.", "connection refused")
    latency_ms: int = field("The duration of the fetch in milliseconds.", 85)
    size: int = field("The size of the body in bytes, as transferred.", 18250)
    mime: str | None = field("The media type of the answer. Null if there was none.", "text/html")
    title: str | None = field("The title of the page. Null if it has none.", "A guide")
    redirect: str | None = field(
        "The URL that it redirects to. Null if it does not redirect.", "https://example.org/new/"
    )
    links: int = field("The number of its links that the crawl followed.", 42)
    links_found: int | None = field("The number of all its links. Null if they were not counted.", 51)
    left_out: dict[str, int] = field("The number of its links that were not followed, by reason.", {"other_host": 9})
    truncated: str | None = field(TRUNCATED, "length")


class UrlDetail(Model):
    """Everything that the crawl has stored about one URL."""

    url: str = field("The URL in canonical form.", "https://example.org/guide/")
    fingerprint: str = field("The hash of the URL, 32 hexadecimal digits.", "8a5edab282632443219e051e4ade2d1d")
    state: str = field("`queued`, `waiting`, `leased`, `done`, `failed` or `excluded`.", "done")
    reason: str | None = field("Why it failed or was excluded. Null otherwise.", "http_404")
    depth: int = field("The number of links between a seed and this URL.", 1)
    priority: int = field("Its priority, from -100 to 100. Higher priorities are fetched first.", 0)
    attempts: int = field("The number of attempts that were made.", 1)
    due_at: datetime | None = field("When it is tried again. Null if no retry is scheduled.", "2030-01-01T08:12:30Z")
    leased_at: datetime | None = field(
        "When it was leased to a worker. Null if it is not leased.", "2030-01-01T08:12:30Z"
    )
    discovered_from: list[str] = field(
        "The URLs of the pages that led to it, nearest first. Empty for a seed.", ["https://example.org/"]
    )
    labels: dict[str, str] = field(
        "The labels of the seed from which the URL was found first. Empty if it has none.", {"team": "search"}
    )
    source: str | None = field(
        "The `source` of the seed from which the URL was found first. Null if it has none.",
        "https://example.org/members.csv",
    )
    fetch: FetchSummary | None = field("The last fetch. Null if it was never fetched.")
    host: HostSummary = field("Its host.")
    evidence: list[str] = field(
        "The evidence of the dead letters about this URL.", ["5 grants of it ran out without a report"]
    )


class RuleVerdict(Model):
    """Whether one rule of a crawl allows a fetch of the URL now, and why."""

    rule: str = field("The name of the rule.", "robots")
    allowed: bool = field("True if the rule allows a fetch of the URL now.")
    detail: str = field("Why the rule allows or forbids it.", "Disallow: /private/")


class Explanation(Model):
    """The state of a URL in a crawl, and every rule that decides whether it may be fetched now."""

    url: str = field("The URL in canonical form.", "https://example.org/private/")
    known: bool = field("True if the crawl has discovered the URL.")
    state: str | None = field(
        "`queued`, `waiting`, `leased`, `done`, `failed` or `excluded`. Null if the URL is not known.", "excluded"
    )
    why: list[str] = field("Sentences that explain the state.", ["robots.txt of its host forbids it"])
    in_scope: bool | None = field("True if the scope of the crawl includes the URL. Null if the URL is known.")
    linked_from: str | None = field(
        "The host from which a link to the URL is assumed. Null if the URL is known, or is a seed of the spec.",
        "example.org",
    )
    labels: dict[str, str] = field(
        "The labels of the seed from which the URL was found first. Empty if it has none.", {"team": "search"}
    )
    source: str | None = field(
        "The `source` of the seed from which the URL was found first. Null if it has none.",
        "https://example.org/members.csv",
    )
    blocking_reason: str | None = field(
        "The detail of the first rule that forbids a fetch of the URL now. Null if none does.",
        "robots.txt of its host forbids it",
    )
    rules: list[RuleVerdict] = field("Every rule that applies, in the order of evaluation.")


class HostDetail(Model):
    """A host, and its queues in at most 100 crawls."""

    host: HostSummary = field("The host.")
    queues: list["QueueSummary"] = field("The queues of at most 100 crawls on this host.")


class QueueSummary(Model):
    """The counters of one crawl's queue on a host."""

    crawl: str = field("The name of the crawl.", "docs")
    queued: int = field("The number of queued URLs.", 280)
    waiting: int = field("The number of URLs that wait for another attempt.", 8)
    leased: int = field("The number of URLs that are leased to workers.", 12)
    pages: int = field("The number of stored pages.", 870)


class DeadLetter(Model):
    """A URL or message that was given up after its attempts, with the evidence."""

    id: int = field("The number of the dead letter.", 5)
    crawl_id: int | None = field("The number of its crawl. Null if the message could not be read.", 7)
    kind: str = field("What was given up: `url`, or the kind of message.", "url")
    partition: int = field("The partition that it belongs to.", 12)
    at: datetime = field("When it was given up.", "2030-01-01T08:12:30Z")
    url: str | None = field("The URL. Null if a whole message was given up.", "https://example.org/guide/")
    evidence: str = field("What was tried, and how it ended.", "5 grants of it ran out without a report")


def host_body(host: HostView, *, of_a_crawl: bool = True) -> HostSummary:
    """Return a host as the API shows it.

    `of_a_crawl`: True if `host` has the counters of its queue in one crawl. Otherwise the counters are null.
    """
    return HostSummary.of(
        host,
        **({} if of_a_crawl else dict.fromkeys(("queued", "waiting", "leased", "pages"))),
        delay_s=max(host.crawl_delay_ms, host.operator_delay_ms, host.slowed_ms) / 1000,
        latency_s=host.latency_ms / 1000,
        blocked_until=when(host.held_until_ms or None),
        visited_at=when(host.visited_at_ms or None),
    )


def url_body(url: KnownUrl) -> UrlSummary:
    """Return a URL as a list of URLs shows it."""
    return UrlSummary.of(url, state=url.state.name.lower(), status=url.status or None)


def detail_body(view: UrlView) -> UrlDetail:
    """Return everything that is stored about a URL, as the API shows it."""
    return UrlDetail.of(
        view,
        fingerprint=view.fingerprint.hex(),
        state=view.state.name.lower(),
        due_at=when(view.due_ms or None),
        discovered_from=view.chain,
        labels=labels_of(view.context),
        source=source_of(view.context),
        fetch=None if view.fetch is None else FetchSummary.of(view.fetch, status=view.fetch.status or None),
        host=host_body(view.host),
    )


def waits_body(waits: Waits, now_ms: int, *, more: bool, in_flight: bool) -> CrawlWaits:
    """Return the waiting hosts of a crawl as the API shows them.

    - `now_ms`: the time (Unix ms) at which `waits` was computed.
    - `more`: True if not all hosts of the crawl were examined.
    - `in_flight`: True if workers have URLs of the crawl.
    """
    hosts = []
    for wait in waits.hosts:
        until_ms = now_ms + round(wait.wait_s * 1000)
        text = cause_of(wait, f"until {moment(until_ms)}" if until_ms < FOREVER_MS else "without an end")
        hosts.append(
            WaitingHost(host=wait.host, reason=wait.reason, until=moment_of(until_ms), urls=wait.urls, text=text)
        )
    standing = waits.standing and not (more or in_flight)
    return CrawlWaits(standing=standing, number=waits.number, more=more, hosts=hosts)
