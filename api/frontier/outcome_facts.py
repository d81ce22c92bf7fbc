"""Compute what the outcome of a URL changes: the URL's fetch row, its host's row, and its page's history. Pure."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from api.frontier.dispatch_crawls import DispatchCrawl
from api.frontier.host_shares import CrawlQueue
from api.frontier.hosts import HostFacts
from shared.domain.crawl.recrawl_rules import CompiledRecrawl, compiled
from shared.domain.crawl.scope import ExclusionReason
from shared.domain.crawl.scope_change import BY_SCOPE
from shared.domain.explain.excluded_links import SCOPE, ExcludedLink, encoded, kept, losses
from shared.domain.frontier.change_rate import decoded
from shared.domain.frontier.denied_visits import judge_denied, uncount
from shared.domain.frontier.failure import Category, Decision, HostEffect, policy_for
from shared.domain.frontier.page_history import ChangeKind, change_of
from shared.domain.frontier.page_visits import (
    Finding,
    PageVerdict,
    Visited,
    is_unchanged,
    judge_page,
    links_again,
    rate_before,
)
from shared.domain.frontier.politeness import UNREACHABLE_BASE_S
from shared.domain.frontier.recrawl_pages import SITEMAPS, AdaptiveSchedule, bucket_for, counted, without_rate
from shared.domain.frontier.revisits import RevisitRow, Superseded
from shared.domain.frontier.signals import HostSignals, signals_of
from shared.domain.frontier.sitemap_visits import is_sitemap, judge_sitemap
from shared.domain.frontier.states import COUNTED_AS_PAGE, LOSSES_COUNTED, REVISIT, UrlEnd, UrlKind, UrlState, kind_of
from shared.domain.frontier.store_model import Changes, FetchRow, LeasedUrl
from shared.domain.ids import CrawlId, Fingerprint, HostId
from shared.domain.web.fetch import FailureKind, Truncation
from shared.domain.web.robots import BY_DIRECTIVE, BY_TYPE
from shared.wire.messages import HostNote, UrlOutcome

_NOT_MODIFIED = 304
_NEEDS_BODY: Final = ("depth", *BY_DIRECTIVE)
"""The reasons for which a stored page is due at once, and the next request must bring its body."""

_LOGGED = {Finding.NEW: ChangeKind.NEW, Finding.CHANGED: ChangeKind.CHANGED, Finding.GONE: ChangeKind.GONE}
_FAILURES: Final = frozenset(FailureKind)
_FAILURE_CHARS = 500


def broken_off(result: UrlOutcome) -> bool:
    """Return True if a page is partial only because the connection ended. The next fetch may get all of it."""
    return result.truncated == Truncation.DISCONNECT and 200 <= result.status < 300


def reason_of(result: UrlOutcome) -> str:
    """Return the reason of a URL's result as it is stored and counted, such as `http_404` or a failure kind."""
    if broken_off(result):
        return FailureKind.RESET
    return f"http_{result.status}" if result.end == UrlEnd.ANSWERED else (result.reason or "other")


def source_read(result: UrlOutcome, flags: int) -> str:
    """Return the name of the counter for a fetched sitemap or feed.

    - `feeds` or `sitemaps`: the whole file was read. It is `feeds` if the URL was discovered as a feed.
    - `partly_read`: only a part of the file was read, with at least one entry.
    - `unreadable`: only a part of the file was read, without an entry.
    """
    if result.detail:
        return "partly_read" if result.entries else "unreadable"
    return "feeds" if kind_of(flags) is UrlKind.FEED else "sitemaps"


def _fetch_reason(result: UrlOutcome, page: bool, requisite: bool) -> str | None:
    """Return why lists of pages leave out this fetch, or None if they show it. The first case that holds decides:

    - The fetch stored a page (`page`): return the directive that keeps the page out, such as `noindex`, else None.
    - The crawl does not fetch or store this media type: return `not_fetched` or `media_type`.
    - The response is a sitemap or feed: return `sitemap`.
    - The URL was leased as a requisite (`requisite`), and the fetch stored the requisite: return `requisite`.
    - Any other fetch: return its result, such as `http_404` (`reason_of`).
    """
    if page or result.not_indexed in BY_TYPE:
        return result.not_indexed[:40] or None
    if result.entries >= 0:
        return "sitemap"
    return "requisite" if requisite and result.record is not None and result.status < 300 else reason_of(result)


def fetch_row(
    crawl_id: CrawlId,
    host_id: HostId,
    fingerprint: Fingerprint,
    result: UrlOutcome,
    *,
    page: bool,
    requisite: bool = False,
    revision: int = 1,
) -> FetchRow:
    """Return the SQL row of the URL's last fetch.

    - `page`: True if the fetch stored a page, also if the page has `noindex`.
    - `requisite`: the URL was leased as a requisite.
    - `revision`: the revision of the spec under which the URL was leased.

    The row's field `page` is True if lists of pages show this fetch. Lists leave out a stored page with `noindex`: the
    row has `page` False and the `reason` `noindex`. Other reasons are `sitemap` and `http_404`.
    """
    record = result.record
    return FetchRow(
        crawl_id=crawl_id,
        host_id=host_id,
        fingerprint=fingerprint,
        at_ms=result.at_ms,
        status=result.status,
        page=page and not result.not_indexed,
        reason=_fetch_reason(result, page, requisite),
        detail=result.detail or None,
        latency_ms=result.latency_ms,
        size=result.size,
        mime=result.mime or None,
        digest=result.digest or None,
        segment=record.segment if record else None,
        offset=record.offset if record else None,
        length=record.length if record else None,
        etag=result.etag,
        last_modified=result.last_modified,
        location=result.location,
        title=result.title,
        links=result.links,
        truncated=result.truncated[:16] or None,
        links_found=result.found if result.found >= 0 else None,
        left_out=_left_out(result, revision),
    )


def _left_out(result: UrlOutcome, revision: int) -> str | None:
    """Return the counts of a page's excluded links by reason, such as `depth 3;robots 1`. None: no link was excluded.

    The entry `scope` is no count: its number is the spec's `revision`. So `depth 3;scope 2` says: under revision 2, 3
    links were too deep. The entry is added if the scope excluded a link and `revision` is above 1.
    """
    if not result.left_out:
        return None
    counts = {each.reason: each.n for each in result.left_out}
    if revision > 1 and not BY_SCOPE.isdisjoint(counts):
        counts[SCOPE] = revision
    return encoded(counts)


def end_of(result: UrlOutcome) -> FailureKind | int:
    """Return how a fetch ended, as the retry policy classifies it: a failure kind or the HTTP status."""
    if result.truncated and broken_off(result):
        return FailureKind.RESET
    if result.end == UrlEnd.ANSWERED:
        return result.status
    return FailureKind(result.reason) if result.reason in _FAILURES else FailureKind.OTHER


def count_losses(changes: Changes, row: FetchRow, result: UrlOutcome, flags: int) -> int:
    """Count in `changes` the losses of a fetch: excluded links, a missing part of a page, a page not to be indexed.

    Return the URL's `flags`. In them, LOSSES_COUNTED means that losses of this URL are counted.

    - Without the flag: add the losses of this fetch. If there are any, the returned flags include LOSSES_COUNTED.
    - With the flag: replace the losses of the earlier fetch by those of this fetch. The flags stay the same.
    - First fetch of a sitemap or feed: also add 1 to the counter that `source_read` names, such as `unreadable`.
    """
    if not (row.reason or row.left_out or row.truncated or flags & LOSSES_COUNTED):
        return flags  # An ordinary page loses nothing. Sitemaps have a reason.
    if result.entries >= 0 and not flags & (LOSSES_COUNTED | REVISIT):
        changes.tallies[row.crawl_id, "discover", source_read(result, flags)] += 1
    for each in result.left_out:
        for url in each.examples:
            changes.left_out.append(ExcludedLink(row.crawl_id, each.reason, kept(url), row.host_id, row.fingerprint))
    if flags & LOSSES_COUNTED:
        changes.losses_to_replace.append(row)
        return flags
    counts = losses(row.page, row.truncated, row.left_out, row.reason)
    if not counts:
        return flags
    for kind, key, n in counts:
        changes.tallies[row.crawl_id, kind, key] += n
    return flags | LOSSES_COUNTED


def facts_after(
    facts: HostFacts,
    effect: HostEffect | None,
    result: UrlOutcome,
    crawl: DispatchCrawl,
    host: str,
    now_ms: int,
    rng01: Callable[[], float],
) -> HostFacts:
    """Return the facts of `host` after the fetch `result`.

    - `effect`: how the host failed or throttled, None if it did not.
    - `rng01`: returns a random number in 0..1, for the lengths of back-offs.
    """
    match effect:
        case None if policy_for(end_of(result)).category is Category.REFUSED:
            return facts  # nothing was sent, so the fetch says nothing about the host
        case None:
            reached = facts.health.connected(answers=result.reason.startswith("robots_"))
            health = facts.health.answered(now_ms) if result.end == UrlEnd.ANSWERED else reached
            return facts if health is facts.health else replace(facts, health=health)
        case HostEffect.UNREACHABLE:
            health = facts.health.failed(now_ms, retry=crawl.spec.retry, base_s=UNREACHABLE_BASE_S, rng01=rng01())
        case _:
            health = facts.health.refused(
                now_ms,
                effect,
                retry=crawl.spec.retry,
                delay_s=crawl.delay_s(host, facts),
                max_delay_s=crawl.spec.politeness.max_delay_s,
                rng01=rng01(),
                retry_after_s=retry_after_s(result),
            )
    return replace(facts, health=health, last_failure=f"{reason_of(result)} {result.detail}".strip()[:_FAILURE_CHARS])


def facts_noted(
    facts: HostFacts, note: HostNote, crawl: DispatchCrawl | None, now_ms: int, rng01: Callable[[], float]
) -> HostFacts:
    """Return the host's facts, updated with the measurements and the failure in `note`, a visit's note on the host.

    - `crawl`: None if the crawl is deleted. Then a failure of the host is ignored.
    - `rng01`: returns a random number in 0..1, for the lengths of back-offs.
    """
    facts = replace(
        facts,
        crawl_delay_ms=note.crawl_delay_ms if note.crawl_delay_ms >= 0 else facts.crawl_delay_ms,
        latency_ms=note.latency_ms or facts.latency_ms,
        ip=note.ip or facts.ip,
    )
    if not note.failure or crawl is None:
        return facts
    health = facts.health.failed(
        now_ms,
        retry=crawl.spec.retry,
        base_s=crawl.spec.retry.host_base_s if "http_" in note.failure else UNREACHABLE_BASE_S,
        rng01=rng01(),
        retry_after_s=retry_after_s(note),
    )
    return replace(facts, health=health, last_failure=f"{note.failure} {note.detail}".strip())


def retry_after_s(asked: UrlOutcome | HostNote) -> float | None:
    """Return the seconds that the server asked to wait (Retry-After), or None if it asked for none."""
    return asked.retry_after_ms / 1000 if asked.retry_after_ms >= 0 else None


class RecrawlFetch(Struct):
    """One fetch of a URL, the first or a later one, in a crawl that may fetch the same URL several times.

    - `place`: crawl, host and fingerprint of the URL.
    - `page`: the fetch stored a page.
    - `revision`: the revision of the spec under which the URL was leased.
    - `adaptive`: the schedule that fetches pages sooner if they change often. None: the crawl has no such schedule.
    """

    crawl: DispatchCrawl
    recrawl: CompiledRecrawl
    place: tuple[CrawlId, HostId, Fingerprint]
    url: LeasedUrl
    result: UrlOutcome
    decision: Decision
    page: bool
    revision: int
    now_ms: int
    adaptive: AdaptiveSchedule | None = None

    def verdict(self, changes: Changes, queue: CrawlQueue | None) -> PageVerdict:
        """Return the new state of the URL. Add to `changes` what the fetch changes besides the URL's own row.

        `queue`: the host's queue, None if it is not in memory.
        """
        if is_sitemap(self.url, self.result.entries, page=self.page):
            return self._sitemap(changes, queue)
        if self.url.last is not None and not self.url.flags & COUNTED_AS_PAGE:  # It was a sitemap before.
            uncount_sitemap(changes, self.place[0], self.url)
            self.url = replace(self.url, last=None)
        return self._stored_page(changes, queue)

    def _stored_page(self, changes: Changes, queue: CrawlQueue | None) -> PageVerdict:
        """Return the new state of a page after this fetch. Add to `changes` what else the fetch changes:

        - the rows of the fetch, and an entry in the crawl's log of new, changed and gone pages
        - for a new, changed or relisted page: its excluded links and other missing content (`count_losses`)
        - the host's record of how often the dates in its sitemaps and feeds announced a real change of a page
        """
        (crawl_id, host_id, fingerprint), url, result = self.place, self.url, self.result
        visited = Visited(result.status, result.digest, result.mark, self.page, reason_of(result), result.not_indexed)
        signals = self._signals(changes, queue)
        if self.adaptive is not None and url.last is not None:
            signals = self._compared(changes, visited, signals)
        verdict = judge_page(
            self.recrawl, self.crawl.max_depth, url, visited, self.decision, self.now_ms, self.adaptive, signals
        )
        finding, history = verdict.finding, verdict.history
        if verdict.state is UrlState.WAITING and verdict.reason in _NEEDS_BODY:
            result = replace(result, etag="", last_modified="")
        if history is not None:
            history = without_rate(history) if verdict.state is UrlState.DONE else history
            before = None if url.last is None else url.last.history
            for known, sign in ((before, -1), (history, 1)):
                for kind, bucket, n in counted(known):
                    changes.tallies[crawl_id, kind, str(bucket)] += sign * n
        if url.flags & COUNTED_AS_PAGE:
            changes.tallies[crawl_id, "revisited", finding.value] += 1
        if finding is Finding.RETRIED:
            changes.tallies[crawl_id, "retried", reason_of(result)] += 1
        row = fetch_row(*self.place, result, page=self.page, revision=self.revision)
        replaced = finding in (Finding.NEW, Finding.CHANGED) or self._relisted(finding, row)
        if replaced and history is not None:
            row = replace(row, recrawl=history.encoded())
            verdict = replace(verdict, flags=count_losses(changes, row, result, verdict.flags))
            if url.last is not None and finding is not Finding.UNCHANGED:
                forget = history.version - self.recrawl.spec.keep_versions
                changes.superseded.append(Superseded(*self.place, url.last.history.version, forget))
        elif history is not None:
            etag, last_modified = (result.etag, result.last_modified) if finding is Finding.UNCHANGED else (None, None)
            if finding is Finding.FAILED and result.status == _NOT_MODIFIED:
                # The answer says nothing of the stored page. So the next request is sent without a condition.
                etag = last_modified = ""
            # A 304 has no items. A second one must not hide the fetch before it, whose items may not be stored yet.
            items_at_ms = result.at_ms if self.page else None
            changes.revisited.append(RevisitRow(*self.place, history.encoded(), etag, last_modified, items_at_ms))
        if replaced or finding is not Finding.UNCHANGED:
            changes.fetches.append(row)
        if (logged := _LOGGED.get(finding)) is not None and history is not None:
            changes.at_ms = self.now_ms
            entry = change_of(logged, host_id, fingerprint, history.version)
            changes.page_changes.setdefault(crawl_id, []).append(entry)
        return verdict

    def _relisted(self, finding: Finding, row: FetchRow) -> bool:
        """Return True if an unchanged page got or lost a robots directive that keeps it out of lists of pages.

        The worker then stored the payload again, so `row` replaces the stored fetch. The page has no new version.
        """
        last = self.url.last
        return finding is Finding.UNCHANGED and self.page and last is not None and last.reason != (row.reason or "")

    def _sitemap(self, changes: Changes, queue: CrawlQueue | None) -> PageVerdict:
        """Return the new state of a sitemap or feed after this fetch. Add to `changes` what else the fetch changes:

        - the row of the fetch, and the counts of the links in the file that are excluded (`count_losses`)
        - the time at which a sitemap of the host was last read
        """
        (crawl_id, host_id, _), url, result = self.place, self.url, self.result
        visited = Visited(result.status, result.digest, b"", False, reason_of(result))
        found_ms = 0 if queue is None else queue.found_ms
        verdict = judge_sitemap(
            self.recrawl,
            self.crawl.spec.discover.max_quiet_fetches,
            url,
            visited,
            self.decision,
            self.now_ms,
            found=url.last is not None and found_ms > url.last.history.checked_ms,
            pages=0 if queue is None else queue.pages,
            adaptive=self.adaptive,
        )
        finding, history = verdict.finding, verdict.history
        if history is None:
            changes.tallies[crawl_id, "retried", visited.reason] += 1
            return verdict
        uncount_sitemap(changes, crawl_id, url)
        if history.rate:
            changes.tallies[crawl_id, SITEMAPS, str(bucket_for(history.rate))] += 1
        if finding is not Finding.FAILED and self.adaptive is not None:
            changes.signals[crawl_id, host_id] = self._signals(changes, queue).read(self.now_ms).encoded()
        if finding is Finding.UNCHANGED and url.last is not None:
            changes.revisited.append(RevisitRow(*self.place, history.encoded(), result.etag, result.last_modified))
            return verdict
        row = replace(fetch_row(*self.place, result, page=False, revision=self.revision), recrawl=history.encoded())
        changes.fetches.append(row)
        flags = count_losses(changes, row, result, url.flags)
        return replace(verdict, flags=verdict.flags | flags & LOSSES_COUNTED)

    def _signals(self, changes: Changes, queue: CrawlQueue | None) -> HostSignals:
        """Return the record of how often the dates in the host's sitemaps and feeds announced a real change of a page.

        Take the record from `changes`, or from `queue` if `changes` has none for this crawl and host yet.
        """
        crawl_id, host_id, _ = self.place
        stored = changes.signals.get((crawl_id, host_id))
        return signals_of(queue.signals if stored is None and queue is not None else stored)

    def _compared(self, changes: Changes, visited: Visited, signals: HostSignals) -> HostSignals:
        """Compare the page with its stored version, to check if the host's sitemaps and feeds gave a right date for it.

        `signals`: how often these dates were right before this fetch. Return `signals` with this check counted, and
        add the result to `changes`. If no check is possible, return `signals` as given.
        """
        (crawl_id, host_id, _), last = self.place, self.url.last
        unchanged = is_unchanged(self.url, visited)
        if last is None or not (visited.page or unchanged):
            return signals
        known = last.history
        rate = decoded(rate_before(known, self.recrawl.of(self.url.url), self.adaptive))
        after = signals.compared(
            rate, signalled=known.signalled, changed=not unchanged, checked_ms=known.checked_ms, now_ms=self.now_ms
        )
        if after is not signals:
            changes.signals[crawl_id, host_id] = after.encoded()
        return after


def after_denial(
    changes: Changes,
    crawl: DispatchCrawl,
    place: tuple[CrawlId, HostId, Fingerprint],
    url: LeasedUrl,
    reason: str,
    now_ms: int,
    queue: CrawlQueue | None,
    adaptive: AdaptiveSchedule | None,
) -> PageVerdict:
    """Return the new state of a URL that the rule `reason` forbids to request. Add to `changes` what else changes.

    A stored page that is fetched again may wait (`judge_denied`), since robots.txt may permit it later. Any other URL
    is excluded. `queue`, `adaptive`: as in `RecrawlFetch`.
    """
    last = url.last
    if reason == ExclusionReason.ROBOTS and last is not None and (crawl.spec.recrawl.used or url.flags & REVISIT):
        pages = 0 if queue is None else queue.pages
        made = judge_denied(compiled(crawl.spec.recrawl), url, last.history, now_ms, pages=pages, adaptive=adaptive)
        if made.state is UrlState.WAITING:
            if links_again(url, crawl.max_depth):
                # The next request must bring the body, so that the links of the page are read at its new depth.
                changes.revisited.append(RevisitRow(*place, last.history.encoded(), "", ""))
            return made
    else:
        changes.tallies[place[0], "excluded", reason] += 1
        made = PageVerdict(Finding.FAILED, UrlState.EXCLUDED, 0, url.attempt - 1, reason, url.flags, None)
    uncount(changes, place, url)
    return made


def uncount_sitemap(changes: Changes, crawl_id: CrawlId, url: LeasedUrl) -> None:
    """Subtract 1 from the crawl's number of sitemaps to fetch again. Do nothing if `url` is not counted there."""
    if url.last is not None and not url.flags & COUNTED_AS_PAGE and url.last.history.rate:
        changes.tallies[crawl_id, SITEMAPS, str(bucket_for(url.last.history.rate))] -= 1
