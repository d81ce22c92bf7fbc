"""What a fetch of a sitemap or feed means in a crawl that fetches its pages again. The module does no I/O.

A sitemap is fetched again like a page. Its interval doubles with each fetch that finds nothing new, and returns to the
shortest one when something is new. After a number of fetches in a row that found nothing new, the sitemap is done.
"""

from msgspec.structs import replace

from shared.domain.crawl.recrawl_rules import CompiledRecrawl, PageInterval
from shared.domain.crawl.recrawl_spec import RecrawlPolicy
from shared.domain.frontier.failure import Decision
from shared.domain.frontier.page_history import FETCHED_ONCE, QUIET, REMEMBERED, PageHistory
from shared.domain.frontier.page_visits import Finding, PageVerdict, Visited, is_unchanged, retried
from shared.domain.frontier.recrawl_pages import AdaptiveSchedule
from shared.domain.frontier.signals import sitemap_code, sitemap_wait_ms
from shared.domain.frontier.states import COUNTED_AS_PAGE, IS_REQUISITE, RETRY, REVISIT, UrlState
from shared.domain.frontier.store_model import LeasedUrl


def is_sitemap(url: LeasedUrl, entries: int, *, page: bool) -> bool:
    """Return True if the fetched URL is a sitemap or feed, so that `judge_sitemap` must judge the fetch.

    Two conditions must hold:
    - This fetch read at least one entry, or an earlier fetch of the URL found a sitemap or feed.
    - The URL is no requisite and has no stored page, whether from this fetch or an earlier one.

    `entries`: the number of entries that this fetch read, -1 if the content was no sitemap or feed. `page`: this fetch
    stored a page.
    """
    return not page and not url.flags & (COUNTED_AS_PAGE | IS_REQUISITE) and (entries > 0 or url.last is not None)


def judge_sitemap(
    recrawl: CompiledRecrawl,
    max_quiet: int,
    url: LeasedUrl,
    visited: Visited,
    decision: Decision,
    now_ms: int,
    *,
    found: bool,
    pages: int,
    adaptive: AdaptiveSchedule | None = None,
) -> PageVerdict:
    """Return the new state of a sitemap or feed after a fetch.

    A fetch counts as having found something new if both conditions hold:

    - The fetch succeeded, and the content of this sitemap differs from the previous fetch.
    - `found` is True: since the previous fetch of this sitemap, any sitemap of the host (this one or another one)
      listed a new URL or a later date of a page.

    The new URLs of a fetch may be stored too late for this function. The next fetch then corrects the result:

    - Fetch 1 gets different content, but its new URLs are not stored yet. So `found` is False, and fetch 1 counts as
      having found nothing new.
    - At fetch 2 these URLs are stored, so `found` is True. Now fetch 1 counts as having found something new.

    Arguments:

    - `max_quiet`: after this many fetches in a row that found nothing new, the sitemap is done.
    - `decision`: the result of `failure.decide` for the fetch.
    - `adaptive`: the schedule of a crawl whose pages are fetched by their rates of change (recrawl policy `adaptive`).
      None for a crawl with another policy.
    - `pages`: the number of stored pages of the host. It matters only with `adaptive`: the sitemap of a host with many
      pages may be fetched more often.
    """
    # An owner stores by host, and not by sitemap, when something new was last listed. So `found` is about the host.
    equal = visited.status == 200 and url.last is not None and visited.digest == url.last.digest != b""
    unchanged = equal or is_unchanged(url, visited)
    if not unchanged and decision.state is UrlState.WAITING:
        return retried(url, visited, decision, now_ms)
    flags = url.flags & ~(RETRY | REVISIT)
    interval = recrawl.of(url.url)
    if interval.policy is RecrawlPolicy.NEVER:
        return PageVerdict(Finding.UNCHANGED, UrlState.DONE, 0, 0, FETCHED_ONCE, flags, PageHistory(checked_ms=now_ms))
    if url.last is None:
        finding, history = Finding.NEW, PageHistory(checked_ms=now_ms)
    else:
        read = visited.status == 200 and not unchanged
        finding = Finding.CHANGED if read else Finding.UNCHANGED if unchanged else Finding.FAILED
        before = url.last.history
        if before.signalled and found:
            before = replace(before, changes=before.changes | 1)
        history = replace(before.after(changed=read and found, now_ms=now_ms, mark=b""), signalled=read and not found)
    # The sitemap is not done before the next fetch has corrected this one (`PageHistory.signalled`). But a history of
    # REMEMBERED quiet fetches cannot count one more.
    postponed = history.signalled and history.quiet == max_quiet < REMEMBERED
    if history.quiet >= max_quiet and not postponed:
        return PageVerdict(finding, UrlState.DONE, 0, 0, QUIET, flags, replace(history, rate=0))
    wait_ms = sitemap_interval_ms(interval, history.quiet, pages, adaptive)
    history = replace(history, rate=sitemap_code(wait_ms))
    return PageVerdict(finding, UrlState.WAITING, now_ms + wait_ms, 0, finding.value, flags | REVISIT, history)


def sitemap_interval_ms(interval: PageInterval, quiet: int, pages: int, adaptive: AdaptiveSchedule | None) -> int:
    """Return the ms until the next fetch of a sitemap or feed, after `quiet` fetches in a row that found nothing new.

    `adaptive`, `pages`: as in `judge_sitemap`.
    """
    if adaptive is not None and interval.policy is RecrawlPolicy.ADAPTIVE:
        return adaptive.sitemap_wait_ms(interval, quiet, pages)
    return sitemap_wait_ms(interval, quiet, 0)
