"""What it means that robots.txt forbids the next request of a stored page, sitemap or feed. The module does no I/O.

A site may forbid its pages by mistake, or for some time. So what is stored stays, and is due again.
"""

from shared.domain.crawl.recrawl_rules import CompiledRecrawl
from shared.domain.crawl.recrawl_spec import RecrawlPolicy
from shared.domain.crawl.scope import ExclusionReason
from shared.domain.frontier.page_history import FETCHED_ONCE, GONE, MISSES_TO_GONE, PageHistory
from shared.domain.frontier.page_visits import Finding, PageVerdict
from shared.domain.frontier.recrawl_pages import AdaptiveSchedule, counted, without_rate
from shared.domain.frontier.revisits import RevisitRow
from shared.domain.frontier.sitemap_visits import sitemap_interval_ms
from shared.domain.frontier.states import COUNTED_AS_PAGE, RETRY, REVISIT, UrlState
from shared.domain.frontier.store_model import Changes, LeasedUrl
from shared.domain.ids import CrawlId, Fingerprint, HostId


def judge_denied(
    recrawl: CompiledRecrawl,
    url: LeasedUrl,
    known: PageHistory,
    now_ms: int,
    *,
    pages: int,
    adaptive: AdaptiveSchedule | None = None,
) -> PageVerdict:
    """Return the new state of a stored page, sitemap or feed that robots.txt forbids to request.

    The URL waits for the time of its rule, as after a fetch. A page that was gone before is gone again. A page whose
    rule has the policy `never` is done.

    - `known`: the history of the URL. It stays as it is.
    - `adaptive`: the schedule of a crawl with the recrawl policy `adaptive`. None for a crawl with another policy.
    - `pages`: the number of stored pages of the host (`sitemap_interval_ms`).
    """
    interval, flags = recrawl.of(url.url), url.flags & ~(RETRY | REVISIT)
    if known.misses >= MISSES_TO_GONE:
        return PageVerdict(Finding.GONE, UrlState.DONE, 0, 0, GONE, flags, None)
    if interval.policy is RecrawlPolicy.NEVER:
        return PageVerdict(Finding.FAILED, UrlState.DONE, 0, 0, FETCHED_ONCE, flags, None)
    wait_ms = interval.min_ms
    if not flags & COUNTED_AS_PAGE:
        wait_ms = sitemap_interval_ms(interval, known.quiet, pages, adaptive)
    elif adaptive is not None and interval.policy is RecrawlPolicy.ADAPTIVE:
        wait_ms = adaptive.wait_ms(known.rate or adaptive.first_rate(interval), interval, known.sign_share)
    due_ms, reason = now_ms + wait_ms, ExclusionReason.ROBOTS.value
    return PageVerdict(Finding.FAILED, UrlState.WAITING, due_ms, 0, reason, flags | REVISIT, None)


def uncount(changes: Changes, place: tuple[CrawlId, HostId, Fingerprint], url: LeasedUrl) -> None:
    """Subtract a stored page or sitemap from the counts of URLs that are fetched again, if it was counted."""
    if url.last is None or not url.last.history.rate:
        return
    for kind, bucket, n in counted(url.last.history, page=bool(url.flags & COUNTED_AS_PAGE)):
        changes.tallies[place[0], kind, str(bucket)] -= n
    changes.revisited.append(RevisitRow(*place, without_rate(url.last.history).encoded()))
