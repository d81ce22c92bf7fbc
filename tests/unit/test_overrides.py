"""The rules of `overrides`: each mistake has its place, the first match applies, and `explain` names the override."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.frontier.capacity import BudgetReservation
from api.frontier.dispatch_crawls import DispatchCrawl, DispatchCrawls
from api.frontier.hosts import Host, HostFacts
from shared.domain.crawl.host_specs import HostSpecs, compiled_scope, spec_for
from shared.domain.crawl.scope import CompiledScope, ScopeRule
from shared.domain.crawl.scope_change import same_scope
from shared.domain.crawl.spec import CrawlSpec, decode_spec, encode_spec
from shared.domain.crawl.spec_parse import SpecError, parse_spec
from shared.domain.crawl.spec_rules import refused_pattern
from shared.domain.explain.losses import Losses
from shared.domain.frontier.politeness import HostHealth
from shared.domain.frontier.states import CrawlState, UrlState
from shared.domain.ids import CrawlId, HostId, Revision
from shared.domain.web.url import host_of
from tests.unit.test_rulings import held_by, judged, view

SEEDS = ["http://a.test/", "http://docs.b.test/en/"]
FACTS = HostFacts(HostHealth(), visited=True)


def spec(*overrides: dict[str, Any], **sections: Any) -> CrawlSpec:
    return parse_spec({"seeds": SEEDS, "overrides": list(overrides), **sections})


def dispatched(crawled: CrawlSpec) -> DispatchCrawl:
    budget = BudgetReservation(None, None, {})
    return DispatchCrawl(CrawlId(1), "c", Revision(1), crawled, CrawlState.RUNNING, budget)


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        ([{"hosts": ["a.test"]}], "overrides[0]"),
        ([{"hosts": [], "delay_s": 1}], "overrides[0].hosts"),
        ([{"delay_s": 1}], "overrides[0].hosts"),
        ([{"hosts": ["a.test/x"], "delay_s": 1}], "overrides[0].hosts[0]"),
        ([{"hosts": ["A.test"], "delay_s": 1}], "overrides[0].hosts[0]"),
        ([{"hosts": ["a.test"], "delay_s": -1}], "overrides[0].delay_s"),
        ([{"hosts": ["a.test"], "max_depth": 10_001}], "overrides[0].max_depth"),
        ([{"hosts": ["a.test"], "max_pages_per_host": 0}], "overrides[0].max_pages_per_host"),
        ([{"hosts": ["a.test"], "mode": "site"}], "overrides[0].mode"),
        ([{"hosts": ["a.test"], "include": ["a", "(?=a)"]}], "overrides[0].include[1]"),
        ([{"hosts": ["a.test"], "exclude": [".{0,1000}", ".{0,999}"]}], "overrides[0].exclude"),
        ([{"hosts": ["a.test"], "max_page": 1}], "overrides[0].max_page"),
        ([{"hosts": ["a.test"], "delay_s": 1}, {"hosts": ["b.test", "a.test"], "delay_s": 2}], "overrides[1].hosts[1]"),
        ([{"hosts": [f"h{n}.test"], "delay_s": 1} for n in range(101)], "overrides"),
        ({"hosts": ["a.test"], "delay_s": 1}, "overrides"),
    ],
)
def test_each_mistake_is_refused_with_its_place(overrides: object, path: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec({"seeds": SEEDS, "overrides": overrides})
    assert [problem.path for problem in caught.value.problems] == [path]


def test_delay_above_the_adaptive_limit_is_refused() -> None:
    with pytest.raises(SpecError, match=r"overrides\[0\]\.delay_s: is more than politeness\.max_delay_s, which is 60"):
        spec({"hosts": ["a.test"], "delay_s": 90}, politeness={"adaptive": True})


def test_first_override_that_matches_a_host_applies_and_others_stay() -> None:
    crawled = spec(
        {"hosts": ["docs.b.test", "c.test:8080", "*.c.test:8080"], "delay_s": 5},
        {"hosts": ["*.b.test"], "delay_s": 7, "max_pages_per_host": 3},
    )
    assert decode_spec(encode_spec(crawled)) == crawled
    specs = HostSpecs(crawled)
    hosts = ["docs.b.test", "x.b.test", "x.y.b.test", "b.test", "c.test", "c.test:8080", "x.b.test:1", "xb.test"]
    assert [specs.number(host) for host in hosts] == [0, 1, 1, None, None, 0, None, None]
    assert [specs.number(host) for host in ("x.c.test:8080", "x.c.test", "x.c.test:81")] == [0, None, None]
    assert [specs.of(host).politeness.delay_s for host in hosts[:4]] == [5, 7, 7, 1]
    assert specs.of("docs.b.test").budget.max_pages_per_host is None
    assert specs.of("a.test") is crawled
    assert spec_for(crawled, "x.b.test") == specs.of("x.b.test")


@given(st.lists(st.sampled_from(["a.t", "b.a.t", "c.b.a.t", "*.a.t", "*.b.a.t", "*.t"]), max_size=6, unique=True))
def test_lookup_agrees_with_a_plain_search_in_order(patterns: list[str]) -> None:
    specs = HostSpecs(spec(*[{"hosts": [pattern], "delay_s": 2} for pattern in patterns]))
    for host in ("t", "a.t", "b.a.t", "c.b.a.t", "d.c.b.a.t"):
        plain = [n for n, of in enumerate(patterns) if of == host or (of[0] == "*" and host.endswith(of[1:]))]
        assert specs.number(host) == min(plain, default=None)


def verdict(crawled: CrawlSpec, url: str, depth: int = 1, via: str = "a.test") -> str | None:
    found = compiled_scope(crawled).judge(url, host_of(url), depth=depth, via_host=via)
    return None if found is None else f"{found.name}: {found.detail}"


def test_scope_of_a_host_is_that_of_its_override() -> None:
    crawled = spec(
        {"hosts": ["cdn.test"], "mode": "any", "include": ["\\.html$"]},
        {"hosts": ["a.test"], "max_depth": 2, "exclude": ["/print/"]},
        scope={"max_depth": 4, "exclude": ["/draft/"]},
    )
    assert verdict(crawled, "http://cdn.test/x.html") is None
    assert verdict(crawled, "http://cdn.test/x") == (
        "include_pattern: matches none of the include patterns (overrides[0].include)"
    )
    assert verdict(crawled, "http://other.test/") == "other_host: other.test is not a.test"
    assert verdict(crawled, "http://a.test/x", depth=3) == "depth: depth 3 is over 2 (overrides[1].max_depth)"
    assert verdict(crawled, "http://a.test/print/x") == ("exclude_pattern: matches '/print/' (overrides[1].exclude)")
    assert verdict(crawled, "http://a.test/draft/x") is None
    assert verdict(crawled, "http://docs.b.test/draft/x", via="docs.b.test") == "exclude_pattern: matches '/draft/'"
    assert verdict(crawled, "http://docs.b.test/x", depth=4, via="docs.b.test") is None
    scope = compiled_scope(crawled)
    listing = scope.judge_listing("http://a.test/s.xml", "a.test", depth=2, via_host="a.test", hops=0)
    assert listing is not None
    assert listing.name == "depth"
    hop = scope.hops_beyond("http://a.test/x", "a.test", depth=3, via_host="a.test")
    assert isinstance(hop, ScopeRule)
    requisite = compiled_scope(spec({"hosts": ["a.test"], "exclude": ["gif$"]}, scope={"requisites": "all"}))
    refused = requisite.judge_requisite("http://a.test/x.gif", "a.test", via_host="a.test", hops=1)
    assert refused is not None
    assert refused.detail.endswith("(overrides[0].exclude)")
    assert requisite.judge_requisite("http://c.test/x.gif", "c.test", via_host="a.test", hops=1) is None


def test_overrides_without_scope_use_the_plain_scope() -> None:
    assert type(compiled_scope(spec({"hosts": ["a.test"], "delay_s": 9}))) is CompiledScope
    assert type(compiled_scope(spec())) is CompiledScope


def test_scope_changes_only_if_an_override_of_the_scope_does() -> None:
    plain, slower = spec(), spec({"hosts": ["a.test"], "delay_s": 9})
    nearer = spec({"hosts": ["a.test"], "delay_s": 9, "max_depth": 1})
    assert same_scope(plain, slower)
    assert not same_scope(slower, nearer)
    assert not same_scope(nearer, slower)
    assert same_scope(nearer, spec({"hosts": ["a.test"], "delay_s": 3, "max_depth": 1}))
    prefix = {"hosts": ["a.test"], "mode": "prefix"}
    assert not same_scope(spec(prefix), parse_spec({"seeds": ["http://a.test/x/"], "overrides": [prefix]}))


def test_owner_uses_the_delay_and_the_page_limit_of_the_host() -> None:
    crawl = dispatched(
        spec({"hosts": ["a.test"], "delay_s": 0, "max_pages_per_host": 5}, {"hosts": ["b.test"], "max_depth": 7})
    )
    assert crawl.pace("a.test", FACTS) == (0.0, 8)
    assert crawl.pace("a.test", replace(FACTS, crawl_delay_ms=4000)) == (4.0, 1)
    assert crawl.pace("a.test", replace(FACTS, operator_slots=3)) == (0.0, 3)
    assert crawl.pace("a.test", replace(FACTS, operator_slots=64)) == (0.0, 8), "a policy adds no slots"
    assert crawl.pace("a.test", replace(FACTS, operator_slots=3, visited=False)) == (0.0, 1)
    assert crawl.pace("b.test", FACTS) == (1.0, 1)
    assert [crawl.max_pages_of(host) for host in ("a.test", "b.test")] == [5, None]
    assert crawl.max_depth == 7
    crawl.spec = spec()
    assert crawl.pace("a.test", FACTS) == (1.0, 1), "another revision has no overrides"


def test_host_stays_in_memory_for_the_longest_delay_of_any_override() -> None:
    crawls = DispatchCrawls()
    host = Host(HostId(1), "a.test", FACTS, 0.0)
    assert crawls.longest_delay_s(host) == 0
    crawls.put(dispatched(spec({"hosts": ["a.test"], "delay_s": 9})))
    assert crawls.longest_delay_s(host) == 9
    assert crawls.longest_delay_s(Host(HostId(2), "b.test", FACTS, 0.0)) == 1
    crawls.put(dispatched(spec()))
    assert crawls.longest_delay_s(host) == 1, "another revision has no overrides"


def test_page_limit_of_one_host_leases_requisites_apart() -> None:
    scope = {"requisites": "all"}
    limited = spec({"hosts": ["a.test"], "max_pages_per_host": 5}, scope=scope)
    assert [dispatched(each).requisites_apart for each in (spec(scope=scope), limited)] == [False, True]


def test_explain_names_the_override_where_it_decides() -> None:
    override = {"hosts": ["a.test"], "delay_s": 5, "max_pages_per_host": 10, "max_depth": 0}
    found = judged(view(UrlState.QUEUED), overrides=[override])
    assert found["override"].detail == (
        "overrides[0] (delay_s, max_pages_per_host, max_depth) of the spec applies to a.test"
    )
    assert found["host_budget"].detail == "a.test has given 10 of 10 pages (overrides[0].max_pages_per_host)"
    assert "every 5 s (overrides[0].delay_s)" in found["delay"].detail
    assert held_by(found)[0] == "depth"
    assert found["depth"].detail == "depth 1, limit 0 (overrides[0].max_depth) (revision 1 of the spec)"
    assert "override" not in judged(view(UrlState.QUEUED), overrides=[{"hosts": ["b.test"], "delay_s": 5}])


def test_losses_name_no_flag_where_an_override_may_decide() -> None:
    lost = Losses({"depth": 2}, {}, {})
    assert lost.links(spec(scope={"max_depth": 3})) == [
        "2 links deeper than --max-depth 3; a greater --max-depth follows them"
    ]
    assert lost.links(spec({"hosts": ["a.test"], "max_depth": 3})) == [
        "2 links deeper than the limit of depth of their host; a greater max_depth in the spec follows them"
    ]


def test_pattern_of_another_version_stops_the_crawl() -> None:
    stored = encode_spec(spec({"hosts": ["a.test"], "exclude": ["abc"]})).replace(b'"abc"', b'"(?=a)"')
    crawled = decode_spec(stored)
    refused = refused_pattern(crawled.scope, crawled.extract, overrides=crawled.overrides)
    assert refused is not None
    assert refused.startswith("overrides[0].exclude[0]")
    assert compiled_scope(crawled).problem == refused
