"""A hold counts as long as it beats, by the clock of whoever looks: no clock of another machine is asked."""

from shared.domain.frontier.purge_holds import BEAT_S, HOLD_S, ObservedHolds, held_until


def test_hold_lasts_from_first_sight_to_last_beat_plus_lifetime() -> None:
    holds = ObservedHolds()
    assert not holds.standing({}, 100.0)
    assert holds.standing({"a": 1}, 100.0)
    assert holds.standing({"a": 1}, 100.0 + HOLD_S - 0.1)
    assert not holds.standing({"a": 1}, 100.0 + HOLD_S)
    assert holds.standing({"a": 2}, 101.0 + HOLD_S), "it beats again"


def test_a_hold_that_died_hides_none_that_lives() -> None:
    holds = ObservedHolds()
    holds.standing({"dead": 7}, 0.0)
    assert holds.standing({"dead": 7, "alive": 1}, 2 * HOLD_S)
    assert not holds.standing({"dead": 7}, 2 * HOLD_S), "released"


def test_a_hold_that_is_taken_anew_counts_anew() -> None:
    holds = ObservedHolds()
    holds.standing({"a": 1}, 0.0)
    holds.standing({}, 1.0)
    assert holds.standing({"a": 1}, HOLD_S)


def test_a_holder_gives_its_hold_up_before_anybody_else_does() -> None:
    """Whoever looks first sees a beat after the holder began to write it."""
    began = 50.0
    holds = ObservedHolds()
    holds.standing({"a": 1}, began)
    assert held_until(began) < began + HOLD_S
    assert holds.standing({"a": 1}, held_until(began))
    assert held_until(began) - began > 2 * BEAT_S, "a beat may be late"
