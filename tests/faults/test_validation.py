"""The judge finds each broken promise in a history known to be bad, nothing in a good one, and judges no empty one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from shared.domain.frontier.states import UrlState
from tests.support.faults.history import (
    CrawlSeen,
    DeletedSeen,
    FenceSeen,
    History,
    LeaseSeen,
    LeaseTurn,
    PageSeen,
    Round,
    SharedPeriod,
    SharingCrawl,
    TurnSeen,
    WriteSeen,
)
from tests.support.faults.plan import Fault, FaultKind, FaultTarget
from tests.support.faults.report import pause_s, report
from tests.support.faults.validation import LEAST_EXCHANGES, SENDING_NS, Promise, impolite, unfair, validate
from tests.support.web.exchange_log import Exchange
from tests.support.web.log_judge import TooLittleTraffic

SECOND = 1_000_000_000
URLS = tuple(f"http://a:1/{number}" for number in range(4))
SEED = URLS[-1]
FAULT = Fault(FaultKind.KILL, FaultTarget.LEADER, None, 0.0, 1.0, 0)


def exchange(begun_s: float, host: str = "a:1", path: str = "/0", agent: str = "orb") -> Exchange:
    return Exchange(host, "GET", path, agent, 200, 1, round(begun_s * SECOND), round((begun_s + 0.01) * SECOND))


def counters(**other: int) -> Mapping[str, int]:
    names = ("discovered", "queued", "leased", "done", "failed", "excluded", "pages", "accepted", "new", "known",
             "refused")  # fmt: skip
    whole = {"discovered": 4, "done": 4, "pages": 4, "accepted": 9, "new": 4, "known": 5}
    return {**dict.fromkeys(names, 0), **whole, **other}


CRAWL = CrawlSeen(
    name="c1",
    state="finished",
    reason="complete",
    expected=frozenset(URLS),
    seeds=frozenset({SEED}),
    offered=frozenset({SEED}),
    urls=dict.fromkeys(URLS, UrlState.DONE),
    reasons={},
    pages=tuple(PageSeen(url, 200, "s", 100 * at, 90) for at, url in enumerate(URLS)),
    counters=counters(),
    leases=0,
    agent="orb (c1)",
    turns=(TurnSeen(SEED, LeaseTurn.ACCEPTED, 2 * SECOND),),
)
GOOD = History(
    seed=1,
    delay_s=0.1,
    rounds=(Round(1, FAULT, "m1", 1 * SECOND, 2 * SECOND, 3 * SECOND),),
    crawls=(CRAWL,),
    deleted=(DeletedSeen("d1", "deleted", 0, 0),),
    exchanges=tuple(exchange(0.2 * number) for number in range(LEAST_EXCHANGES)),
    fences=(FenceSeen(10, 0, 5, "m1"), FenceSeen(11, 1, 5, "m1"), FenceSeen(12, 0, 6, "m2")),
    writes=(WriteSeen(10, "urls", "m1"), WriteSeen(12, "leases", "m2")),
    leases=(LeaseSeen(0, 5, 5),),
    records={("s", 100 * at): url for at, url in enumerate(URLS)},
    left=(),
    statuses={200: 10, 409: 1},
    went_on_ns=(),
    unreadable=(b"\x00", b"\x00", b"noise"),
    buried=(b"\x00", b"noise", b"\x00"),
    noise=(b"shard",),
    buried_shards=(b"shard", b"shard"),
    repeated=7,
    seconds=60.0,
)


def crawl(**other: Any) -> History:
    return replace(GOOD, crawls=(replace(CRAWL, **other),))


def broken(history: History) -> set[Promise]:
    return {violation.promise for violation in validate(history)}


def test_a_good_history_breaks_no_promise() -> None:
    assert validate(GOOD) == ()


@pytest.mark.parametrize(
    ("history", "promise"),
    [
        pytest.param(crawl(state="running", reason=None), Promise.LOST, id="a crawl that does not finish"),
        pytest.param(crawl(reason="max_pages"), Promise.LOST, id="a crawl that ends too soon"),
        pytest.param(crawl(pages=CRAWL.pages[1:], counters=counters(pages=3)), Promise.LOST, id="a page is not stored"),
        pytest.param(
            crawl(urls={**CRAWL.urls, "http://a:1/x": UrlState.WAITING}), Promise.LOST, id="a URL that never ends"
        ),
        pytest.param(
            crawl(
                expected=frozenset(URLS[:3]),
                urls=dict.fromkeys(URLS[:3], UrlState.DONE),
                pages=CRAWL.pages[:3],
                counters=counters(discovered=3, done=3, pages=3, new=3, known=6),
            ),
            Promise.LOST,
            id="an acknowledged seed that nobody knows",
        ),
        pytest.param(crawl(expected=frozenset(URLS[1:])), Promise.LOST, id="a page that the site does not have"),
        pytest.param(crawl(leases=1), Promise.LOST, id="a shard that is out for good"),
        pytest.param(
            replace(GOOD, records={place: url for place, url in GOOD.records.items() if url != SEED}),
            Promise.LOST,
            id="a record that cannot be read",
        ),
        pytest.param(replace(GOOD, left=("reports.0.outcome",)), Promise.LOST, id="a report that nobody applied"),
        pytest.param(replace(GOOD, records={**GOOD.records, ("s", 0): SEED}), Promise.LOST, id="another page's record"),
        pytest.param(
            crawl(pages=(*CRAWL.pages, CRAWL.pages[0]), counters=counters(pages=5)), Promise.TWICE, id="a page twice"
        ),
        pytest.param(crawl(counters=counters(pages=5)), Promise.TWICE, id="a page counted twice"),
        pytest.param(crawl(counters=counters(discovered=5)), Promise.IDENTITY, id="URLs do not add up"),
        pytest.param(crawl(counters=counters(accepted=10)), Promise.IDENTITY, id="links do not add up"),
        pytest.param(
            crawl(counters=counters(done=3, failed=1)), Promise.IDENTITY, id="counters that differ from what is counted"
        ),
        pytest.param(
            replace(GOOD, exchanges=(*GOOD.exchanges, exchange(0.25))), Promise.IMPOLITE, id="a request too soon"
        ),
        pytest.param(
            replace(GOOD, exchanges=(*GOOD.exchanges, exchange(0.205))), Promise.IMPOLITE, id="two requests at once"
        ),
        pytest.param(
            replace(GOOD, fences=(*GOOD.fences, FenceSeen(13, 0, 5, "m1"))),
            Promise.TWO_OWNERS,
            id="the deposed one writes on",
        ),
        pytest.param(
            replace(GOOD, fences=(*GOOD.fences, FenceSeen(13, 0, 6, "m1"))),
            Promise.TWO_OWNERS,
            id="two members under one term",
        ),
        pytest.param(
            replace(GOOD, writes=(*GOOD.writes, WriteSeen(99, "urls", "m1"))),
            Promise.STALE_WRITE,
            id="a transaction without a fence",
        ),
        pytest.param(replace(GOOD, leases=(LeaseSeen(0, 5, 6),)), Promise.STALE_WRITE, id="a deposed owner's lease"),
        pytest.param(
            replace(GOOD, deleted=(DeletedSeen("d1", "running", 0, 0),)), Promise.UNDEAD, id="a deletion that is undone"
        ),
        pytest.param(
            replace(GOOD, deleted=(DeletedSeen("d1", "deleted", 3, 0),)), Promise.UNDEAD, id="rows of a deleted crawl"
        ),
        pytest.param(
            replace(GOOD, buried=(b"\x00", b"noise")), Promise.BURIED, id="a message that nobody can read is dropped"
        ),
        pytest.param(
            replace(GOOD, buried=(*GOOD.buried, b"noise")), Promise.BURIED, id="a message that is buried twice"
        ),
        pytest.param(replace(GOOD, buried=(*GOOD.buried, b"a")), Promise.BURIED, id="a message of ours is buried"),
        pytest.param(replace(GOOD, buried_shards=()), Promise.BURIED, id="a shard that nobody can read is dropped"),
        pytest.param(replace(GOOD, buried_shards=(b"shard", b"ours")), Promise.BURIED, id="a shard of ours is buried"),
        pytest.param(replace(GOOD, statuses={200: 10, 500: 1}), Promise.ANSWER, id="a fault of the server's own"),
    ],
)
def test_a_broken_promise_is_found_and_no_other_is(history: History, promise: Promise) -> None:
    assert broken(history) == {promise}


def test_letter_of_a_store_that_was_put_back_may_be_buried_again() -> None:
    put_back = (replace(GOOD.rounds[0], fault=replace(FAULT, kind=FaultKind.PUT_BACK, who=FaultTarget.BROKER)),)
    assert validate(replace(GOOD, buried=(*GOOD.buried, b"noise"), rounds=put_back)) == ()
    for wrong in (GOOD.buried[1:], (*GOOD.buried, b"ours")):
        assert broken(replace(GOOD, buried=wrong, rounds=put_back)) == {Promise.BURIED}


def test_a_seed_whose_acknowledgement_was_lost_may_be_stored_and_need_not_be() -> None:
    assert validate(crawl(expected=frozenset(URLS[:3]), seeds=frozenset({URLS[0]}))) == ()
    unheard = frozenset({SEED, "http://a:1/never-arrived"})
    assert validate(crawl(expected=frozenset(URLS[:3]), seeds=frozenset({URLS[0]}), offered=unheard)) == ()


def requested(times: int, *turns: LeaseTurn, rounds: tuple[Round, ...] = GOOD.rounds, at_s: float = 3.0) -> History:
    """A run in which the seed was requested so often."""
    own = tuple(exchange(10.0 + at, path="/3", agent=CRAWL.agent) for at in range(times))
    seen = tuple(TurnSeen(SEED, turn, round(at_s * SECOND)) for turn in turns)
    return replace(crawl(turns=seen), exchanges=(*GOOD.exchanges, *own), rounds=rounds)


@pytest.mark.parametrize("other", [LeaseTurn.ENDED, LeaseTurn.REGRANTED])
def test_request_that_an_expired_grant_explains_is_allowed(other: LeaseTurn) -> None:
    assert validate(requested(2, LeaseTurn.ACCEPTED, other)) == ()
    assert validate(requested(2, LeaseTurn.ACCEPTED, LeaseTurn.ACCEPTED)) == ()
    assert broken(requested(3, LeaseTurn.ACCEPTED, other)) == {Promise.REPEATED}


def test_request_beyond_the_accepted_outcomes_is_found() -> None:
    [violation] = validate(requested(2, LeaseTurn.ACCEPTED, LeaseTurn.HANDED_BACK))
    counted = "accepted 1, ended 0, regranted 0, handed_back 0"
    assert violation.evidence == f"c1: {SEED} was requested 2 times ({counted})"


def test_url_handed_back_by_an_ended_worker_may_be_requested_again() -> None:
    ended = replace(GOOD.rounds[0], fault=replace(FAULT, kind=FaultKind.RESTART, who=FaultTarget.WORKER))
    twice = (LeaseTurn.ACCEPTED, LeaseTurn.HANDED_BACK)
    assert validate(requested(2, *twice, rounds=(ended,))) == ()
    assert broken(requested(2, *twice, rounds=(ended,), at_s=0.5)) == {Promise.REPEATED}
    assert broken(requested(2, *twice, rounds=(ended,), at_s=60.0)) == {Promise.REPEATED}


SHARED = SharedPeriod("the hosts", 100 * SECOND, 160 * SECOND, (SharingCrawl("a", 1, 0.1), SharingCrawl("b", 2, 0.9)))


def sharing(a: int, b: int) -> History:
    """A run in which two crawls made so many requests in the span, and others before it."""
    at = [(count, name, first) for first in (0.0, 100.0) for count, name in ((a, "a"), (b, "b"))]
    seen = tuple(exchange(first + 59 * n / count, "h:1", agent=name) for count, name, first in at for n in range(count))
    return replace(GOOD, exchanges=(*GOOD.exchanges, *seen), delay_s=0.0, shared=(SHARED,))


def test_crawls_that_share_time_by_weight_are_fair() -> None:
    assert unfair_of(sharing(180, 44)) == []  # 20 s and 40 s
    assert unfair_of(sharing(60, 59)) == []  # 6 s and 54 s: two thirds and a quarter, and a tenth of it


def test_crawl_that_uses_the_time_of_another_is_unfair() -> None:
    starved = sharing(500, 1)
    assert unfair_of(starved) == [
        "a used 98% of the hosts, by its weight 33%",
        "b used 2% of the hosts, by its weight 67%",
    ]
    assert Promise.UNFAIR in broken(starved)
    assert len(unfair_of(sharing(1, 66))) == 2
    with pytest.raises(TooLittleTraffic):
        unfair_of(sharing(10, 10))


def unfair_of(history: History) -> list[str]:
    return list(unfair(history, SHARED))


def test_why_a_page_was_given_up_is_part_of_the_evidence() -> None:
    given_up = crawl(
        pages=CRAWL.pages[1:],
        urls={**CRAWL.urls, URLS[0]: UrlState.FAILED},
        reasons={URLS[0]: "poison"},
        counters=counters(done=3, failed=1, pages=3),
    )
    assert [violation.evidence for violation in validate(given_up)] == [f"c1: no page of {URLS[0]} (FAILED, poison)"]


def test_partition_owned_under_growing_terms_is_no_offence() -> None:
    fences = (FenceSeen(1, 0, 5, "m1"), FenceSeen(2, 0, 6, "m2"), FenceSeen(3, 0, 6, "m2"), FenceSeen(4, 0, 7, "m1"))
    assert broken(replace(GOOD, fences=fences, writes=())) == set()


def test_only_request_just_after_stopped_worker_resumed_is_excused() -> None:
    early = exchange(0.25)
    excused = replace(GOOD, exchanges=(*GOOD.exchanges, early), went_on_ns=(early.begun_ns - SENDING_NS // 2,))
    assert validate(excused) == ()
    assert len(list(impolite(excused, after_stop=True))) == 1
    for went_on_ns in (early.begun_ns - 2 * SENDING_NS, early.begun_ns + 1):
        assert broken(replace(excused, went_on_ns=(went_on_ns,))) == {Promise.IMPOLITE}


def test_another_hosts_requests_are_no_offence() -> None:
    others = tuple(exchange(0.2 * number + 0.05, "b:1") for number in range(5))
    assert validate(replace(GOOD, exchanges=(*GOOD.exchanges, *others))) == ()


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(replace(GOOD, rounds=()), id="no fault"),
        pytest.param(replace(GOOD, rounds=(replace(GOOD.rounds[0], skipped="no disk"),)), id="no fault was done"),
        pytest.param(replace(GOOD, exchanges=GOOD.exchanges[1:]), id="few requests"),
        pytest.param(replace(GOOD, rounds=GOOD.rounds * 2), id="few requests per round"),
        pytest.param(replace(GOOD, rounds=(replace(GOOD.rounds[0], begun_ns=99 * SECOND),)), id="a fault afterwards"),
        pytest.param(replace(GOOD, fences=()), id="no owner"),
        pytest.param(replace(GOOD, leases=()), id="no lease"),
        pytest.param(replace(GOOD, crawls=()), id="no crawl"),
        pytest.param(crawl(seeds=frozenset()), id="no seed"),
        pytest.param(replace(GOOD, rescoped=3), id="nothing found again for a wider scope"),
    ],
)
def test_too_little_is_not_judged(history: History) -> None:
    with pytest.raises(TooLittleTraffic):
        validate(history)


def test_a_pause_is_the_longest_time_between_requests_around_a_fault() -> None:
    done = GOOD.rounds[0]  # from 1 s to 2 s
    assert pause_s([at * SECOND // 10 for at in (3, 8, 12, 15, 24, 60)], done) == pytest.approx(0.9)
    assert pause_s([at * SECOND // 10 for at in (3, 8, 26, 60)], done) == pytest.approx(1.8)


def test_a_report_has_the_figures_of_all_its_runs() -> None:
    bad = replace(GOOD, exchanges=(*GOOD.exchanges, exchange(0.25)))
    text = report([GOOD, bad], validate(bad))
    assert "| kill leader | 2 | 1.0 | 1.0 | 0.2 |" in text
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
    said = {name.strip(): value.strip() for _, name, value, _ in rows}
    assert (said["rounds"], said["impolite"], said["lost"]) == ("2", "1", "0")
