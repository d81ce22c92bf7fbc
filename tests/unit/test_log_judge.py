"""The judges of a server's log find what is wrong in logs known to be wrong, and nothing in those known to be right."""

import pytest

from tests.support.web import log_judge
from tests.support.web.exchange_log import Exchange, line_of, parse_lines

SECOND = 1_000_000_000


def exchange(
    begun: float, ended: float, path: str = "/", host: str = "a:1", *, status: int = 200, complete: bool = True
) -> Exchange:
    return Exchange(host, "GET", path, "orb", status, 1, int(begun * SECOND), int(ended * SECOND), complete)


def test_the_gap_runs_from_the_end_of_a_response_to_the_next_start() -> None:
    log = [exchange(0, 1), exchange(1.5, 2), exchange(2.2, 3), exchange(0, 9, host="b:1")]
    assert log_judge.smallest_gap(log, "a:1") == pytest.approx(0.2)


def test_the_order_of_the_log_does_not_matter() -> None:
    log = [exchange(2.2, 3), exchange(0, 1), exchange(1.5, 2)]
    assert log_judge.smallest_gap(log, "a:1") == pytest.approx(0.2)


def test_an_overlap_is_a_negative_gap() -> None:
    assert log_judge.smallest_gap([exchange(0, 5), exchange(4, 6)], "a:1") == pytest.approx(-1)


def test_a_short_exchange_inside_a_long_one_does_not_hide_the_next_overlap() -> None:
    log = [exchange(0, 10), exchange(1, 2), exchange(9, 11)]
    assert log_judge.smallest_gap(log, "a:1") == pytest.approx(-9)
    assert log_judge.smallest_gap(log[:1] + log[2:], "a:1") == pytest.approx(-1)


@pytest.mark.parametrize("log", [[], [exchange(0, 1)], [exchange(0, 1), exchange(2, 3, host="b:1")]])
def test_too_little_traffic_is_no_proof_of_politeness(log: list[Exchange]) -> None:
    with pytest.raises(log_judge.TooLittleTraffic):
        log_judge.smallest_gap(log, "a:1")


def test_most_in_flight_counts_overlaps_and_not_touching_exchanges() -> None:
    assert log_judge.max_in_flight([exchange(0, 1), exchange(1, 2), exchange(2, 3)], "a:1") == 1
    assert log_judge.max_in_flight([exchange(0, 4), exchange(1, 3), exchange(2, 5), exchange(4, 6)], "a:1") == 3
    with pytest.raises(log_judge.TooLittleTraffic):
        log_judge.max_in_flight([], "a:1")


def test_hosts_in_motion_counts_over_all_hosts() -> None:
    log = [exchange(0, 2), exchange(1, 3, host="b:1"), exchange(4, 5, host="c:1")]
    assert log_judge.hosts_in_motion(log) == 2
    assert log_judge.hosts(log) == ["a:1", "b:1", "c:1"]


def test_disallowed_requests_are_found_and_robots_itself_is_no_offence() -> None:
    log = [exchange(0, 1, "/robots.txt"), exchange(2, 3, "/open"), exchange(4, 5, "/private/1")]
    robots = {"a:1": "User-agent: *\nDisallow: /private/\n"}
    assert log_judge.disallowed_requested(log, robots) == ["http://a:1/private/1"]
    assert log_judge.disallowed_requested(log[:2], robots) == []
    assert log_judge.disallowed_requested(log, {}) == []


def test_a_host_asked_before_its_robots_was_answered_is_found() -> None:
    polite = [exchange(0, 1, "/robots.txt"), exchange(2, 3, "/")]
    early = [exchange(0, 3, "/robots.txt", "b:1"), exchange(2, 4, "/", "b:1")]
    never = [exchange(0, 1, "/", "c:1")]
    assert log_judge.asked_before_robots(polite + early + never) == ["b:1", "c:1"]


def test_repeats_count_only_complete_pages() -> None:
    log = [
        exchange(0, 1, "/once"),
        exchange(2, 3, "/twice"),
        exchange(4, 5, "/twice"),
        exchange(6, 7, "/cut", complete=False),
        exchange(8, 9, "/cut"),
        exchange(10, 11, "/flaky", status=500),
        exchange(12, 13, "/flaky"),
        exchange(14, 15, "/robots.txt"),
        exchange(16, 17, "/robots.txt"),
    ]
    assert log_judge.fetched_more_than_once(log) == {"http://a:1/twice": 2}
    assert log_judge.requested(log)["http://a:1/cut"] == 2
    assert log_judge.user_agents(log) == {"orb": 9}


def test_the_log_survives_its_own_line_format() -> None:
    log = [exchange(0, 1, '/a"b\\\n'), exchange(2, 3, complete=False)]
    assert parse_lines(line_of(one) for one in log) == log
