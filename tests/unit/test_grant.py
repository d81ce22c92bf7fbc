"""A worker's grant ends before the owner's, whenever answers arrive, and never becomes shorter."""

from hypothesis import given
from hypothesis import strategies as st

from workers.grant import MARGIN_S, Grant

SECONDS = st.floats(0.0, 1e6, allow_nan=False)
SPANS = st.floats(0.1, 3600.0, allow_nan=False)


def grant(*, sent: float = 100.0, arrived: float = 100.5, expires_s: float = 30.0, rest_s: float = 0.0) -> Grant:
    return Grant(1, (0, 1), sent=sent, arrived=arrived, expires_s=expires_s, rest_s=rest_s)


def test_the_rest_counts_from_the_arrival_and_the_end_from_the_question() -> None:
    given_ = grant(rest_s=2.0)
    assert given_.not_before == 102.5
    assert given_.may_send(130.0 - MARGIN_S - 0.01)
    assert not given_.may_send(130.0 - MARGIN_S)


def test_five_percent_of_a_long_grant_are_kept_free() -> None:
    given_ = grant(sent=0.0, expires_s=600.0)
    assert given_.may_send(569.9)
    assert not given_.may_send(570.0)


def test_an_extension_that_is_answered_late_never_shortens() -> None:
    given_ = grant(sent=100.0, expires_s=30.0)
    given_.extend(95.0, 30.0)
    assert given_.may_send(128.0)
    given_.extend(110.0, 30.0)
    assert given_.may_send(138.0)
    assert given_.renew_at == 120.0


@given(sent=SECONDS, way=SPANS, expires_s=SPANS, extensions=st.lists(st.tuples(SPANS, SPANS), max_size=5))
def test_nothing_is_sent_or_left_in_flight_after_what_the_owner_counted(
    sent: float, way: float, expires_s: float, extensions: list[tuple[float, float]]
) -> None:
    """The owner counts from its answer, which is never before the question."""
    given_ = grant(sent=sent, arrived=sent + way, expires_s=expires_s)
    owners = sent + expires_s
    for later, more_s in extensions:
        asked = sent + later
        given_.extend(asked, more_s)
        owners = max(owners, asked + more_s)
    assert not given_.may_send(owners)
    assert given_.cut_at < owners
    assert not given_.may_send(given_.cut_at), "what may be sent is not cut at once"
    assert given_.renew_at < given_.cut_at


def test_a_question_answered_after_its_time_permits_nothing() -> None:
    assert not grant(sent=100.0, arrived=131.0, expires_s=30.0).may_send(131.0)
