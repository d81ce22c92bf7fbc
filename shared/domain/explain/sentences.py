"""Explain the state of a URL in sentences, for `orb` and the API. The functions do no I/O."""

from datetime import UTC, datetime
from typing import Final, assert_never

from msgspec import Struct

from shared.domain.crawl.exclusions import OWNER
from shared.domain.crawl.host_specs import compiled_scope, deciding, spec_for
from shared.domain.crawl.media_spec import NOT_PARSED
from shared.domain.crawl.priority_rules import compiled_priority
from shared.domain.crawl.recrawl_rules import compiled
from shared.domain.crawl.recrawl_spec import RecrawlPolicy
from shared.domain.crawl.requisites_spec import MAX_REQUISITES, REQUISITE_HOST, REQUISITES_PER_PAGE
from shared.domain.crawl.scope import ExclusionReason, Verdict
from shared.domain.crawl.spec import CrawlSpec
from shared.domain.explain.excluded_links import (
    INVALID,
    LINKS_PER_PAGE,
    NOFOLLOW,
    NOT_INDEXED,
    SITEMAP_LOCATION,
    not_indexed,
)
from shared.domain.explain.redirects import COOKIES
from shared.domain.frontier.commands import SEED_DELETED, SEED_WITHDRAWN
from shared.domain.frontier.failure import HOST_UNREACHABLE
from shared.domain.frontier.page_history import QUIET
from shared.domain.frontier.politeness import FOREVER_MS, host_delay
from shared.domain.frontier.states import CrawlState, UrlKind, UrlState
from shared.domain.reads.views import HostView, UrlView
from shared.domain.web.fetch import CLUSTER_ENDPOINT, FailureKind
from shared.domain.web.robots import BY_TYPE, NotIndexed
from shared.domain.web.url import canonicalize, host_of


class Meaning(Struct, frozen=True):
    """The texts for a failure or exclusion reason: a short name, a sentence on it, and advice (may be empty)."""

    short: str
    text: str
    advice: str = ""


_MEANINGS: Final = {
    FailureKind.DNS: Meaning(
        "dns", "the host's name could not be resolved", "check the spelling, and that this machine has a network"
    ),
    FailureKind.CONNECT: Meaning(
        "connect", "no connection could be made", "check the port, and that this machine reaches the host"
    ),
    FailureKind.TLS: Meaning(
        "tls",
        "the host's certificate or encryption was not acceptable",
        "use http:// in the URL if the host does not support https; if your own authority signed its certificate, "
        "name that authority's file with --ca FILE --retry-failed (in a cluster: SSL_CERT_FILE of the workers)",
    ),
    FailureKind.CONNECT_TIMEOUT: Meaning(
        "connect timeout", "no connection was made in time", "check the network, or raise fetch.connect_timeout_s"
    ),
    FailureKind.FIRST_BYTE_TIMEOUT: Meaning(
        "slow", "the server did not begin to answer in time", "raise fetch.first_byte_timeout_s"
    ),
    FailureKind.TOTAL_TIMEOUT: Meaning("too slow", "the answer did not end in time", "raise fetch.total_timeout_s"),
    FailureKind.RESET: Meaning("reset", "the server closed the connection"),
    FailureKind.PROTOCOL: Meaning("protocol", "the answer was not valid HTTP"),
    FailureKind.HEADERS_TOO_LARGE: Meaning(
        "large headers",
        "the answer's headers exceed the limit",
        "raise fetch.max_header_bytes, unless one line is longer than 100 KiB",
    ),
    FailureKind.EGRESS_DENIED: Meaning(
        "egress denied",
        "the host's address is internal or the cluster's own, and such addresses are blocked",
        "allow an internal network: --allow-net CIDR, such as --allow-net 127.0.0.0/8; in a cluster, give the workers "
        "this flag, and name the network in egress.allow of the spec, too",
    ),
    FailureKind.EXCLUDED: Meaning("excluded", "an exclusion covers its address", "see `orb ctl get exclusions`"),
    FailureKind.PROXY: Meaning("proxy", "the proxy refused or could not be reached", "check fetch.proxy"),
    FailureKind.OTHER: Meaning("other", "the fetch failed for a reason without a name of its own"),
    HOST_UNREACHABLE: Meaning(
        "host unreachable", "the host could not be reached several times in a row and was given up",
        "try it again with --retry-failed once the host can be reached",
    ),
    "poison": Meaning(
        "gave up", "no worker could finish its visit", "see the dead letter's evidence and the worker's log"
    ),
    ExclusionReason.HOPS: Meaning("redirects", "too many redirects in a row lead to it"),
    ExclusionReason.DEPTH: Meaning("depth", "it is deeper than the depth limit", "raise --max-depth"),
    ExclusionReason.HOST: Meaning("other host", "it is on another host", "widen --scope"),
    ExclusionReason.PORT: Meaning("other port", "it is on another port of the host", "widen --scope"),
    ExclusionReason.DOMAIN: Meaning("other domain", "it is on another domain", "widen --scope"),
    ExclusionReason.PREFIX: Meaning("outside prefix", "it is not below a seed's path", "widen --scope"),
    ExclusionReason.SCHEME: Meaning("scheme", "its scheme is not crawled", "see scope.schemes"),
    INVALID: Meaning("invalid", "it is not a valid http or https URL"),
    ExclusionReason.LENGTH: Meaning("too long", "the URL is longer than allowed", "raise scope.max_url_length"),
    ExclusionReason.EXCLUDE: Meaning("exclude", "an exclude pattern matches it", "see --exclude"),
    ExclusionReason.INCLUDE: Meaning("include", "no include pattern matches it", "see --include"),
    ExclusionReason.TRAP: Meaning("trap", "it looks like part of an endless URL space", "see scope.traps"),
    ExclusionReason.ROBOTS: Meaning(
        "robots", "the host's robots.txt forbids it", "ask the site's owner; --no-robots ignores it"
    ),
    "http_304": Meaning(
        "HTTP 304", "the server answered that the page did not change (status 304), although it was not asked"
    ),
    OWNER: Meaning(
        "exclusion", "an exclusion covers it, or did when it was last found", "see `orb ctl get exclusions`"
    ),
    SEED_DELETED: Meaning("seed deleted", "an operator took it from the seeds before it was fetched", "add it again"),
    SEED_WITHDRAWN: Meaning(
        "seed withdrawn", "it has left the seed sets of the crawl before it was fetched", "put it into a set again"
    ),
    LINKS_PER_PAGE: Meaning(
        "links per page",
        "its page has more links than the limit",
        "raise extract.max_links_per_page in the spec",
    ),
    NotIndexed.NOINDEX: Meaning("noindex", "its robots directives forbid to index it"),
    NotIndexed.UNAVAILABLE_AFTER: Meaning(
        "unavailable after", "its robots directives forbid to index it after a date that has passed"
    ),
    NotIndexed.MEDIA_TYPE: Meaning(
        "media type", "media.stored of the spec leaves out its media type", "add the type to media.stored"
    ),
    NotIndexed.NOT_FETCHED: Meaning(
        "not fetched", "media.fetched of the spec leaves out its media type", "add the type to media.fetched"
    ),
    NOT_PARSED: Meaning(
        "not parsed", "media.parsed of the spec leaves out the media type of its page", "add the type to media.parsed"
    ),
    NOFOLLOW: Meaning("nofollow", "its page marks it as nofollow", "see extract.follow_nofollow"),
    SITEMAP_LOCATION: Meaning(
        "outside sitemap",
        "it is not below the path of the sitemap that lists it, and the robots.txt of its host does not name the "
        "sitemap",
    ),
    REQUISITE_HOST: Meaning(
        "requisite host", "it is a requisite on another host than its page", "set --requisites all"
    ),
    REQUISITES_PER_PAGE: Meaning(
        "requisites per page",
        "its page has more requisites than the limit",
        "raise budget.max_requisites_per_page in the spec",
    ),
    MAX_REQUISITES: Meaning(
        "requisites", "it is a requisite, and the budget of requisites was spent", "raise --max-requisites"
    ),
    "requisite": Meaning("requisite", "it is a requisite of a page: it was stored, and it is not a page"),
    "sitemap": Meaning("sitemap", "it is a sitemap or feed: its entries were read, and it is not a page"),
    "max_pages_per_host": Meaning(
        "host budget", "its host has reached its page limit", "raise budget.max_pages_per_host"
    ),
    "depth": Meaning("depth", "it is deeper than the depth limit", "raise --max-depth"),
}  # fmt: skip


HELD: Final = {
    CrawlState.CREATED: "it was never started; `start` begins it",
    CrawlState.PAUSED: "no URL is dispatched until `resume`",
    CrawlState.FINISHED: "queued URLs wait for `start`",
    CrawlState.DELETED: "its rows are being removed",
}
"""For each state in which a crawl dispatches nothing: a phrase on what would change that."""

REOPENS: Final = "it runs again by itself as soon as a URL is queued"
"""A phrase for a crawl that finished as `complete`: what makes it dispatch URLs again."""


KINDS: Final = {
    UrlKind.LISTED: "a page that a sitemap or feed lists",
    UrlKind.SITEMAP: "a sitemap",
    UrlKind.HOST_SITEMAP: "a sitemap",
    UrlKind.FEED: "a feed",
    UrlKind.REQUISITE: "a requisite of a page",
}
"""For each kind of URL a phrase that describes it. Links and seeds have none."""


def found_on(view: UrlView) -> str:
    """Return a phrase on how a URL was found, such as `found on https://example.org/` or `a seed`."""
    if not view.chain:
        return "a seed"
    match view.kind:
        case UrlKind.PAGE:
            return f"found on {view.chain[0]}"
        case UrlKind.LISTED:
            return f"listed in the sitemap or feed {view.chain[0]}"
        case UrlKind.REQUISITE:
            return f"a requisite of {view.chain[0]}"
        case UrlKind.FEED:
            return f"a feed that {view.chain[0]} names"
        case UrlKind.SITEMAP | UrlKind.HOST_SITEMAP:
            return f"a sitemap of the host, found with {view.chain[0]}"
        case never:
            assert_never(never)


NEEDS_SCRIPTS: Final = "the page has scripts but neither text nor links, and scripts are not run"
"""The note on a page that a browser would fill by scripts."""


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: `1 failure`, `2 failures`. The plural of `noun` is made by appending an s."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def given_again(regained_s: float) -> str:
    """Return a phrase which says that the URLs of a dead worker are dispatched again within `regained_s` seconds."""
    return f"if a worker dies, its URLs are dispatched again within about {regained_s:g} s"


def meaning(reason: str) -> Meaning:
    """Return the texts for a failure kind, an exclusion reason, or a failure reason such as `http_404`.

    For an unknown reason the short name and the sentence are both the reason itself, with spaces for underscores. There
    is then no advice.
    """
    entry = _MEANINGS.get(reason)
    if entry is not None:
        return entry
    plain = reason.removeprefix("robots_") if reason.startswith("robots_") else None
    if plain is not None:
        inner = meaning(plain)
        return Meaning(f"robots.txt {inner.short}", f"its robots.txt could not be read: {inner.text}", inner.advice)
    if reason.startswith("http_") and reason[5:].isdigit():
        return Meaning(f"HTTP {reason[5:]}", f"the server answered with status {reason[5:]}")
    return Meaning(reason.replace("_", " "), reason.replace("_", " "))


def why(view: UrlView, spec: CrawlSpec, now_ms: int, *, retry: str, regained_s: float | None = None) -> list[str]:
    """Return sentences on a URL: its state, the reason for this state, and which limits of its host apply now.

    `retry`: the command that queues the crawl's failed URLs again. `regained_s`: seconds after which the URLs of a dead
    worker are dispatched again, None if unknown.
    """
    fetch = view.fetch
    match view.state:
        case UrlState.QUEUED:
            sentences = [
                f"It waits in the queue of {view.host.host}, which has {counted(view.host.queued, 'URL')} queued."
            ]
            if view.reason == "depth":
                sentences.append("It was fetched before and is queued again: a shorter path to it was found.")
            if view.host.leased and regained_s is not None:
                sentences.append(
                    f"{counted(view.host.leased, 'URL')} of that host {'is' if view.host.leased == 1 else 'are'} with "
                    f"workers now: {given_again(regained_s)}."
                )
            sentences += _waits(view, spec, now_ms)
        case UrlState.WAITING if view.history is not None and not view.attempts:
            sentences = [
                f"{_fetched(view)} It is fetched again {_when(view.due_ms, now_ms)}: {interval_of(view, spec)}."
            ]
            if view.reason == ExclusionReason.ROBOTS:
                sentences.append("It was due before, but robots.txt forbade the request. What is stored stays.")
            sentences += _waits(view, spec, now_ms)
        case UrlState.WAITING:
            sentences = [
                f"It failed ({_reason(view)}) and is tried again {_when(view.due_ms, now_ms)}; "
                f"{view.attempts} of {spec.retry.attempts} attempts are used."
            ]
            sentences += _waits(view, spec, now_ms)
        case UrlState.LEASED:
            since = "" if view.leased_at_ms is None else f" since {moment(view.leased_at_ms)}"
            again = "" if regained_s is None else f": {given_again(regained_s)}"
            sentences = [f"It is with a worker{since}, to be fetched now{again}."]
        case UrlState.DONE:
            sentences = ["It was fetched."] if fetch is None else [_fetched(view)]
            if view.reason == QUIET:
                sentences.append("It is read no more: its last fetches found nothing new [discover.max_quiet_fetches].")
        case UrlState.FAILED:
            sentences = [f"It failed for good: {_reason(view)}."]
            if view.reason == HOST_UNREACHABLE and view.host.last_failure:
                sentences.append(f"The host's last failure: {view.host.last_failure}.")
            if advice := _advice(view, retry):
                sentences.append(f"What can be done: {advice}.")
        case UrlState.EXCLUDED:
            entry = meaning(view.reason or "unknown")
            sentences = [f"It is excluded: {entry.text}."]
            if entry.advice:
                sentences.append(f"What can be done: {entry.advice}.")
        case never:
            assert_never(never)
    if view.evidence:
        sentences.append(f"Evidence kept: {'; '.join(view.evidence)}.")
    return sentences


def why_unknown(url: str, spec: CrawlSpec, *, host_known: bool) -> tuple[str | None, list[Verdict]]:
    """Return (host, verdicts): how each rule of the scope judges `url`, a URL that the crawl does not know.

    A seed of the spec is judged as a seed, and `host` is None. Another URL is judged as a link on a page of `host`.
    This is its own host if the crawl knows that (`host_known`) or a seed has it, else the host of the first seed.
    """
    host = host_of(url)
    of_host = [seed.url for seed in spec.seeds if host in seed.url and host_of(seed.url) == host]
    via = host if host_known or of_host else host_of(spec.seeds[0].url)
    judged, depth = (None, 0) if url in of_host else (via, 1)
    return judged, compiled_scope(spec).explain(url, host, depth=depth, via_host=judged)


def no_page(tallies: dict[str, dict[str, int]], last_failures: dict[str, int], redirected: str = "") -> str:
    """Return a sentence on why a finished crawl has no page. It gives the most frequent reason, with advice.

    - `tallies`: the crawl's counts by kind, such as `failed` or `excluded`, and reason.
    - `last_failures`: for each kind of failure, how many hosts have it as their last failure.
    - `redirected`: the sentence to return if redirects are the reason. If it is empty, a general sentence is returned.
    """
    ends: dict[str, int] = {}
    for kind in ("failed", "excluded"):
        for reason, n in tallies.get(kind, {}).items():
            ends[reason] = ends.get(reason, 0) + n
    for by_type in BY_TYPE:
        if unstored := tallies.get(NOT_INDEXED, {}).get(by_type):
            ends[by_type] = unstored
    unreachable = ends.pop(HOST_UNREACHABLE, 0)
    if unreachable or not ends:
        for reason, n in last_failures.items():
            ends[reason] = ends.get(reason, 0) + max(n, unreachable)
    if not ends and unreachable:
        ends[HOST_UNREACHABLE] = unreachable
    if not ends:
        statuses = tallies.get("status", {})
        if not statuses:
            return "no URL could be fetched."
        status = max(statuses, key=lambda key: statuses[key])
        if redirected and status.startswith("3"):
            return redirected
        return f"the servers answered mostly with status {status}."
    reason = max(ends, key=lambda key: ends[key])
    entry = meaning(reason)
    return f"{entry.text}" + (f"; {entry.advice}." if entry.advice else ".")


def moment(ms: int) -> str:
    """Return a time in Unix ms as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _advice(view: UrlView, retry: str) -> str:
    if view.reason == HOST_UNREACHABLE:
        return f"`{retry}` tries it again once the host can be reached"
    if view.fetch is not None and (view.fetch.detail or "").endswith(CLUSTER_ENDPOINT):
        return "no setting opens it; use another address"
    return meaning(view.reason or "").advice or f"`{retry}` tries it again"


def _reason(view: UrlView) -> str:
    text = meaning(view.reason or "other").text
    detail = view.fetch.detail if view.fetch is not None else None
    return f"{text} ({detail})" if detail else text


def _fetched(view: UrlView) -> str:
    fetch = view.fetch
    assert fetch is not None
    at = moment(fetch.at_ms)
    if fetch.page:
        return f"It was fetched on {at} and is stored: status {fetch.status}, {fetch.mime or 'no type'}."
    if not_indexed(fetch.reason):
        return f"It was fetched on {at}, and is in no list, export or item: {meaning(fetch.reason or '').text}."
    led = f", a redirect to {fetch.redirect}" if fetch.redirect else ""
    if fetch.redirect and canonicalize(fetch.redirect, view.url) == view.url:
        led = f", a redirect to itself; {COOKIES}"
    return f"It was fetched on {at}: status {fetch.status}{led}."


def policy_block(host: HostView) -> str:
    """Return a phrase on how long the policy of a host blocks it, with the reason that the policy gives."""
    ends = host.operator_blocked_until_ms < FOREVER_MS
    until = f"until {moment(host.operator_blocked_until_ms)}" if ends else "without an end"
    return f"{until}: {host.policy_reason}" if host.policy_reason else until


def _waits(view: UrlView, spec: CrawlSpec, now_ms: int) -> list[str]:
    host = view.host
    sentences = []
    if host.operator_blocked_until_ms > max(now_ms, host.blocked_until_ms):
        sentences.append(f"The policy of its host blocks it {policy_block(host)}.")
    elif host.blocked_until_ms > now_ms:
        cause = f" after {counted(host.failures, 'failure')} ({host.last_failure})" if host.last_failure else ""
        sentences.append(f"Its host is left alone until {moment(host.blocked_until_ms)}{cause}.")
    own = spec_for(spec, host.host)
    delay_s = host_delay(
        own.politeness,
        crawl_delay_s=host.crawl_delay_ms / 1000 or None,
        last_fetch_s=host.latency_ms / 1000 or None,
        operator_delay_s=host.operator_delay_ms / 1000,
        slowed_s=host.slowed_ms / 1000,
    )
    if delay_s:
        policy = " (its host policy)" if host.operator_delay_ms and delay_s == host.operator_delay_ms / 1000 else ""
        sentences.append(f"Its host is asked at most every {delay_s:g} s{policy}.")
    limit = own.budget.max_pages_per_host
    if limit is not None and host.pages >= limit:
        place = deciding(spec, host.host, "max_pages_per_host") or "budget.max_pages_per_host"
        sentences.append(f"Its host has reached {place} with {counted(host.pages, 'page')}.")
    return sentences


def interval_of(view: UrlView, spec: CrawlSpec) -> str:
    """Return a phrase on when `recrawl` fetches the page of a URL again, and how often the page has changed."""
    if view.is_recrawled_listing:
        return _sitemap_interval(view, spec)
    interval = compiled(spec.recrawl).of(view.url)
    place = "recrawl" if interval.rule is None else f"recrawl.by_pattern[{interval.rule}]"
    if interval.policy is RecrawlPolicy.ADAPTIVE:
        text = f"{place} adapts between {interval.min_ms / 1000:g} and {interval.max_ms / 1000:g} s"
    else:
        text = f"{place} fetches it every {interval.min_ms / 1000:g} s"
    history = view.history
    if history is not None and history.signalled:
        text += "; its sitemap or feed has a change after its last fetch"
    if history is None or not history.compared:
        return text
    return f"{text}; {history.changes.bit_count()} of the last {history.compared} fetches found a change"


def _sitemap_interval(view: UrlView, spec: CrawlSpec) -> str:
    """Return a phrase on when a sitemap or feed is fetched again."""
    quiet, limit = 0 if view.history is None else view.history.quiet, spec.discover.max_quiet_fetches
    return (
        f"its last {quiet} fetches in a row found nothing new. Each doubles the time to the next, and after {limit} it "
        "is read no more, or after one more if its content had changed [discover.max_quiet_fetches]"
    )


def priority_of(url: str, view: UrlView | None, spec: CrawlSpec) -> str | None:
    """Return a phrase on the priority of a URL, and on the rule in the spec's field `priority` that gives it.

    Return None if the spec has no such rules and the URL has no priority. `view`: the stored facts of the URL, None if
    it is unknown.
    """
    if not spec.priority and (view is None or not view.priority):
        return None
    number = compiled_priority(spec.priority).rule(url)
    if number is None:
        ruled, rule = 0, "no rule of `priority` matches it"
    else:
        ruled, rule = spec.priority[number].value, f"priority[{number}] matches it, {spec.priority[number].match!r}"
    if view is None:
        return f"its priority will be {ruled}: {rule}"
    if view.priority == ruled:
        return f"its priority is {ruled}: {rule}"
    where = "as a seed declares, or as earlier rules did" if not view.chain else "by the rules when it was found"
    return f"its priority is {view.priority}, {where}; now {rule}" + ("" if number is None else f", with {ruled}")


def _when(due_ms: int, now_ms: int) -> str:
    return "as soon as its turn comes" if due_ms <= now_ms else f"after {moment(due_ms)}"
