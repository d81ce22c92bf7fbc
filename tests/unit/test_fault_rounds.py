"""The draws of a fault run are repeatable and complete, and a kill that struck nothing is noticed."""

from collections import Counter

import pytest

from tests.support.processes.kill_rounds import SEED, VICTIMS, Kill, drawn_seed, recoveries_s, rounds
from tests.support.web.exchange_log import Exchange


def begun(at_ns: int) -> Exchange:
    return Exchange("h", "GET", "/", "orb", 200, 1, at_ns, at_ns + 1)


def test_a_seed_gives_the_same_rounds_again_and_another_seed_others() -> None:
    assert rounds(7, 2) == rounds(7, 2)
    assert rounds(7, 2) != rounds(8, 2)


def test_every_deck_strikes_every_victim_and_some_rounds_follow_at_once() -> None:
    plan = rounds(7, 3)
    assert Counter(victim for victim, _ in plan) == {victim: 3 * times for victim, times in VICTIMS.items()}
    assert any(share == 0 for _, share in plan)
    assert all(0 <= share <= 2 for _, share in plan)


def test_the_environment_can_set_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEED, "42")
    assert drawn_seed() == 42
    monkeypatch.delenv(SEED)
    assert len({drawn_seed() for _ in range(20)}) > 1


def test_recovery_is_the_time_to_the_next_request_of_any_host() -> None:
    kills = [Kill("worker", 1_000_000_000, 1), Kill("worker", 4_000_000_000, 2)]
    log = [begun(9_000_000_000), begun(500_000_000), begun(1_500_000_000)]
    assert recoveries_s(kills, log) == {"worker": [0.5, 5.0]}


def test_a_kill_after_the_last_request_fails_the_run() -> None:
    with pytest.raises(AssertionError, match="the crawl was over"):
        recoveries_s([Kill("master", 2_000, 1)], [begun(1_000)])
