"""What a fetch of a page means in a crawl that fetches its pages again. These functions do no I/O.

A page is compared with its stored version. An answer 304 to a conditional request, or an equal payload, is unchanged.
Two fetches in a row that find no page (404, 410 or a redirect) make it gone. Any other failure leaves the stored page
as it is, and the page is fetched again when it is due.

A page has a sign of change if a sitemap or feed gives it a date later than its last fetch.
"""

from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from shared.domain.crawl.recrawl_rules import CompiledRecrawl, PageInterval
from shared.domain.crawl.recrawl_spec import RecrawlPolicy
from shared.domain.frontier.failure import Decision
from shared.domain.frontier.page_history import FETCHED_ONCE, GONE, MARK_BYTES, MISSES_TO_GONE, PageHistory
from shared.domain.frontier.recrawl_pages import AdaptiveSchedule, first_rate, rate_after
from shared.domain.frontier.signals import NO_SIGNALS, HostSignals
from shared.domain.frontier.states import (
    COUNTED_AS_PAGE,
    DUE_AT_ONCE,
    RETRY,
    REVISIT,
    Merge,
    UrlState,
    extra_hops_of,
    merge_link,
)
from shared.domain.frontier.store_model import LeasedUrl
from shared.domain.web.robots import BY_DIRECTIVE

_NOT_MODIFIED: Final = 304
_MISSING: Final = frozenset({404, 410})


class Finding(StrEnum):
    """The result of a fetch, compared with the stored page.

    NEW: there was no stored page. MISSED: the fetch found no page. GONE: two fetches in a row found none. FAILED: it
    failed in another way. RETRIED: it failed, and the URL is tried again soon.
    """

    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    MISSED = "missed"
    GONE = "gone"
    FAILED = "failed"
    RETRIED = "retried"


class Visited(Struct, frozen=True):
    """What a fetch reported of a page.

    - `status`: the HTTP status, 0 if there was no answer.
    - `digest`: the digest of the payload.
    - `mark`: the hash of the text or items. Empty if pages are compared by their payloads.
    - `page`: the fetch stored a page.
    - `reason`: why it stored none.
    - `not_indexed`: the robots directive that keeps the page out of lists, such as `noindex`. Empty without one.
    """

    status: int
    digest: bytes
    mark: bytes
    page: bool
    reason: str
    not_indexed: str = ""


class PageVerdict(Struct, frozen=True):
    """The new state of a URL after a fetch, with the new `rank`, `attempts`, `reason` and `flags` of its row.

    `rank` is the due time (Unix ms) of a WAITING URL. `history`: the page's new history, None if the stored one is
    kept.
    """

    finding: Finding
    state: UrlState
    rank: int
    attempts: int
    reason: str | None
    flags: int
    history: PageHistory | None


def conditional(url: LeasedUrl) -> bool:
    """Return True if the leased URL may be requested with the validators (ETag, Last-Modified) of its last fetch.

    With validators, a server that has the same page as before answers 304 and sends no body.

    Return False in these cases:

    - This is no revisit of a stored page, so there is nothing to validate.
    - A robots directive keeps the stored page out of lists. An answer 304 often lacks the header that has the
      directive, so it would not show that the directive was removed.
    - Since this lease began, a link to the URL was found that gives a lower depth or fewer extra hops. More of the
      page's own links may then be in scope. So the worker must read these links again, and needs the body for that.
    """
    # The owner keeps the numbers of the shorter path in `least` and `flags` of the leased URL.
    nearer = url.least < url.depth or extra_hops_of(url.flags) < url.extra
    listed = url.last is not None and url.last.reason not in BY_DIRECTIVE
    return listed and bool(url.flags & REVISIT) and not nearer


def links_again(url: LeasedUrl, max_depth: int | None) -> bool:
    """Return True if a page must be fetched again because more of the page's own links may be in scope now.

    That is so if a shorter path to the page was found since the lease:

    - The new path has fewer extra hops. So more extra hops are left for the page's links.
    - Or the new path gives the page a lower depth, and this depth is below `max_depth`. The links of the page are one
      level deeper than the page. So with the lower depth, they may be within `max_depth`.

    `max_depth`: the crawl's limit of depth. If it is None, all depths are in scope, so only extra hops matter.
    """
    if url.least < url.depth and merge_link(UrlState.DONE, url.depth, url.least, max_depth) is Merge.QUEUE_AGAIN:
        return True
    return url.extra > 0 and extra_hops_of(url.flags) < url.extra


def is_unchanged(url: LeasedUrl, visited: Visited) -> bool:
    """Return True if the fetch found the stored page unchanged: the same digest, or the same content mark.

    The content mark is a hash of the page's text or items. It does not change if only the markup changes.

    After a 304, `visited.digest` must be the digest of the stored payload. Return False if nothing is stored.
    """
    last = url.last
    if last is None:
        return False
    # For a 304 a worker reports the stored digest only if its request was conditional.
    if (visited.page or visited.status == _NOT_MODIFIED) and visited.digest and visited.digest == last.digest:
        return True
    return visited.page and bool(visited.mark) and visited.mark[:MARK_BYTES] == last.history.mark


def judge_page(
    recrawl: CompiledRecrawl,
    max_depth: int | None,
    url: LeasedUrl,
    visited: Visited,
    decision: Decision,
    now_ms: int,
    adaptive: AdaptiveSchedule | None = None,
    signals: HostSignals = NO_SIGNALS,
) -> PageVerdict:
    """Return the new state of a URL that has a stored page, or whose page was just stored.

    - `max_depth`: the crawl's limit of depth, None without one.
    - `decision`: the result of `failure.decide` for the fetch.
    - `adaptive`: the schedule of a crawl whose pages are fetched by their rates of change (recrawl policy `adaptive`).
      None for a crawl with another policy.
    - `signals`: how reliable the signs of change of the URL's host are. The caller has already updated `signals` with
      the result of this fetch.
    """
    unchanged = is_unchanged(url, visited)
    if not unchanged and decision.state is UrlState.WAITING:
        return retried(url, visited, decision, now_ms)
    flags = (url.flags | COUNTED_AS_PAGE) & ~(RETRY | REVISIT)
    known = url.last.history if url.last is not None else PageHistory(checked_ms=now_ms)
    mark = bytes(visited.mark[:MARK_BYTES])
    if unchanged:
        finding, history = Finding.UNCHANGED, known.after(changed=False, now_ms=now_ms, mark=mark)
    elif not visited.page:
        missed = _finds_no_page(visited.status)
        finding, history = (Finding.MISSED, known.missed()) if missed else (Finding.FAILED, known)
    elif url.flags & COUNTED_AS_PAGE:
        finding, history = Finding.CHANGED, known.after(changed=True, now_ms=now_ms, mark=mark)
    else:
        finding, history = Finding.NEW, PageHistory(checked_ms=now_ms, mark=mark)
    if history.misses >= MISSES_TO_GONE:
        return PageVerdict(Finding.GONE, UrlState.DONE, 0, 0, GONE, flags, history)
    interval = recrawl.of(url.url)
    history = _with_rate(history, known, finding, interval, adaptive, now_ms)
    if adaptive is not None and finding in (Finding.CHANGED, Finding.UNCHANGED):
        history = replace(history, sign_share=adaptive.sign_share(history.rate, signals))
    read = visited.page or unchanged
    incomplete = "depth" if links_again(url, max_depth) else visited.not_indexed if not visited.page else ""
    if read and incomplete:
        if recrawl.spec.used:
            return PageVerdict(finding, UrlState.WAITING, now_ms, 0, incomplete, flags | DUE_AT_ONCE, history)
        return PageVerdict(finding, UrlState.QUEUED, url.rank, 0, incomplete, flags, history)
    if interval.policy is RecrawlPolicy.NEVER:
        return PageVerdict(finding, UrlState.DONE, 0, 0, FETCHED_ONCE, flags, history)
    wait_ms = interval.min_ms
    if adaptive is not None and interval.policy is RecrawlPolicy.ADAPTIVE:
        wait_ms = adaptive.wait_ms(history.rate, interval, history.sign_share)
    return PageVerdict(finding, UrlState.WAITING, now_ms + wait_ms, 0, finding.value, flags | REVISIT, history)


def rate_before(history: PageHistory, interval: PageInterval, adaptive: AdaptiveSchedule | None) -> int:
    """Return the rate of change that is known of a page so far, encoded as `ChangeRate.code`.

    - If `history` has a rate from at least one comparison or sign of change: return `history.rate`.
    - Otherwise: return the rate that is assumed for new pages. It is computed from `interval` and `adaptive`.

    Arguments:

    - `history`: the page's history. It does not contain the fetch or sign of change that the caller handles now.
    - `interval`: the shortest and the longest wait between two fetches of the page.
    - `adaptive`: the schedule of a crawl with the recrawl policy `adaptive`. None for a crawl with another policy.
    """
    if history.rate and (history.compared or history.known_ms):
        return history.rate
    return first_rate(interval) if adaptive is None else adaptive.first_rate(interval)


def _with_rate(
    history: PageHistory,
    known: PageHistory,
    finding: Finding,
    interval: PageInterval,
    adaptive: AdaptiveSchedule | None,
    now_ms: int,
) -> PageHistory:
    """Return `history` with the page's rate of change after a fetch in its field `rate`.

    - `known`: the page's history before the fetch.
    - `history`: the page's history after the fetch. Only the field `rate` is not updated yet: it still has the rate
      from before the fetch, or 0 for a new page.
    - `finding`: the result of the fetch.

    The rate in the returned history is:

    - CHANGED or UNCHANGED: a new rate, computed from the rate before the fetch and from this finding.
    - Another finding for a page that has a rate: the same rate as before the fetch.
    - Another finding for a page without a rate, such as a new page: usually the rate that is assumed for new pages.
    """
    before = rate_before(known, interval, adaptive)
    if finding not in (Finding.CHANGED, Finding.UNCHANGED):
        return history if history.rate else replace(history, rate=before)
    changed = finding is Finding.CHANGED
    # Whether a sign updated the rate was decided when it came, so the host's present trust has no say here.
    elapsed_ms, updated_by_sign = now_ms - max(known.checked_ms, known.known_ms), known.known_ms > 0
    after = rate_after(before, interval, changed=changed, elapsed_ms=elapsed_ms, updated_by_sign=updated_by_sign)
    return replace(history, rate=after)


def retried(url: LeasedUrl, visited: Visited, decision: Decision, now_ms: int) -> PageVerdict:
    """Return the verdict for a failed fetch that is retried: the URL waits `decision.wait_s` seconds.

    The page's history is unchanged.
    """
    due_ms = now_ms + int(decision.wait_s * 1000)
    attempts, flags = url.attempt, url.flags | RETRY
    if not decision.attempt_used:
        attempts, flags = url.attempt - 1, url.flags
        # A stored page does not become due later.
        due_ms = min(due_ms, url.rank) if url.flags & REVISIT else due_ms
    return PageVerdict(Finding.RETRIED, UrlState.WAITING, due_ms, attempts, visited.reason, flags, None)


def _finds_no_page(status: int) -> bool:
    return status in _MISSING or (300 <= status < 400 and status != _NOT_MODIFIED)
