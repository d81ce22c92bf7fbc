"""The rules of `priority`: each mistake has its place, the first match applies, and `explain` names the rule."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.crawl.priority_rules import PriorityRule, compiled_priority
from shared.domain.crawl.spec import decode_spec, encode_spec
from shared.domain.crawl.spec_parse import SpecError, parse_spec
from shared.domain.crawl.spec_rules import refused_pattern
from shared.domain.explain.rule_checks import rule_checks
from shared.domain.frontier.states import UrlState
from tests.unit.test_rulings import AROUND, NOW_MS, at, judged, view

SEEDS = {"seeds": ["http://a.test/"]}
RULES = [{"match": "/news/", "value": 10}, {"match": "/(news|old)/", "value": -5}]


@pytest.mark.parametrize(
    ("rules", "path"),
    [
        ([{"match": "(?=a)", "value": 1}], "priority[0].match"),
        ([{"match": "a", "value": 1}, {"match": "b", "value": 101}], "priority[1].value"),
        ([{"match": "a", "value": -101}], "priority[0].value"),
        ([{"match": "a", "value": True}], "priority[0].value"),
        ([{"match": "", "value": 1}], "priority[0].match"),
        ([{"value": 1}], "priority[0].match"),
        ([{"match": "a"}], "priority[0].value"),
        ([{"match": "a", "value": 1, "host": "x"}], "priority[0].host"),
        ([{"match": ".{0,1000}", "value": n} for n in (1, 2)], "priority"),
        ([{"match": "a", "value": 1}] * 101, "priority"),
        ({"match": "a", "value": 1}, "priority"),
    ],
)
def test_each_mistake_is_refused_with_its_place(rules: object, path: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec({**SEEDS, "priority": rules})
    assert [problem.path for problem in caught.value.problems] == [path]


def test_first_rule_that_matches_applies_and_a_seeds_own_priority_stays() -> None:
    spec = parse_spec({**SEEDS, "priority": RULES})
    assert decode_spec(encode_spec(spec)) == spec
    rules = compiled_priority(spec.priority)
    given_ = {path: rules.of(f"http://a.test/{path}") for path in ("news/1", "old/1", "x")}
    assert given_ == {"news/1": 10, "old/1": -5, "x": 0}
    assert rules.of("http://a.test/news/1", own=3) == 3


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-100, 100)), max_size=6), st.text("abcde", max_size=4))
def test_rules_agree_with_a_plain_search_in_order(pairs: list[tuple[str, int]], path: str) -> None:
    rules = tuple(PriorityRule(match=f"/.*{letter}", value=value) for letter, value in pairs)
    expected = next((value for letter, value in pairs if letter in path), 0)
    assert compiled_priority(rules).of(f"http://1.2.3.4/{path}") == expected


def test_pattern_of_another_version_stops_dispatch_and_gives_no_priority() -> None:
    spec = parse_spec({**SEEDS, "priority": RULES})
    stored = msgspec.structs.replace(spec, priority=(PriorityRule(match="(?=a)", value=1),))
    assert "priority[0]" in (refused_pattern(stored.scope, stored.extract, stored.recrawl, stored.priority) or "")
    assert compiled_priority(stored.priority).of("http://a.test/a") == 0


def explained(url: str, known: Any = None, **sections: Any) -> str:
    spec = parse_spec({**SEEDS, **sections})
    (check,) = [each for each in rule_checks(url, at(url), known, spec, AROUND, NOW_MS) if each.rule == "priority"]
    assert check.allowed
    return check.detail


def test_explain_names_the_rule_that_decides() -> None:
    assert "priority" not in judged(view(UrlState.QUEUED)), "nothing is said where no rule and no priority is"
    news, other = "http://a.test/news/1", "http://a.test/x"
    assert explained(news, priority=RULES) == "its priority will be 10: priority[0] matches it, '/news/'"
    assert explained(other, priority=RULES) == "its priority will be 0: no rule of `priority` matches it"
    queued = view(UrlState.QUEUED, priority=10)
    assert explained(news, queued, priority=RULES) == "its priority is 10: priority[0] matches it, '/news/'"
    earlier = explained(news, queued, priority=[{"match": "/news/", "value": 7}])
    assert earlier == "its priority is 10, by the rules when it was found; now priority[0] matches it, '/news/', with 7"
    seed = view(UrlState.QUEUED, priority=3, chain=())
    assert "as a seed declares" in explained(other, seed)
