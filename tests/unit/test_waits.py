"""Why hosts wait, for how long, and what a crawl says of it first."""

from typing import Any

import pytest
from msgspec.structs import replace

from api.schemas.frontier import waits_body
from cli.terminal.display import picture
from cli.terminal.display_rates import ProgressRates
from cli.terminal.progress import plain_line
from cli.terminal.wait_messages import blocking, sentences
from shared.domain.crawl.spec import Budget, CrawlSpec
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.explain.waits import HostState, WaitReason, given_up, rested, wait_of, waits_of
from shared.domain.frontier.politeness import FOREVER_MS, HostHealth
from shared.wire.messages import HostWaiting, Progress

NOW_MS = 1_000_000
HOST = "a.test"
REFUSED = HostHealth(recent=0b11, blocked_until_ms=NOW_MS + 60_000)
SILENT = HostHealth(
    unreachable=2, last_failure_ms=NOW_MS, silent_since_ms=NOW_MS - 100_000, blocked_until_ms=NOW_MS + 20_000
)


def spec(**sections: Any) -> CrawlSpec:
    return parse_spec({"seeds": ["http://a.test/"], **sections})


def state(health: HostHealth | None = None, **known: Any) -> HostState:
    return HostState(HOST, health or HostHealth(), **{"urls": 11, "due_s": 0.0, "rest_s": 0.0, **known})


@pytest.mark.parametrize(
    ("known", "sections", "reason", "wait_s", "cause", "remedy"),
    [
        (
            state(REFUSED, last_failure="http_429"),
            {},
            WaitReason.REFUSES,
            60,
            "1:00 for a.test: it answered 429 (too many requests)",
            "to ask at once: CMD",
        ),
        (
            state(
                HostHealth(asked_ms=90_000, last_failure_ms=NOW_MS - 30_000, blocked_until_ms=NOW_MS + 60_000),
                last_failure="http_503",
            ),
            {},
            WaitReason.REFUSES,
            60,
            "1:00 for a.test: it answered 503 (unavailable) and asked for this pause",
            "to ask at once: CMD",
        ),
        (
            state(SILENT, last_failure="connect refused", gave_pages=True),
            {"retry": {"outage_s": 600}},
            WaitReason.SILENT,
            20,
            "0:20 for a.test: it does not answer (connect), and is tried again then",
            "it is given up after 8:20 more (--outage); to ask at once: CMD",
        ),
        (
            state(SILENT, last_failure="dns"),
            {},
            WaitReason.SILENT,
            20,
            "0:20 for a.test: it does not answer (dns), and is tried again then",
            "it is given up after a few tries; to ask at once: CMD",
        ),
        (
            state(SILENT, last_failure="robots_http_500 status 500"),
            {},
            WaitReason.SILENT,
            20,
            "0:20 for a.test: it answered 500 for robots.txt, and is tried again then",
            "it is given up after a few tries; to ask at once: CMD",
        ),
        (
            state(rest_s=700.0, crawl_delay_s=900.0),
            {},
            WaitReason.CRAWL_DELAY,
            700,
            "11:40 for a.test: its robots.txt asks for 900 s between requests",
            "ask the site's owner for a shorter one; --no-robots ignores it",
        ),
        (
            state(HostHealth(slowed_ms=16_000), rest_s=12.0),
            {},
            WaitReason.SLOWED,
            12,
            "0:12 for a.test: it answered 429, so it is asked every 16 s",
            "the delay shrinks with each answer, and politeness.max_delay_s bounds it",
        ),
        (
            state(rest_s=30.0),
            {"politeness": {"delay_s": 60}},
            WaitReason.DELAY,
            30,
            "0:30 for a.test: it is asked every 60 s",
            "--delay and politeness.adaptive set this",
        ),
        (
            state(due_s=86_400.0),
            {},
            WaitReason.RETRY,
            86_400,
            "1 d 00:00 for a.test: 11 URLs failed and are tried again then",
            "to ask at once: CMD",
        ),
        (
            state(REFUSED, last_failure="http_429", policy_until_ms=NOW_MS + 90_000),
            {},
            WaitReason.POLICY,
            90,
            "1:30 for a.test: its policy blocks it",
            "change or delete its host policy",
        ),
        (
            state(REFUSED, last_failure="http_429", policy_until_ms=NOW_MS + 30_000),
            {},
            WaitReason.REFUSES,
            60,
            "1:00 for a.test: it answered 429 (too many requests)",
            "to ask at once: CMD",
        ),
    ],
)
def test_a_host_that_waits_has_a_reason_and_a_remedy(
    known: HostState, sections: dict[str, Any], reason: WaitReason, wait_s: float, cause: str, remedy: str
) -> None:
    waits = waits_of([known], spec(**sections), NOW_MS)
    assert [(wait.reason, wait.wait_s) for wait in waits.hosts] == [(reason, wait_s)]
    assert sentences(waits, "CMD") == [cause, remedy]


def test_a_pause_of_our_own_after_one_that_was_asked_for_is_not_called_asked() -> None:
    health = replace(REFUSED, asked_ms=30_000, last_failure_ms=NOW_MS)
    waits = wait_of(state(health, last_failure="http_429"), spec(), NOW_MS)
    assert waits is not None
    assert not waits.asked


def test_a_host_that_is_asked_soon_does_not_wait() -> None:
    assert wait_of(state(rest_s=1.0), spec(), NOW_MS) is None
    assert wait_of(state(rest_s=60.0, busy=True), spec(), NOW_MS) is None, "requests of it are under way"
    assert wait_of(state(HostHealth(slowed_ms=16_000)), spec(), NOW_MS) is None


def test_a_crawl_stands_only_if_every_host_waits() -> None:
    blocked = state(REFUSED)
    assert waits_of([blocked, blocked], spec(), NOW_MS).standing
    partly = waits_of([blocked, state()], spec(), NOW_MS)
    assert (partly.number, partly.standing) == (1, False)
    assert sentences(partly, "CMD") == []
    assert not waits_of([], spec(), NOW_MS).standing


def test_the_first_host_to_go_on_is_named_and_the_others_are_counted() -> None:
    later = state(HostHealth(blocked_until_ms=NOW_MS + 90_000))
    waits = waits_of([later] * 7 + [state(REFUSED)], spec(), NOW_MS)
    assert (waits.hosts[0].wait_s, len(waits.hosts), waits.number) == (60, 5, 8)
    assert sentences(waits, "CMD")[0].endswith("it answered 429 or 503; 7 other hosts wait, too")


def test_the_time_left_has_the_wait_and_the_delays_in_it() -> None:
    waits = waits_of([state(REFUSED, latency_s=0.5), state()], spec(politeness={"delay_s": 2}), NOW_MS)
    assert waits.left_s == pytest.approx(60 + 0.5 + 10 * 2.5)
    assert waits_of([], spec(), NOW_MS).left_s == -1
    assert waits_of([state(retry_s=86_400.0)], spec(), NOW_MS).left_s == pytest.approx(86_400.2), "one is tried later"
    assert waits_of([state(SILENT), state()], spec(), NOW_MS).left_s == -1, "when it answers again is not known"


def test_the_rest_of_a_host_counts_from_its_last_visit() -> None:
    stored = state(rest_s=-100.0, crawl_delay_s=900.0)
    assert rested(stored, spec()).rest_s == 800


def told(*, standing: bool = True, left_ms: int = 300_000, **fields: Any) -> Progress:
    return Progress(
        crawl=1,
        name="a",
        revision=1,
        state="running",
        counters={"pages": 8, "queued": 193},
        hosts_known=1,
        waiting=[HostWaiting(HOST, "refuses", 60_000, 193, cause="http_429")],
        hosts_waiting=1,
        standing=standing,
        hosts_left_ms=left_ms,
        **fields,
    )


def test_a_progress_line_begins_with_the_reason_and_the_remedy() -> None:
    line = plain_line(told(), ProgressRates(0.0, Budget()), 10.0, "orb crawl --out a.crawl --unblock")
    assert line.startswith(
        "0:10 waits 1:00 for a.test: it answered 429 (too many requests)"
        " | to ask at once: Ctrl-C, then orb crawl --out a.crawl --unblock | 8 pages, "
    )
    assert line.endswith("about 5:00 left")


def test_a_host_that_waits_beside_others_is_counted_behind() -> None:
    line = plain_line(told(standing=False), ProgressRates(0.0, Budget()), 10.0)
    assert line.startswith("0:10 running: 8 pages")
    assert "1 host waits" in line


def test_what_stops_all_work_comes_before_any_host() -> None:
    full = "nothing is sent out: memory"
    assert blocking(told(alarms=["another", full]), "CMD") == [full]


def test_a_reason_of_a_later_version_is_still_a_wait() -> None:
    waits = told()
    odd = Progress(
        **{field: getattr(waits, field) for field in waits.__struct_fields__ if field != "waiting"},
        waiting=[HostWaiting(HOST, "moon_phase", 60_000, 1, delay_ms=5_000)],
    )
    assert blocking(odd, "CMD")[0] == "waits 1:00 for a.test: it is asked every 5 s"


@pytest.mark.parametrize("width", [30, 79])
def test_the_display_shows_the_whole_reason_below_the_title(width: int) -> None:
    from io import StringIO

    from rich.console import Console

    console = Console(file=StringIO(), width=200, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(
            picture("a.crawl", told(), ProgressRates(0.0, Budget()), 10.0, width, unblock="orb crawl --unblock")
        )
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert "it answered 429 (too many requests) to ask at once: Ctrl-C, then orb crawl --unblock pages" in text
    assert lines[1].startswith("  waits 1:00 for a.test")


def test_an_estimate_that_cannot_be_made_is_left_out() -> None:
    """A rate that fades while nothing is fetched said that millions of days were left."""
    pace = ProgressRates(0.0, Budget())
    for second in range(200):
        pace.seen(told(left_ms=-1), float(second))
    assert pace.left_s(told(left_ms=-1)) is None
    assert pace.left_s(told(left_ms=-1, standing=False)) is None
    assert pace.left_s(told()) == 300


def test_a_page_budget_ends_a_wait_on_one_host_earlier() -> None:
    pace = ProgressRates(0.0, Budget(max_pages=8 + 19))
    assert pace.left_s(told()) == pytest.approx(60 + 240 * 19 / 193)


def test_hosts_given_up_are_named_with_the_command_that_goes_on() -> None:
    assert given_up({}, 0, "CMD") == ""
    assert given_up({HOST: "connect_timeout after 5 s"}, 941, "CMD") == (
        "1 host was given up with 941 URLs after it could not be reached: a.test (connect timeout);"
        " to go on once this is over: CMD"
    )
    several = given_up({f"{letter}.test": "dns" for letter in "abcde"}, 1, "CMD")
    assert several.startswith("5 hosts were given up with 1 URL after they could not be reached: a.test (dns), ")
    assert "c.test (dns) and 2 more; " in several


@pytest.mark.parametrize(
    ("until_ms", "said"),
    [
        (NOW_MS + 90_000, "until 1970-01-01T00:18:10Z for a.test: its policy blocks it"),
        (FOREVER_MS, "without an end for a.test: its policy blocks it"),
    ],
)
def test_block_without_an_end_is_not_told_as_one_until_the_year_9999(until_ms: int, said: str) -> None:
    waits = waits_of([state(policy_until_ms=until_ms)], spec(), NOW_MS)
    [shown] = waits_body(waits, NOW_MS, more=False, in_flight=False).hosts
    assert (shown.reason, shown.text) == ("policy", said)
