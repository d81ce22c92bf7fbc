"""Every rule that applies to a URL says so, in order, and the first that does not allow it is why it is not fetched."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from shared.domain.crawl.spec import CrawlSpec, Scope, Seed
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.crawl.state import CANCELLED, COMPLETE, CrawlStatus
from shared.domain.explain.rule_checks import ExplainContext, RuleCheck, blocking_reason, rule_checks
from shared.domain.explain.sentences import moment, why
from shared.domain.frontier.failure import HOST_UNREACHABLE
from shared.domain.frontier.page_history import PageHistory
from shared.domain.frontier.politeness import FOREVER_MS
from shared.domain.frontier.states import CrawlState, UrlKind, UrlState
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import Fingerprint, HostId
from shared.domain.reads.views import FetchView, HostView, UrlView
from shared.domain.web.robots import RobotsRecord, robots_record
from shared.domain.web.url import Location, locate

NOW_MS = 1_700_000_000_000
HOST = HostView(HostId(1), "a.test", 4, 0, 1, 10, 0, 0, 0, 0, None, 0, 0, 0, None)
AROUND = ExplainContext(CrawlStatus(CrawlState.RUNNING), 5_000, Counters(pages=10, bytes=2_000), HOST, None, 3)
ROBOTS = robots_record(200, b"User-agent: *\nDisallow: /private\n", fetched_at_ms=NOW_MS)


def at(url: str) -> Location:
    found = locate(url)
    assert found is not None
    return found


def view(state: UrlState, **more: Any) -> UrlView:
    known = UrlView(
        "http://a.test/x", Fingerprint(bytes(16)), state, None, 1, 0, 0, 0, 0, None, HOST, None, ("http://a.test/",), ()
    )
    return structs.replace(known, **more)


def test_advice_for_given_up_host_fits_the_crawls_state() -> None:
    spec = parse_spec({"seeds": ["http://a.test/"]})
    lost = view(UrlState.FAILED, reason=HOST_UNREACHABLE)
    said = why(lost, spec, NOW_MS, retry="orb ctl retry-failed docs")
    assert said[-1] == "What can be done: `orb ctl retry-failed docs` tries it again once the host can be reached."
    reset = view(UrlState.FAILED, reason="reset")
    assert why(reset, spec, NOW_MS, retry="orb ctl retry-failed docs")[-1].endswith("docs` tries it again.")


def test_stored_page_that_robots_forbids_says_that_it_is_due_again() -> None:
    spec = parse_spec({"seeds": ["http://a.test/"], "recrawl": {"policy": "fixed", "min_s": 60}})
    fetch = FetchView(NOW_MS - 9_000, 200, True, None, None, 5, 9, "text/html", b"", None, None, None, None, "", 0, ())
    known = view(UrlState.WAITING, reason="robots", due_ms=NOW_MS + 60_000, fetch=fetch, history=PageHistory())
    said = why(known, spec, NOW_MS, retry="")
    assert "It is fetched again" in said[0]
    assert said[1] == "It was due before, but robots.txt forbade the request. What is stored stays."


def judged(
    known: UrlView | None = None,
    around: ExplainContext = AROUND,
    url: str = "http://a.test/x",
    **sections: Any,
) -> dict[str, RuleCheck]:
    spec = parse_spec({"seeds": ["http://a.test/"], **sections})
    found = rule_checks(url, at(url), known, spec, around, NOW_MS)
    names = [ruling.rule for ruling in found]
    assert len(set(names)) == len(names), "each rule speaks once"
    return {ruling.rule: ruling for ruling in found}


def held_by(found: dict[str, RuleCheck]) -> list[str]:
    return [ruling.rule for ruling in found.values() if not ruling.allowed]


@pytest.mark.parametrize(("partitions", "said"), [(1, "in 1 partition"), (12, "in 12 partitions")])
def test_open_rediscovery_is_named_and_holds_no_url_back(partitions: int, said: str) -> None:
    around = replace(AROUND, rediscovering=partitions)
    known, unknown = judged(view(UrlState.QUEUED), around)["rediscover"], judged(None, around)["rediscover"]
    assert known.allowed
    assert known.detail.endswith(f"for a wider scope, {said}")
    assert unknown.allowed
    assert unknown.detail.endswith(f"{said}: it may still be found there")
    assert "rediscover" not in judged(view(UrlState.QUEUED))


def test_a_queued_url_that_nothing_keeps_waiting_is_held_up_by_no_rule() -> None:
    found = judged(view(UrlState.QUEUED))
    assert held_by(found) == []
    assert blocking_reason(list(found.values())) is None
    order = [
        "canonical",
        "exclusion",
        "scope",
        "state",
        "robots",
        "crawl",
        "budget",
        "pool",
        "resource_pressure",
        "blocked",
        "delay",
    ]
    assert list(found) == order


@pytest.mark.parametrize(
    ("record", "allowed", "said"),
    [
        (None, True, "was not fetched yet"),
        (ROBOTS, False, "line 2 decides for orb: 'Disallow: /private', in the group of *"),
        (
            robots_record(200, b"User-agent: *\nDisallow: /b\n", fetched_at_ms=NOW_MS),
            True,
            "no rule excludes orb",
        ),
        (robots_record(404, b"", fetched_at_ms=NOW_MS), True, "everything is allowed (status 404)"),
        (robots_record(503, b"", fetched_at_ms=NOW_MS), False, "cannot be read (status 503)"),
        (robots_record(404, b"", fetched_at_ms=NOW_MS - 10**9), True, "to be fetched again"),
    ],
)
def test_robots_txt_is_told_by_the_line_that_decides(record: RobotsRecord | None, allowed: bool, said: str) -> None:
    found = judged(around=replace(AROUND, robots=record), url="http://a.test/private/x")
    assert found["robots"].allowed == allowed
    assert said in found["robots"].detail
    disregarded = judged(
        around=replace(AROUND, robots=record), url="http://a.test/private/x", politeness={"obey_robots": False}
    )
    assert disregarded["robots"].allowed
    ignored = judged(
        around=replace(AROUND, robots=record), url="http://a.test/private/x", robots={"ignore_for": ["a.test"]}
    )
    assert (ignored["robots"].allowed, "robots.ignore_for" in ignored["robots"].detail) == (True, True)


@pytest.mark.parametrize(
    ("standing", "said"),
    [
        (CrawlStatus(CrawlState.CREATED), "`start` begins it"),
        (CrawlStatus(CrawlState.PAUSED), "until `resume`"),
        (CrawlStatus(CrawlState.FINISHED, reason=CANCELLED), "(cancelled): queued URLs wait for `start`"),
        (CrawlStatus(CrawlState.FINISHED, reason=COMPLETE), "(complete): it runs again by itself"),
        (CrawlStatus(CrawlState.SEEDING), ""),
    ],
)
def test_a_crawl_that_sends_nothing_out_says_what_would_change_that(standing: CrawlStatus, said: str) -> None:
    found = judged(view(UrlState.QUEUED), replace(AROUND, standing=standing))
    assert found["crawl"].allowed == (not said)
    assert said in found["crawl"].detail


@pytest.mark.parametrize(
    ("budget", "name"),
    [({"max_pages": 10}, "max_pages"), ({"max_bytes": 2_000}, "max_bytes"), ({"max_seconds": 5}, "max_seconds")],
)
def test_a_budget_that_is_spent_is_named(budget: dict[str, int], name: str) -> None:
    found = judged(view(UrlState.QUEUED), budget=budget)
    assert held_by(found) == ["budget"]
    assert f"budget.{name} is spent" in found["budget"].detail
    more = judged(view(UrlState.QUEUED), budget={key: value + 1 for key, value in budget.items()})
    assert held_by(more) == []


def test_what_only_makes_a_url_wait_is_told_too() -> None:
    blocked = structs.replace(
        HOST, blocked_until_ms=NOW_MS + 60_000, failures=3, last_failure="connect", crawl_delay_ms=7_000
    )
    waiting = view(UrlState.WAITING, due_ms=NOW_MS + 1_000, attempts=2, host=blocked)
    found = judged(waiting, replace(AROUND, host=blocked, workers=0), budget={"max_pages_per_host": 10})
    assert held_by(found) == ["back_off", "pool", "host_budget", "blocked"]
    assert "after 3 failures (connect)" in found["blocked"].detail
    assert "every 7 s" in found["delay"].detail
    assert blocking_reason(list(found.values())) == found["back_off"].detail
    due = judged(structs.replace(waiting, due_ms=NOW_MS))
    assert held_by(due) == []


def test_host_policy_that_blocks_or_slows_is_named_with_its_reason() -> None:
    policy = structs.replace(
        HOST, operator_delay_ms=9_000, operator_slots=2, policy_reason="by mail", blocked_until_ms=1
    )
    shut = structs.replace(policy, operator_blocked_until_ms=FOREVER_MS)
    found = judged(view(UrlState.QUEUED, host=shut), replace(AROUND, host=shut))
    assert held_by(found) == ["blocked"]
    assert found["blocked"].detail == f"the policy of {HOST.host} blocks it without an end: by mail"
    assert "every 9 s (its host policy), with at most 2 shards out at a time (its host policy)" in found["delay"].detail
    until = structs.replace(policy, operator_blocked_until_ms=NOW_MS + 1_000)
    assert (
        f"until {moment(NOW_MS + 1_000)}: by mail"
        in judged(view(UrlState.QUEUED), replace(AROUND, host=until))["blocked"].detail
    )
    longer = structs.replace(until, blocked_until_ms=NOW_MS + 2_000)
    assert "policy" not in judged(view(UrlState.QUEUED), replace(AROUND, host=longer))["blocked"].detail
    assert held_by(judged(view(UrlState.QUEUED), replace(AROUND, host=policy))) == []


def test_what_is_fetched_or_given_up_is_held_by_its_own_state() -> None:
    fetch = FetchView(NOW_MS, 301, False, None, None, 0, 0, None, b"", None, None, None, "http://b.test/", None, 0, ())
    moved = judged(view(UrlState.DONE, fetch=fetch))
    assert held_by(moved) == ["duplicate"]
    assert "a redirect to http://b.test/" in moved["duplicate"].detail
    page = judged(view(UrlState.DONE, fetch=structs.replace(fetch, redirect=None, status=200)))
    assert "is fetched once" in page["duplicate"].detail
    assert held_by(judged(view(UrlState.LEASED))) == ["state"]
    assert "status 404" in judged(view(UrlState.FAILED, reason="http_404"))["state"].detail


def test_changed_scope_names_its_rule_and_revision_for_queued_urls() -> None:
    around = replace(AROUND, revision=7)
    narrow = {"exclude": ["/x$"]}
    for known in (view(UrlState.QUEUED), view(UrlState.WAITING), view(UrlState.EXCLUDED, reason="exclude_pattern")):
        rule = judged(known, around, scope=narrow)["exclude_pattern"]
        assert (rule.allowed, rule.detail) == (False, "matches '/x$' (revision 7 of the spec)")
    assert judged(view(UrlState.DONE), around, scope=narrow)["scope"].allowed, "it was fetched before"
    assert judged(view(UrlState.QUEUED), around)["scope"].allowed
    deep = view(UrlState.EXCLUDED, reason="depth", kind=UrlKind.SITEMAP, depth=2)
    assert held_by(judged(deep, around, scope={"max_depth": 2}))[0] == "depth"


def test_excluded_url_is_checked_again_and_other_spelling_named() -> None:
    excluded = judged(view(UrlState.EXCLUDED, reason="depth", depth=4), scope={"max_depth": 3})
    assert held_by(excluded) == ["depth", "state"]
    unseen = judged(None, replace(AROUND, host=None), url="HTTP://B.test:80/x#y")
    assert "the same URL as http://b.test/x" in unseen["canonical"].detail
    assert held_by(unseen) == ["other_host"]
    assert "delay" not in unseen, "nothing is known of the host"


def test_pattern_that_this_version_refuses_is_what_holds_a_url_up() -> None:
    """Another version stored the spec: explaining it must neither fail nor judge by half of its rules."""
    spec = CrawlSpec(seeds=(Seed(url="http://a.test/"),), scope=Scope(include=("(?!b)",)))
    for known in (view(UrlState.QUEUED), view(UrlState.EXCLUDED, reason="depth"), None):
        found = rule_checks("http://a.test/x", at("http://a.test/x"), known, spec, AROUND, NOW_MS)
        refused = [ruling for ruling in found if not ruling.allowed]
        assert refused
        assert "scope.include[0]: '(?!b)'" in " ".join(ruling.detail for ruling in refused)


def test_explain_names_the_wait_for_capacity_and_for_another_crawls_turn() -> None:
    host = structs.replace(HOST, leased=0)
    busy = replace(AROUND, host=host, visits=64, busy=64, others=("news",))
    found = judged(view(UrlState.QUEUED), busy)
    assert held_by(found) == ["turn", "capacity"]
    assert "all 64 visits of the pool 'default' are in use: it waits for a free one" in found["capacity"].detail
    assert "another crawl's turn on a.test: news" in found["turn"].detail
    assert held_by(judged(view(UrlState.QUEUED), replace(busy, busy=63, others=()))) == []


def test_capacity_is_no_reason_while_the_host_itself_waits_or_is_visited() -> None:
    """`capacity` came before `blocked`, so a blocked host seemed to wait for a free visit."""
    full = replace(AROUND, visits=64, busy=64)
    blocked = replace(full, host=structs.replace(HOST, leased=0, blocked_until_ms=NOW_MS + 60_000))
    assert held_by(judged(view(UrlState.QUEUED), blocked)) == ["blocked", "capacity"]
    assert held_by(judged(view(UrlState.QUEUED), replace(full, host=structs.replace(HOST, leased=3)))) == []


@pytest.mark.parametrize(("ahead", "held"), [(0.0, ["capacity"]), (0.01, ["capacity"]), (0.1, []), (None, [])])
def test_dispatch_that_is_configured_to_stop_is_named(ahead: float | None, held: list[str]) -> None:
    idle = replace(AROUND, host=structs.replace(HOST, leased=0), visits=64, busy=4)
    found = judged(view(UrlState.QUEUED), replace(idle, ahead=ahead))
    assert held_by(found) == held
    assert not held or f"master.dispatch_ahead_ratio is {ahead:g}" in found["capacity"].detail


def test_exclusion_comes_before_every_other_reason() -> None:
    """Scope and robots.txt do not matter for what may not be requested at all."""
    found = judged(view(UrlState.QUEUED), replace(AROUND, excluded="the exclusion of b.test covers it: asked by mail"))
    assert blocking_reason(list(found.values())) == "the exclusion of b.test covers it: asked by mail"
    assert held_by(found) == ["exclusion"]
    assert judged(view(UrlState.QUEUED))["exclusion"].detail == "no exclusion covers it"
