"""Signs of change: how far they are trusted, what they change, and what a sitemap's fetch means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.domain.crawl.recrawl_rules import CompiledRecrawl
from shared.domain.crawl.recrawl_spec import Recrawl, RecrawlPolicy
from shared.domain.frontier.change_rate import ChangeRate
from shared.domain.frontier.failure import Category, Decision
from shared.domain.frontier.page_history import QUIET, REMEMBERED, PageHistory, decoded
from shared.domain.frontier.page_signs import PageSigns
from shared.domain.frontier.page_visits import Finding, Visited, judge_page
from shared.domain.frontier.recrawl import SignalTrust
from shared.domain.frontier.recrawl_pages import RATES, AdaptiveSchedule, RecrawlPages, bucket_for, rate_after
from shared.domain.frontier.revisits import LastFetch
from shared.domain.frontier.signals import FULL_SIGN_SHARE, NO_SIGNALS, HostSignals, signals_of
from shared.domain.frontier.sitemap_visits import judge_sitemap
from shared.domain.frontier.states import COUNTED_AS_PAGE, REVISIT, UrlKind, UrlState, kind_flags
from shared.domain.frontier.store_model import LeasedUrl

NOW_MS = 1_800_000_000_000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
SPEC = Recrawl(policy=RecrawlPolicy.ADAPTIVE, min_s=3600, max_s=100 * 86_400, requests_per_day=20)
RULES = CompiledRecrawl(SPEC)
MONTHLY = ChangeRate(1 / (30 * 86_400), 8.0).code
RIGHT = HostSignals(SignalTrust(0.0, 30.0, 0.0, 30.0), NOW_MS - DAY_MS)
WRONG = HostSignals(SignalTrust(30.0, 30.0, 5.0, 5.0), NOW_MS - DAY_MS)
URL = "http://a.test/page"
bytes_of_trust = st.floats(0, 200, width=32)


def adaptive(requests_per_day: int = 20, count: int = 400) -> AdaptiveSchedule:
    counts = {RATES: {bucket_for(MONTHLY): count}}
    return AdaptiveSchedule(RecrawlPages(requests_per_day, RULES.of(URL), counts, NOW_MS), 1.0, NOW_MS)


def history(rate: int = MONTHLY, checked_ms: int = NOW_MS - 5 * DAY_MS) -> PageHistory:
    return PageHistory(compared=3, rate=rate, checked_ms=checked_ms)


def test_trusted_sign_makes_a_page_due_sooner_and_a_wrong_one_does_not() -> None:
    signs, due_ms = PageSigns(RULES, adaptive()), NOW_MS + 20 * DAY_MS
    right = signs.signed(URL, history(), due_ms, NOW_MS - HOUR_MS, RIGHT, NOW_MS)
    assert right is not None
    assert right.sooner
    assert right.due_ms < NOW_MS
    assert (right.history.signalled, right.history.known_ms) == (True, NOW_MS)
    assert right.history.sign_share == RIGHT.sign_share > FULL_SIGN_SHARE / 2
    for untrusted in (WRONG, NO_SIGNALS):
        lying = signs.signed(URL, history(), due_ms, NOW_MS - HOUR_MS, untrusted, NOW_MS)
        assert lying is not None
        assert (lying.sooner, lying.due_ms, lying.history) == (False, due_ms, replace(history(), signalled=True))
        assert signs.signed(URL, lying.history, due_ms, NOW_MS, untrusted, NOW_MS) is None, "a repeat changes nothing"
    assert signs.signed(URL, history(), due_ms, history().checked_ms, RIGHT, NOW_MS) is None, "it was fetched since"


@pytest.mark.parametrize(("at_sign", "at_fetch"), [(WRONG, RIGHT), (RIGHT, WRONG), (RIGHT, RIGHT), (WRONG, WRONG)])
def test_signed_change_counts_once_if_trust_changes_before_the_fetch(
    at_sign: HostSignals, at_fetch: HostSignals
) -> None:
    signed = PageSigns(RULES, adaptive()).signed(URL, history(), NOW_MS + DAY_MS, NOW_MS - HOUR_MS, at_sign, NOW_MS)
    assert signed is not None
    assert (signed.history.rate != MONTHLY) == at_sign.trusted
    url = LeasedUrl(URL, 0, 0, 1, 1, 0, COUNTED_AS_PAGE | REVISIT, 0)
    url.last = LastFetch(NOW_MS - 5 * DAY_MS, b"d" * 20, None, None, signed.history)
    fetch = Visited(200, b"n" * 20, b"", True, "")
    verdict = judge_page(RULES, None, url, fetch, DONE, NOW_MS + HOUR_MS, adaptive(), at_fetch)
    assert verdict.finding is Finding.CHANGED
    assert verdict.history is not None
    if at_sign.trusted:
        assert verdict.history.rate == signed.history.rate
    else:
        assert verdict.history.rate == rate_after(MONTHLY, RULES.of(URL), changed=True, elapsed_ms=5 * DAY_MS + HOUR_MS)


def test_page_that_changes_too_often_for_a_fetch_is_not_followed() -> None:
    busy = ChangeRate(1 / 60, 8.0).code
    schedule = adaptive()
    assert schedule.sign_share(busy, RIGHT) == 0 < schedule.sign_share(MONTHLY, RIGHT)
    assert schedule.signalled_wait_ms(busy, RULES.of(URL), RIGHT) > 90 * DAY_MS
    assert schedule.wait_ms(MONTHLY, RULES.of(URL), 200) > schedule.wait_ms(MONTHLY, RULES.of(URL))


@given(
    code=st.integers(1, 2**24 - 1), trust=st.tuples(*(bytes_of_trust,) * 4), checked_ago=st.integers(0, 200 * DAY_MS),
    lastmod_ago=st.integers(-DAY_MS, 300 * DAY_MS), due_in=st.integers(-DAY_MS, 100 * DAY_MS),
    read_ago=st.integers(0, DAY_MS),
)  # fmt: skip
def test_no_sign_makes_a_page_due_before_min_s(
    code: int, trust: tuple[float, ...], checked_ago: int, lastmod_ago: int, due_in: int, read_ago: int
) -> None:
    known = history(rate=code, checked_ms=(NOW_MS - checked_ago) // 1000 * 1000)
    signals = HostSignals(SignalTrust(*trust), NOW_MS - read_ago)
    due_ms = max(NOW_MS + due_in, known.checked_ms + HOUR_MS)
    signed = PageSigns(RULES, adaptive()).signed(URL, known, due_ms, NOW_MS - lastmod_ago, signals, NOW_MS)
    if signed is not None:
        assert known.checked_ms + HOUR_MS <= signed.due_ms <= due_ms
        assert decoded(signed.history.encoded(), 0) == replace(
            signed.history, known_ms=signed.history.known_ms // 1000 * 1000
        )


@given(trust=st.tuples(*(bytes_of_trust,) * 4), read_s=st.integers(0, 2**32 - 1))
def test_signals_are_stored_in_few_bytes(trust: tuple[float, ...], read_s: int) -> None:
    signals = HostSignals(SignalTrust(*trust), read_s * 1000)
    assert len(signals.encoded()) == 20
    assert signals_of(signals.encoded()) == signals
    assert signals_of(None) is NO_SIGNALS


def test_history_takes_23_bytes_at_most_and_12_without_signs() -> None:
    full = PageHistory(7, 16, 65535, NOW_MS, MONTHLY, 2, b"m" * 6, True, FULL_SIGN_SHARE, NOW_MS)
    assert len(full.encoded()) == 23
    assert decoded(full.encoded(), 0) == full
    assert len(PageHistory(rate=MONTHLY, signalled=True).encoded()) == 12


def test_unlisted_change_counts_only_after_a_sitemap_was_read() -> None:
    rate = ChangeRate(1 / (5 * 86_400))
    of = {"signalled": False, "changed": True, "checked_ms": NOW_MS - DAY_MS, "now_ms": NOW_MS}
    assert HostSignals().compared(rate, **of) == NO_SIGNALS  # type: ignore[arg-type]
    assert HostSignals().read(NOW_MS - HOUR_MS).compared(rate, **of).trust.missed == 1  # type: ignore[arg-type]


def sitemap(quiet: int = 0, compared: int = 0) -> LeasedUrl:
    flags = kind_flags(UrlKind.HOST_SITEMAP) | REVISIT
    url = LeasedUrl("http://a.test/sitemap.xml", 0, 0, 1, 1, 0, flags, 0)
    changes = 1 << quiet if compared > quiet else 0
    last = PageHistory(compared=compared, changes=changes & 0xFFFF, checked_ms=NOW_MS - DAY_MS)
    url.last = LastFetch(NOW_MS - DAY_MS, b"d" * 20, None, None, last)
    return url


DONE = Decision(Category.PAGE, UrlState.DONE, 0.0, True)


def visited(status: int = 200, digest: bytes = b"n" * 20) -> Visited:
    return Visited(status, digest, b"", False, f"http_{status}")


def test_sitemap_waits_twice_as_long_after_each_quiet_fetch_and_ends() -> None:
    recrawl = CompiledRecrawl(Recrawl(policy=RecrawlPolicy.FIXED, min_s=3600, max_s=86_400))
    url, waits = sitemap(), []
    while True:
        verdict = judge_sitemap(recrawl, 7, url, visited(), DONE, NOW_MS, found=False, pages=5)
        assert verdict.history is not None
        assert url.last is not None
        if verdict.state is UrlState.DONE:
            break
        waits.append((verdict.rank - NOW_MS) // HOUR_MS)
        assert verdict.flags & REVISIT
        url.last = replace(url.last, history=verdict.history)
    assert waits == [2, 4, 8, 16, 24, 24, 24], "the last one waits for links that are stored after their outcome"
    assert (verdict.reason, verdict.flags & REVISIT, verdict.history.rate) == (QUIET, 0, 0)


SAME, OTHER = visited(200, b"d" * 20), visited()


def judged_again(fetches: list[tuple[Visited, bool]], max_quiet: int) -> list[tuple[UrlState, int]]:
    """Return the state and the number of quiet fetches after each fetch of one sitemap (what it got, found)."""
    url, seen = sitemap(), []
    for fetch, found in fetches:
        verdict = judge_sitemap(RULES, max_quiet, url, fetch, DONE, NOW_MS, found=found, pages=5)
        assert verdict.history is not None
        assert url.last is not None
        url.last = replace(url.last, history=verdict.history)
        seen.append((verdict.state, verdict.history.quiet))
    return seen


def test_links_stored_after_the_outcome_count_at_the_next_fetch_of_a_sitemap() -> None:
    fetches = [(SAME, False), (OTHER, False), (SAME, True), (SAME, True)]
    assert [quiet for _, quiet in judged_again(fetches, 10)] == [1, 2, 1, 2], "the second fetch was not quiet"
    assert [quiet for _, quiet in judged_again([(SAME, False), (OTHER, True), (SAME, True)], 10)] == [1, 0, 1]


@pytest.mark.parametrize("max_quiet", [1, 2, REMEMBERED])
def test_sitemap_is_not_done_before_late_links_of_its_last_fetch_count(max_quiet: int) -> None:
    ended = (UrlState.DONE, max_quiet)
    assert judged_again([(SAME, False)] * max_quiet, max_quiet)[-1] == ended
    last_differs = [(SAME, False)] * (max_quiet - 1) + [(OTHER, False)]
    late = judged_again([*last_differs, (SAME, True)], max_quiet)
    if max_quiet < REMEMBERED:
        assert late[-2:] == [(UrlState.WAITING, max_quiet), (UrlState.DONE if max_quiet == 1 else UrlState.WAITING, 1)]
        assert judged_again([*last_differs, (SAME, False)], max_quiet)[-1] == (UrlState.DONE, max_quiet + 1)
        assert judged_again([(OTHER, False)] * (max_quiet + 1), max_quiet)[-1][0] is UrlState.DONE
    else:
        assert late[-2] == ended, "a history of so many fetches cannot count one more"


@pytest.mark.parametrize(
    ("fetch", "found", "quiet"),
    [
        (visited(), True, 0), (visited(), False, 4), (visited(200, b"d" * 20), True, 4),
        (visited(304, b"d" * 20), True, 4), (visited(404, b""), True, 4),
    ],
)  # fmt: skip
def test_sitemap_is_quiet_unless_it_changed_and_something_new_was_listed(
    fetch: Visited, found: bool, quiet: int
) -> None:
    verdict = judge_sitemap(RULES, 10, sitemap(3, 5), fetch, DONE, NOW_MS, found=found, pages=5, adaptive=adaptive())
    assert verdict.history is not None
    assert verdict.history.quiet == quiet
    assert verdict.state is UrlState.WAITING


@given(quiet=st.integers(0, REMEMBERED), pages=st.integers(0, 10_000), rpd=st.integers(1, 10**6))
def test_sitemap_never_waits_less_than_min_s_or_takes_more_than_its_part(quiet: int, pages: int, rpd: int) -> None:
    schedule = adaptive(rpd)
    wait_ms = schedule.sitemap_wait_ms(RULES.of(URL), quiet, pages)
    assert HOUR_MS <= wait_ms <= 100 * DAY_MS
    fifth_ms = 5_000 * schedule.pages.equal_s(1.0) / max(pages, 1)
    assert wait_ms >= min(fifth_ms, 100 * DAY_MS) - 1
