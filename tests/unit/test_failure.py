import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.crawl.spec import Retry
from shared.domain.frontier.failure import (
    THROTTLED_TIMES,
    Category,
    HostEffect,
    decide,
    parse_retry_after,
    policy_for,
    retry_wait_s,
)
from shared.domain.frontier.states import UrlState
from shared.domain.web.fetch import FailureKind

ENDS = st.sampled_from(list(FailureKind)) | st.integers(0, 1000)
UNIT = st.floats(0, 1)
RETRIES = st.builds(
    lambda attempts, base, more: Retry(attempts=attempts, base_s=base, max_s=base + more),
    st.integers(1, 20),
    st.floats(0, 100),
    st.floats(0, 1000),
)


def test_every_failure_kind_has_a_row() -> None:
    for kind in FailureKind:
        assert policy_for(kind).failed


@pytest.mark.parametrize(
    ("status", "category", "first", "last"),
    [
        (200, Category.PAGE, UrlState.DONE, UrlState.DONE),
        (206, Category.PAGE, UrlState.DONE, UrlState.DONE),
        (301, Category.REDIRECT, UrlState.DONE, UrlState.DONE),
        (304, Category.NOT_MODIFIED, UrlState.FAILED, UrlState.FAILED),
        (400, Category.CLIENT_ERROR, UrlState.FAILED, UrlState.FAILED),
        (403, Category.CLIENT_ERROR, UrlState.FAILED, UrlState.FAILED),
        (404, Category.GONE, UrlState.FAILED, UrlState.FAILED),
        (408, Category.CLIENT_ERROR, UrlState.WAITING, UrlState.FAILED),
        (410, Category.GONE, UrlState.FAILED, UrlState.FAILED),
        (425, Category.CLIENT_ERROR, UrlState.WAITING, UrlState.FAILED),
        (429, Category.THROTTLED, UrlState.WAITING, UrlState.WAITING),
        (500, Category.SERVER_ERROR, UrlState.WAITING, UrlState.FAILED),
        (501, Category.SERVER_ERROR, UrlState.FAILED, UrlState.FAILED),
        (503, Category.THROTTLED, UrlState.WAITING, UrlState.FAILED),
        (100, Category.BROKEN, UrlState.FAILED, UrlState.FAILED),
        (999, Category.BROKEN, UrlState.FAILED, UrlState.FAILED),
    ],
)
def test_what_a_status_ends_in(status: int, category: Category, first: UrlState, last: UrlState) -> None:
    retry = Retry(attempts=3)
    decisions = [decide(status, attempt=attempt, retry=retry, rng01=0.5) for attempt in (1, 3)]
    assert [decision.state for decision in decisions] == [first, last]
    assert {decision.category for decision in decisions} == {category}


@pytest.mark.parametrize(("status", "effect"), [(429, HostEffect.THROTTLED), (503, HostEffect.BUSY)])
def test_a_refusal_uses_an_attempt_unless_the_host_is_to_blame(status: int, effect: HostEffect) -> None:
    decision = decide(status, attempt=1, retry=Retry(), rng01=0.5, retry_after_s=7200)
    assert (decision.host, decision.wait_s, decision.attempt_used) == (effect, 7200, True)
    decision = decide(status, attempt=99, retry=Retry(), rng01=0.5, host_refuses=True)
    assert (decision.state, decision.attempt_used) == (UrlState.WAITING, False)


@pytest.mark.parametrize("kind", [FailureKind.DNS, FailureKind.CONNECT, FailureKind.CONNECT_TIMEOUT, FailureKind.TLS])
def test_an_unreachable_host_uses_up_no_attempt_of_a_url(kind: FailureKind) -> None:
    decision = decide(kind, attempt=99, retry=Retry(), rng01=0.5)
    assert (decision.state, decision.attempt_used) == (UrlState.WAITING, False)
    assert decision.host is HostEffect.UNREACHABLE


@given(ENDS, RETRIES, UNIT, st.none() | st.floats(0, 1e6))
def test_every_url_that_uses_attempts_ends(
    end: FailureKind | int, retry: Retry, rng01: float, retry_after_s: float | None
) -> None:
    attempt = retry.attempts * THROTTLED_TIMES
    decision = decide(end, attempt=attempt, retry=retry, rng01=rng01, retry_after_s=retry_after_s)
    assert decision.state is not UrlState.WAITING or decision.host is HostEffect.UNREACHABLE


@given(RETRIES, st.integers(1, 100), UNIT)
def test_waits_grow_and_are_capped(retry: Retry, attempt: int, rng01: float) -> None:
    wait = retry_wait_s(retry, attempt, rng01)
    assert 0 <= wait <= retry.max_s
    assert wait <= retry_wait_s(retry, attempt + 1, rng01)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 60.0),
        ("Wednesday, 21-Oct-15 07:28:00 GMT", 60.0),
        ("Wed Oct 21 07:28:00 2015", 60.0),
        ("Wed, 21 Oct 2015 07:20:00 GMT", 0.0),
        ("-1", None),
        ("1.5", None),
        ("\u0661", None),
        ("9" * 400, None),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float | None) -> None:
    now = 1445412420.0  # a minute before the date
    assert parse_retry_after(value, now) == seconds


@given(st.text())
def test_any_retry_after_is_read_or_refused(value: str) -> None:
    seconds = parse_retry_after(value, 0.0)
    assert seconds is None or seconds >= 0
