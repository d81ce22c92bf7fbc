"""Why a URL stands where it stands, in sentences. Pure: from values and `now_ms`; for the command and the API alike."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, assert_never

from shared.domain.command import SEED_DELETED
from shared.domain.crawl import CrawlSpec
from shared.domain.failure import HOST_UNREACHABLE
from shared.domain.fetch import FailureKind
from shared.domain.frontier import CrawlState, UrlState
from shared.domain.left_out import LINKS_PER_PAGE, NOFOLLOW
from shared.domain.politeness import host_delay
from shared.domain.redirects import COOKIES
from shared.domain.scope import CompiledScope, ExclusionReason, Verdict
from shared.domain.url import canonicalize, host_of
from shared.domain.views import UrlView


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a failure or exclusion is called in a display, what it means, and what one can do (empty: nothing)."""

    short: str
    text: str
    advice: str = ""


_MEANINGS: Final = {
    FailureKind.DNS: Meaning(
        "dns", "the host's name could not be resolved", "check the spelling, and that this machine has a network"
    ),
    FailureKind.CONNECT: Meaning(
        "connect", "nobody took the connection", "check the port, and that this machine reaches the host"
    ),
    FailureKind.TLS: Meaning(
        "tls",
        "the host's certificate or encryption was not acceptable",
        "give the URL with http:// where the host speaks no https; if an authority of your own signed its certificate, "
        "name that authority's file with --ca FILE --retry-failed (in a cluster: SSL_CERT_FILE of the workers)",
    ),
    FailureKind.CONNECT_TIMEOUT: Meaning(
        "connect timeout", "no connection came about in time", "check the network, or raise fetch.connect_timeout_s"
    ),
    FailureKind.FIRST_BYTE_TIMEOUT: Meaning(
        "slow", "the server did not begin to answer in time", "raise fetch.first_byte_timeout_s"
    ),
    FailureKind.TOTAL_TIMEOUT: Meaning("too slow", "the answer did not end in time", "raise fetch.total_timeout_s"),
    FailureKind.RESET: Meaning("reset", "the server broke the connection off"),
    FailureKind.PROTOCOL: Meaning("protocol", "the answer was not HTTP as it should be"),
    FailureKind.HEADERS_TOO_LARGE: Meaning(
        "large headers", "the answer's headers exceed the limit", "raise fetch.max_header_bytes"
    ),
    FailureKind.EGRESS_DENIED: Meaning(
        "egress denied",
        "the host's address is private, loopback or link-local, and such addresses are closed",
        "open the network on purpose: --allow-net CIDR, such as --allow-net 127.0.0.0/8; in a cluster the workers have "
        "this flag, and egress.allow of the spec names the network, too",
    ),
    FailureKind.PROXY: Meaning("proxy", "the proxy refused or could not be reached", "check fetch.proxy"),
    FailureKind.OTHER: Meaning("other", "the fetch failed for a reason without a name of its own"),
    HOST_UNREACHABLE: Meaning(
        "host unreachable", "the host could not be reached several times in a row and was given up",
        "try it again with --retry-failed once the host can be reached",
    ),
    "poison": Meaning(
        "gave up", "its visit ended every worker that tried it", "see the dead letter's evidence and the worker's log"
    ),
    ExclusionReason.HOPS: Meaning("redirects", "it lies behind too many redirects in a row"),
    ExclusionReason.DEPTH: Meaning("depth", "it lies deeper than the crawl goes", "raise --max-depth"),
    ExclusionReason.HOST: Meaning("other host", "it is on another host", "widen --scope"),
    ExclusionReason.PORT: Meaning("other port", "it is on another port of the host", "widen --scope"),
    ExclusionReason.DOMAIN: Meaning("other domain", "it is on another domain", "widen --scope"),
    ExclusionReason.PREFIX: Meaning("outside prefix", "it is not below a seed's path", "widen --scope"),
    ExclusionReason.SCHEME: Meaning("scheme", "its scheme is not crawled", "see scope.schemes"),
    ExclusionReason.LENGTH: Meaning("too long", "the URL is longer than allowed", "raise scope.max_url_length"),
    ExclusionReason.EXCLUDE: Meaning("exclude", "an exclude pattern matches it", "see --exclude"),
    ExclusionReason.INCLUDE: Meaning("include", "no include pattern matches it", "see --include"),
    ExclusionReason.TRAP: Meaning("trap", "it looks like part of an endless URL space", "see scope.traps"),
    ExclusionReason.ROBOTS: Meaning(
        "robots", "the host's robots.txt forbids it", "ask the site's owner; --no-robots disregards it"
    ),
    SEED_DELETED: Meaning("seed deleted", "an operator took it from the seeds before it was fetched", "add it again"),
    LINKS_PER_PAGE: Meaning(
        "links per page",
        "its page has more links than are read of one page",
        "raise extract.max_links_per_page in the spec",
    ),
    NOFOLLOW: Meaning("nofollow", "its page marks it as nofollow", "see extract.follow_nofollow"),
    "max_pages_per_host": Meaning(
        "host budget", "its host has given all the pages it may", "raise budget.max_pages_per_host"
    ),
    "depth": Meaning("depth", "it lies deeper than the crawl goes", "raise --max-depth"),
}  # fmt: skip


HELD: Final = {
    CrawlState.CREATED: "it was never started, `start` begins it",
    CrawlState.PAUSED: "nothing new is sent out until `resume`",
    CrawlState.FINISHED: "what is queued waits for `start`",
    CrawlState.DELETED: "its rows are being removed",
}
"""States of a crawl in which it sends nothing out, and what would change that."""

REOPENS: Final = "it runs again by itself as soon as something of it is queued"
"""What changes that for a crawl that had nothing left to do."""


NEEDS_SCRIPTS: Final = "the page has scripts but neither text nor links, and scripts are not run"
"""What is kept of a page that a browser would fill."""


def counted(n: int, noun: str) -> str:
    """So many of them, in words: `1 failure`, `2 failures`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def given_again(regained_s: float) -> str:
    """What becomes of URLs that are with a worker, should it be dead: nobody knows that sooner."""
    return f"what is with a worker that dies is given out again within about {regained_s:g} s of its death"


def meaning(reason: str) -> Meaning:
    """What a failure kind, exclusion reason or `http_404`-like reason means."""
    found = _MEANINGS.get(reason)
    if found is not None:
        return found
    plain = reason.removeprefix("robots_") if reason.startswith("robots_") else None
    if plain is not None:
        inner = meaning(plain)
        return Meaning(f"robots.txt {inner.short}", f"its robots.txt could not be read: {inner.text}", inner.advice)
    if reason.startswith("http_") and reason[5:].isdigit():
        return Meaning(f"HTTP {reason[5:]}", f"the server answered with status {reason[5:]}")
    return Meaning(reason.replace("_", " "), reason.replace("_", " "))


def why(view: UrlView, spec: CrawlSpec, now_ms: int, *, retry: str, regained_s: float | None = None) -> list[str]:
    """Sentences that say what the URL's state is, why, and what applies to it now.

    `retry`: the command that tries again what failed in the crawl.
    `regained_s`: after which what is with a worker that died is given out again, where that is known.
    """
    fetch = view.fetch
    match view.state:
        case UrlState.QUEUED:
            said = [f"It waits in the queue of {view.host.host}, which has {counted(view.host.queued, 'URL')} queued."]
            if view.reason == "depth":
                said.append("It was fetched before and is queued again: a shorter way to it was found.")
            if view.host.leased and regained_s is not None:
                said.append(
                    f"{counted(view.host.leased, 'URL')} of that host {'is' if view.host.leased == 1 else 'are'} with "
                    f"workers now: {given_again(regained_s)}."
                )
            said += _waits(view, spec, now_ms)
        case UrlState.WAITING:
            said = [
                f"It failed ({_reason(view)}) and is tried again {_when(view.due_ms, now_ms)}; "
                f"{view.attempts} of {spec.retry.attempts} attempts are used."
            ]
            said += _waits(view, spec, now_ms)
        case UrlState.LEASED:
            since = "" if view.leased_at_ms is None else f" since {moment(view.leased_at_ms)}"
            again = "" if regained_s is None else f": {given_again(regained_s)}"
            said = [f"It is with a worker{since}, to be fetched now{again}."]
        case UrlState.DONE:
            said = ["It was fetched."] if fetch is None else [_fetched(view)]
        case UrlState.FAILED:
            said = [f"It failed for good: {_reason(view)}."]
            if view.reason == HOST_UNREACHABLE and view.host.last_failure:
                said.append(f"The host's last failure: {view.host.last_failure}.")
            if advice := _advice(view.reason, retry):
                said.append(f"What can be done: {advice}.")
        case UrlState.EXCLUDED:
            found = meaning(view.reason or "unknown")
            said = [f"It is excluded: {found.text}."]
            if found.advice:
                said.append(f"What can be done: {found.advice}.")
        case never:
            assert_never(never)
    if view.evidence:
        said.append(f"Evidence kept: {'; '.join(view.evidence)}.")
    return said


def why_unknown(url: str, spec: CrawlSpec, *, host_known: bool) -> tuple[str, list[Verdict]]:
    """What each scope rule says of a URL the crawl has never seen, one link below a page on the host that is returned.

    That is the URL's own host where the crawl knows it, else the first seed's.
    """
    host = host_of(url)
    via = host if host_known else host_of(spec.seeds[0].url)
    return via, CompiledScope(spec).explain(url, host, depth=1, via_host=via)


def no_page(tallies: dict[str, dict[str, int]], last_failures: dict[str, int], redirected: str = "") -> str:
    """Return why a finished crawl has no page: the most frequent end of its URLs, what it means and what to do.

    `last_failures` counts what was last wrong with hosts, for URLs that failed because their host was given up.
    `redirected`: where redirects ended (shared.domain.redirects).
    """
    ends: dict[str, int] = {}
    for kind in ("failed", "excluded"):
        for reason, n in tallies.get(kind, {}).items():
            ends[reason] = ends.get(reason, 0) + n
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
    found = meaning(reason)
    return f"{found.text}" + (f"; {found.advice}." if found.advice else ".")


def moment(ms: int) -> str:
    """ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _advice(reason: str | None, retry: str) -> str:
    if reason == HOST_UNREACHABLE:
        return f"`{retry}` tries it again once the host can be reached"
    return meaning(reason or "").advice or f"`{retry}` tries it again"


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
    led = f", a redirect to {fetch.redirect}" if fetch.redirect else ""
    if fetch.redirect and canonicalize(fetch.redirect, view.url) == view.url:
        led = f", a redirect to itself; {COOKIES}"
    return f"It was fetched on {at}: status {fetch.status}{led}."


def _waits(view: UrlView, spec: CrawlSpec, now_ms: int) -> list[str]:
    host = view.host
    said = []
    if host.blocked_until_ms > now_ms:
        cause = f" after {counted(host.failures, 'failure')} ({host.last_failure})" if host.last_failure else ""
        said.append(f"Its host is left alone until {moment(host.blocked_until_ms)}{cause}.")
    delay_s = host_delay(
        spec.politeness,
        crawl_delay_s=host.crawl_delay_ms / 1000 or None,
        last_fetch_s=host.latency_ms / 1000 or None,
        operator_delay_s=host.operator_delay_ms / 1000,
        slowed_s=host.slowed_ms / 1000,
    )
    if delay_s:
        said.append(f"Its host is asked at most every {delay_s:g} s.")
    limit = spec.budget.max_pages_per_host
    if limit is not None and host.pages >= limit:
        said.append(
            f"Its host has given {counted(host.pages, 'page')}, which is all that budget.max_pages_per_host allows."
        )
    return said


def _when(due_ms: int, now_ms: int) -> str:
    return "as soon as its turn comes" if due_ms <= now_ms else f"after {moment(due_ms)}"
