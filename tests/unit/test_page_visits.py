"""What a fetch of a stored page means: changed or not, gone, tried again, and when it is fetched next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.domain.crawl.recrawl_rules import compiled
from shared.domain.crawl.recrawl_spec import Recrawl, RecrawlPolicy, RecrawlRule
from shared.domain.frontier.failure import Category, Decision
from shared.domain.frontier.page_history import (
    MARK_BYTES,
    REMEMBERED,
    ChangeKind,
    PageChange,
    PageHistory,
    change_of,
    decoded,
    packed,
    unpacked,
)
from shared.domain.frontier.page_visits import Finding, PageVerdict, Visited, conditional, judge_page
from shared.domain.frontier.recrawl_pages import first_rate
from shared.domain.frontier.revisits import LastFetch
from shared.domain.frontier.states import COUNTED_AS_PAGE, RETRY, REVISIT, UrlState
from shared.domain.frontier.store_model import LeasedUrl
from shared.domain.ids import Fingerprint, HostId

NOW_MS = 1_800_000_000_000
DUE_MS = NOW_MS - 5_000
DAY_MS = 86_400_000
SAME, OTHER = b"s" * 20, b"o" * 20
DAILY = Recrawl(policy=RecrawlPolicy.FIXED)
DONE = Decision(Category.PAGE, UrlState.DONE, 0.0, attempt_used=True)
FAILED = Decision(Category.GONE, UrlState.FAILED, 0.0, attempt_used=True)


def leased(*, stored: bool = True, depth: int = 1, least: int = 1, mark: bytes = b"") -> LeasedUrl:
    if not stored:
        return LeasedUrl("http://a.test/", depth, least, 1, 0, 0, 0, 7)
    last = LastFetch(NOW_MS - DAY_MS, SAME, '"e"', None, PageHistory(checked_ms=NOW_MS - DAY_MS, mark=mark))
    return LeasedUrl("http://a.test/", depth, least, 1, 0, 0, COUNTED_AS_PAGE | REVISIT, DUE_MS, last)


def visited(status: int = 200, digest: bytes = SAME, *, mark: bytes = b"") -> Visited:
    return Visited(status, digest, mark, 200 <= status < 300, f"http_{status}")


def judged(url: LeasedUrl, seen: Visited, decision: Decision = DONE, spec: Recrawl = DAILY) -> PageVerdict:
    return judge_page(compiled(spec), 5, url, seen, decision, NOW_MS)


@pytest.mark.parametrize(
    ("seen", "decision", "finding"),
    [
        (visited(), DONE, Finding.UNCHANGED),
        (visited(digest=OTHER), DONE, Finding.CHANGED),
        (visited(304), FAILED, Finding.UNCHANGED),
        (visited(304, digest=OTHER), FAILED, Finding.FAILED),
        (visited(404, digest=OTHER), FAILED, Finding.MISSED),
        (visited(410, digest=OTHER), FAILED, Finding.MISSED),
        (visited(301, digest=OTHER), DONE, Finding.MISSED),
        (visited(403, digest=OTHER), FAILED, Finding.FAILED),
        (visited(0, digest=b""), FAILED, Finding.FAILED),
    ],
)
def test_stored_page_waits_for_its_interval_whatever_a_fetch_finds(
    seen: Visited, decision: Decision, finding: Finding
) -> None:
    made = judged(leased(), seen, decision)
    assert (made.finding, made.state, made.rank) == (finding, UrlState.WAITING, NOW_MS + DAY_MS)
    assert made.flags == COUNTED_AS_PAGE | REVISIT
    assert made.attempts == 0


def test_first_fetch_of_a_page_is_new_and_gives_it_a_due_time() -> None:
    made = judged(leased(stored=False), visited())
    assert (made.finding, made.state, made.rank) == (Finding.NEW, UrlState.WAITING, NOW_MS + DAY_MS)
    assert made.history == PageHistory(checked_ms=NOW_MS, rate=first_rate(compiled(DAILY).of("")))


def test_page_is_gone_after_two_misses_in_a_row() -> None:
    once = judged(leased(), visited(404, OTHER), FAILED)
    url = leased()
    assert url.last is not None
    assert once.history is not None
    again = replace(url, last=replace(url.last, history=once.history))
    gone = judged(again, visited(410, OTHER), FAILED)
    assert (gone.finding, gone.state, gone.reason) == (Finding.GONE, UrlState.DONE, "gone")
    assert gone.flags == COUNTED_AS_PAGE
    back = judged(again, visited(304), FAILED)
    assert (back.finding, back.history.misses if back.history else -1) == (Finding.UNCHANGED, 0)


def test_retry_of_a_stored_page_uses_an_attempt_and_keeps_its_history() -> None:
    wait = Decision(Category.SERVER_ERROR, UrlState.WAITING, 5.0, attempt_used=True)
    made = judged(leased(), visited(500, OTHER), wait)
    assert (made.finding, made.rank, made.attempts) == (Finding.RETRIED, NOW_MS + 5_000, 1)
    assert made.flags == COUNTED_AS_PAGE | REVISIT | RETRY
    assert made.history is None


def test_page_of_a_host_that_fails_stays_due_without_an_attempt() -> None:
    away = Decision(Category.UNREACHABLE, UrlState.WAITING, 0.0, attempt_used=False)
    made = judged(leased(), visited(0, b""), away)
    assert (made.rank, made.attempts, made.flags) == (DUE_MS, 0, COUNTED_AS_PAGE | REVISIT)


def test_page_that_was_found_nearer_is_fetched_whole_and_again() -> None:
    url = leased(depth=3, least=1)
    assert not conditional(url)
    assert conditional(leased())
    made = judged(url, visited())
    assert (made.finding, made.state, made.reason, made.flags) == (
        Finding.UNCHANGED, UrlState.WAITING, "depth", COUNTED_AS_PAGE | REVISIT | RETRY,
    )  # fmt: skip
    assert (made.rank, made.attempts) == (NOW_MS, 0), "it is due at once, and uses no budget"


def test_rule_sets_the_interval_of_pages_that_match_it() -> None:
    rules = (RecrawlRule(match="^http://b"), RecrawlRule(match="a.test", min_s=60.0), RecrawlRule(match=".", min_s=9.0))
    spec = Recrawl(policy=RecrawlPolicy.FIXED, by_pattern=rules)
    assert judged(leased(), visited(), spec=spec).rank == NOW_MS + 60_000
    never = Recrawl(policy=RecrawlPolicy.FIXED, by_pattern=(RecrawlRule(match="a", policy=RecrawlPolicy.NEVER),))
    made = judged(leased(), visited(), spec=never)
    assert (made.state, made.reason, made.flags) == (UrlState.DONE, "fetched_once", COUNTED_AS_PAGE)


def test_equal_mark_is_unchanged_although_the_payload_differs() -> None:
    mark = b"m" * MARK_BYTES
    assert judged(leased(mark=mark), visited(digest=OTHER, mark=mark)).finding is Finding.UNCHANGED
    assert judged(leased(mark=mark), visited(digest=OTHER, mark=b"n" * MARK_BYTES)).finding is Finding.CHANGED
    assert judged(leased(), visited(digest=OTHER, mark=b"")).finding is Finding.CHANGED


histories = st.builds(
    PageHistory,
    version=st.integers(1, 2**16 - 1),
    compared=st.integers(0, REMEMBERED),
    changes=st.integers(0, 2**REMEMBERED - 1),
    checked_ms=st.integers(0, 2**32 - 1).map(lambda s: s * 1000),
    rate=st.integers(0, 2**24 - 1),
    misses=st.integers(0, 2),
    mark=st.sampled_from([b"", b"m" * MARK_BYTES]),
)


@given(histories)
def test_stored_history_reads_as_it_was_and_takes_few_bytes(history: PageHistory) -> None:
    stored = history.encoded()
    assert decoded(stored, 0) == history
    assert len(stored) == 12 + len(history.mark)


@given(
    st.lists(
        st.builds(
            change_of, st.sampled_from(ChangeKind), st.integers(0, 2**62).map(HostId),
            st.binary(min_size=16, max_size=16).map(Fingerprint), st.integers(1, 2**16),
        )
    )
)  # fmt: skip
def test_log_of_changes_reads_as_it_was(changes: list[PageChange]) -> None:
    assert list(unpacked(packed(changes))) == changes


def test_history_and_log_entry_of_a_page_take_at_most_32_bytes() -> None:
    history = PageHistory(checked_ms=NOW_MS, mark=b"m" * MARK_BYTES)
    entry = packed([change_of(ChangeKind.NEW, HostId(4096 * 500), Fingerprint(b"f" * 16), 1)])
    assert len(history.encoded()) + 1 + len(entry) <= 32


@pytest.mark.parametrize(("reason", "asked"), [("", True), ("sitemap", True), ("noindex", False)])
def test_page_that_a_directive_hides_is_requested_without_a_condition(reason: str, asked: bool) -> None:
    url = leased()
    assert url.last is not None
    url.last = replace(url.last, reason=reason)
    assert conditional(url) is asked
