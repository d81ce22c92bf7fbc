"""Outcomes of pages that are fetched again: counts hold, and each finding changes exactly what it should."""

from dataclasses import replace

from msgspec import structs

from api.frontier.capacity import spent_in
from shared.domain.crawl.exclusions import OWNER
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.frontier.counters import Counters
from shared.domain.frontier.page_history import ChangeKind, PageHistory, decoded
from shared.domain.frontier.recrawl_pages import RATES, SITEMAPS, RecrawlPages
from shared.domain.frontier.revisits import LastFetch
from shared.domain.frontier.states import COUNTED_AS_PAGE, LOSSES_COUNTED, RETRY, REVISIT, UrlEnd, UrlState
from shared.domain.frontier.store_model import Changes, LeasedUrl
from shared.wire.messages import Record, UrlOutcome
from tests.unit.test_settle import CRAWL, NOW_MS, Desk, P, fingerprint, lease_id, outcome

DAY_MS = 86_400_000
SAME, OTHER = b"s" * 20, b"o" * 20


def desk(**recrawl: object) -> Desk:
    """An owner with four URLs out, of which three have a stored page."""
    made = Desk(sizes=(4,))
    made.crawl.spec = parse_spec({"seeds": ["http://a.test/"], "recrawl": {"policy": "fixed", **recrawl}})
    held = made.leases.get(lease_id(1))
    assert held is not None
    for n in range(1, 4):
        url = held.row.urls[fingerprint(1, n)]
        url.flags = COUNTED_AS_PAGE | REVISIT
        url.last = LastFetch(NOW_MS - DAY_MS, SAME, '"e"', None, PageHistory(checked_ms=NOW_MS - DAY_MS, rate=7 << 20))
    made.counters["revisiting"] = 3
    made.crawl.allowance.restore(P, spent_in(Counters(leased=4, revisiting=3)))
    return made


def result(n: int, status: int, digest: bytes) -> UrlOutcome:
    return UrlOutcome(
        fingerprint(1, n), UrlEnd.ANSWERED, NOW_MS, status, size=10, digest=digest, record=Record("s", n, 9), etag='"f"'
    )


def settled(made: Desk, *results: UrlOutcome) -> Changes:
    draft = made.draft()
    draft.outcome(outcome(1, *results))
    changes = draft.changes
    made.commit(draft)
    return changes


def test_each_finding_changes_its_own_rows_and_the_counts_hold() -> None:
    made = desk()
    changes = settled(made, result(0, 200, OTHER), result(1, 200, OTHER), result(2, 304, SAME), result(3, 404, b""))
    assert {change.state for change in changes.urls} == {UrlState.WAITING}
    assert (made.counters["revisits"], made.counters["revisiting"], made.counters["pages"]) == (4, 0, 1)
    assert made.counters["queued"] == 7
    assert [(each.kind, each.version) for each in changes.page_changes[CRAWL]] == [
        (ChangeKind.NEW, 1), (ChangeKind.CHANGED, 2),
    ]  # fmt: skip
    assert [each.version for each in changes.superseded] == [1]
    assert [each.fingerprint for each in changes.fetches] == [fingerprint(1, n) for n in (0, 1, 3)]
    assert [(each.fingerprint, each.etag) for each in changes.revisited] == [
        (fingerprint(1, 2), '"f"'), (fingerprint(1, 3), None),
    ]  # fmt: skip
    assert changes.tallies[CRAWL, "revisited", "unchanged"] == 1
    assert made.crawl.allowance.remaining(10**6) == 999, "only the new page uses up budget"


def test_unchanged_page_with_another_directive_replaces_its_row() -> None:
    made = desk()
    held = made.leases.get(lease_id(1))
    assert held is not None
    hidden = held.row.urls[fingerprint(1, 2)]
    assert hidden.last is not None
    hidden.last, hidden.flags = structs.replace(hidden.last, reason="noindex"), hidden.flags | LOSSES_COUNTED
    same = result(3, 200, SAME)
    results = [structs.replace(result(1, 200, SAME), not_indexed="noindex"), result(2, 200, SAME), same]
    changes = settled(made, *results)
    rows = {row.fingerprint: row for row in changes.fetches}
    assert [(rows[fingerprint(1, n)].page, rows[fingerprint(1, n)].reason) for n in (1, 2)] == [
        (False, "noindex"), (True, None),
    ]  # fmt: skip
    assert {decoded(row.recrawl, 0).version for row in changes.fetches} == {1}
    assert [each.fingerprint for each in changes.revisited] == [fingerprint(1, 3)]
    assert (changes.superseded, changes.page_changes) == ([], {})
    assert changes.tallies[CRAWL, "not_indexed", "noindex"] == 1, "the page counted before is counted again in SQL"
    assert [row.fingerprint for row in changes.losses_to_replace] == [fingerprint(1, 2)]
    assert made.counters["pages"] == 0


def test_unchanged_page_has_its_items_accepted_if_its_body_came() -> None:
    changes = settled(desk(), result(1, 200, SAME), result(2, 304, SAME), result(3, 404, b""))
    assert [each.items_at_ms for each in changes.revisited] == [NOW_MS, None, None]


def test_answer_304_with_a_directive_makes_the_page_due_without_a_condition() -> None:
    changes = settled(desk(), structs.replace(result(1, 304, SAME), not_indexed="noindex"))
    [due] = [change for change in changes.urls if change.reason == "noindex"]
    assert (due.state, due.rank, due.flags) == (UrlState.WAITING, NOW_MS, COUNTED_AS_PAGE | REVISIT | RETRY)
    [row] = changes.revisited
    assert (row.etag, row.last_modified, changes.fetches) == ("", "", [])


def test_answer_304_that_proves_nothing_makes_the_next_request_unconditional() -> None:
    changes = settled(desk(), result(1, 304, OTHER))
    [row] = changes.revisited
    assert (row.etag, row.last_modified) == ("", "")


def test_page_found_nearer_is_due_at_once_outside_the_budget() -> None:
    """It was queued as a new URL, and a crawl whose budget is spent never fetched it again."""
    made = desk()
    made.crawl.spec = structs.replace(made.crawl.spec, scope=structs.replace(made.crawl.spec.scope, max_depth=5))
    for n in (1, 2):
        made.leases.lower(lease_id(1), fingerprint(1, n), 1)
    changes = settled(made, result(1, 200, OTHER), result(2, 200, SAME))
    nearer = [change for change in changes.urls if change.reason == "depth"]
    assert [(each.state, each.rank, each.flags) for each in nearer] == [
        (UrlState.WAITING, NOW_MS, COUNTED_AS_PAGE | REVISIT | RETRY)
    ] * 2
    assert (made.counters["retries"], made.queue.waiting) == (2, 3), "the fourth page was not attempted"
    [changed], [same] = changes.fetches, changes.revisited
    assert (changed.etag, changed.last_modified) == ("", ""), "the next request has no condition"
    assert (same.etag, same.last_modified) == ("", "")


def test_pages_that_were_not_attempted_wait_on_with_their_due_time() -> None:
    made = desk()
    draft = made.draft()
    draft.outcome(outcome(1, result(0, 200, OTHER), not_attempted=[fingerprint(1, n) for n in range(1, 4)]))
    back = [change for change in draft.changes.urls if change.fingerprint != fingerprint(1, 0)]
    assert [(change.state, change.rank, change.attempts) for change in back] == [
        (UrlState.WAITING, n, 0) for n in range(1, 4)
    ]
    made.commit(draft)
    assert (made.counters["revisits"], made.counters["revisiting"]) == (4, 0)


def test_adaptive_policy_waits_by_the_counts_and_moves_the_page_between_them() -> None:
    made = desk(policy="adaptive", min_s=60, requests_per_day=10)
    recrawl = made.crawl.recrawl
    assert recrawl is not None
    pages = RecrawlPages(10, recrawl.of(""), {RATES: {56: 3}}, NOW_MS)
    draft = replace(made.draft(), recrawls={CRAWL: pages})
    draft.outcome(outcome(1, result(1, 200, OTHER), result(2, 304, SAME), final=False))
    moved = {key: n for (_, kind, key), n in draft.changes.tallies.items() if kind == RATES and n}
    assert sum(moved.values()) == 0, "each page is counted once"
    waits = {change.fingerprint: change.rank - NOW_MS for change in draft.changes.urls}
    assert min(waits.values()) >= 60_000
    assert max(waits.values()) > 60_000, "ten requests a day do not fetch three pages each minute"
    changed = next(row for row in draft.changes.fetches if row.fingerprint == fingerprint(1, 1))
    quiet = next(row for row in draft.changes.revisited if row.fingerprint == fingerprint(1, 2))
    assert decoded(changed.recrawl, 0).rate > decoded(quiet.recrawl, 0).rate


def test_outcome_after_recrawl_was_removed_keeps_the_versions_of_the_page() -> None:
    """The page was leased before. Else its newest version would have the number 1."""
    made = desk()
    made.crawl.spec = parse_spec({"seeds": ["http://a.test/"]})
    changes = settled(made, result(0, 200, OTHER), result(1, 200, OTHER), *(result(n, 304, SAME) for n in (2, 3)))
    assert {change.state for change in changes.urls} == {UrlState.DONE}
    assert [(each.kind, each.version) for each in changes.page_changes[CRAWL]] == [(ChangeKind.CHANGED, 2)]
    assert [each.version for each in changes.superseded] == [1]
    rows = {row.fingerprint: row.recrawl for row in changes.fetches}
    assert rows[fingerprint(1, 0)] is None, "a page that is fetched once has no history"
    assert decoded(rows[fingerprint(1, 1)], 0).version == 2
    assert [each.fingerprint for each in changes.revisited] == [fingerprint(1, n) for n in (2, 3)]


def denied(n: int, reason: str = OWNER) -> UrlOutcome:
    return UrlOutcome(fingerprint(1, n), UrlEnd.DENIED, NOW_MS, reason=reason)


def leased(made: Desk, n: int) -> LeasedUrl:
    held = made.leases.get(lease_id(1))
    assert held is not None
    return held.row.urls[fingerprint(1, n)]


def moved_by(changes: Changes, kind: str = RATES) -> int:
    return sum(n for (_, each, _), n in changes.tallies.items() if each == kind)


def test_stored_page_that_robots_forbids_waits_for_its_next_fetch() -> None:
    """It was excluded, and never fetched again after one day of `Disallow: /`."""
    made = desk(min_s=600, by_pattern=[{"match": "/2$", "policy": "never"}])
    leased(made, 1).flags |= RETRY
    changes = settled(made, *(denied(n, "robots") for n in range(4)))
    made.audit()
    found = {each.fingerprint: (each.state, each.rank, each.attempts, each.reason, each.flags) for each in changes.urls}
    waiting = (UrlState.WAITING, NOW_MS + 600_000, 0, "robots", COUNTED_AS_PAGE | REVISIT)
    never = (UrlState.DONE, 0, 0, "fetched_once", COUNTED_AS_PAGE)
    excluded = (UrlState.EXCLUDED, 0, 0, "robots", 0)
    assert [found[fingerprint(1, n)] for n in range(4)] == [excluded, waiting, never, waiting]
    assert (made.counters["revisits"], made.counters["revisiting"], made.counters["retries"]) == (2, 0, 0)
    assert (made.counters["fetches"], made.counters["pages"], changes.fetches) == (0, 0, [])
    assert changes.tallies[CRAWL, "excluded", "robots"] == 1
    assert moved_by(changes) == -1, "only the page that is done counts no more"
    assert [each.fingerprint for each in changes.revisited] == [fingerprint(1, 2)]


def test_denied_page_keeps_its_rate_and_waits_by_the_adaptive_policy() -> None:
    made = desk(policy="adaptive", min_s=60, requests_per_day=10)
    recrawl = made.crawl.recrawl
    assert recrawl is not None
    draft = replace(made.draft(), recrawls={CRAWL: RecrawlPages(10, recrawl.of(""), {RATES: {56: 3}}, NOW_MS)})
    draft.outcome(outcome(1, denied(1, "robots"), final=False))
    [change] = draft.changes.urls
    assert change.rank > NOW_MS + 60_000, "ten requests a day do not fetch three pages each minute"
    assert (moved_by(draft.changes), draft.changes.revisited) == (0, [])


def test_denied_page_that_is_found_nearer_is_requested_without_a_condition() -> None:
    made = desk()
    made.crawl.spec = structs.replace(made.crawl.spec, scope=structs.replace(made.crawl.spec.scope, max_depth=5))
    made.leases.lower(lease_id(1), fingerprint(1, 1), 1)
    [row] = settled(made, denied(1, "robots"), denied(2, "robots")).revisited
    assert (row.fingerprint, row.etag, row.last_modified) == (fingerprint(1, 1), "", "")
    assert decoded(row.recrawl, 0).rate == 7 << 20


def test_gone_page_that_robots_forbids_is_gone_again() -> None:
    made = desk()
    url = leased(made, 1)
    assert url.last is not None
    url.last = structs.replace(url.last, history=structs.replace(url.last.history, misses=2, rate=0))
    gone = next(each for each in settled(made, denied(1, "robots")).urls if each.fingerprint == fingerprint(1, 1))
    assert (gone.state, gone.reason) == (UrlState.DONE, "gone")


def test_page_denied_after_recrawl_was_removed_is_done() -> None:
    made = desk()
    made.crawl.spec = parse_spec({"seeds": ["http://a.test/"]})
    changes = settled(made, *(denied(n, "robots") for n in range(4)))
    assert [each.state for each in changes.urls] == [UrlState.EXCLUDED, *[UrlState.DONE] * 3]


def test_stored_page_that_is_excluded_counts_no_more() -> None:
    changes = settled(desk(), denied(0), denied(1), denied(2))
    assert moved_by(changes) == -2, "the new URL did not count"
    assert {each.fingerprint: decoded(each.recrawl, 0).rate for each in changes.revisited} == {
        fingerprint(1, 1): 0,
        fingerprint(1, 2): 0,
    }
    assert {(each.etag, each.last_modified) for each in changes.revisited} == {(None, None)}


def test_sitemap_that_robots_forbids_waits_and_keeps_its_quiet_fetches() -> None:
    made = desk(min_s=600, max_s=6000)
    url = leased(made, 1)
    assert url.last is not None
    url.flags, quiet = REVISIT, structs.replace(url.last.history, compared=2)
    url.last = structs.replace(url.last, history=quiet)
    changes = settled(made, denied(1, "robots"))
    found = next(each for each in changes.urls if each.fingerprint == fingerprint(1, 1))
    assert (found.state, found.rank, found.flags) == (UrlState.WAITING, NOW_MS + 2_400_000, REVISIT)
    assert (moved_by(changes, SITEMAPS), changes.revisited) == (0, [])


def test_excluded_sitemap_counts_no_more() -> None:
    made = desk()
    leased(made, 1).flags = REVISIT
    changes = settled(made, denied(1))
    assert (moved_by(changes), moved_by(changes, SITEMAPS)) == (0, -1)
    assert [decoded(each.recrawl, 0).rate for each in changes.revisited] == [0]


def test_page_that_comes_back_counts_once_from_its_next_fetch_on() -> None:
    """It was excluded, and its rate was taken. Then it was found again."""
    made = desk(policy="adaptive", min_s=60, requests_per_day=10)
    held = made.leases.get(lease_id(1))
    assert held is not None
    url = held.row.urls[fingerprint(1, 1)]
    assert url.last is not None
    url.flags, url.last = COUNTED_AS_PAGE, structs.replace(url.last, history=structs.replace(url.last.history, rate=0))
    recrawl = made.crawl.recrawl
    assert recrawl is not None
    pages = RecrawlPages(10, recrawl.of(""), {}, NOW_MS)
    draft = replace(made.draft(), recrawls={CRAWL: pages})
    draft.outcome(outcome(1, result(1, 200, OTHER), final=False))
    assert moved_by(draft.changes) == 1


def test_page_that_is_gone_counts_no_more_and_once_if_it_comes_back() -> None:
    made = desk()
    held = made.leases.get(lease_id(1))
    assert held is not None
    url = held.row.urls[fingerprint(1, 1)]
    assert url.last is not None
    url.last = structs.replace(url.last, history=structs.replace(url.last.history, misses=1))
    changes = settled(made, result(1, 404, b""))
    [gone] = changes.revisited
    assert (moved_by(changes), decoded(gone.recrawl, 0).rate) == (-1, 0)
