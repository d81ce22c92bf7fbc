"""Patterns of users: what is refused and why, that the rest means what it meant to Python, and what a search costs."""

import re
import time
import warnings
from collections.abc import Callable

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.domain.crawl.item_rules import ItemField, ItemRule
from shared.domain.crawl.patterns import MAX_PROGRAM, PatternRefused, Patterns, pattern_problem, program_size, value_in
from shared.domain.crawl.scope import CompiledScope, ExclusionReason
from shared.domain.crawl.spec import CrawlSpec, Extract, Scope, Seed, decode_spec, encode_spec
from shared.domain.crawl.spec_parse import SpecError, parse_spec
from shared.domain.crawl.spec_rules import refused_pattern

COSTLY = [
    r"^https?://.*/.*/.*/.*\.php$",
    r"(a|aa)+$",
    r"(a+)+$",
    r"(a|a)*$",
    r"(.*,)*x",
    r"(?:a{2,})+b$",
    r"(\w+\s?)*!",
]


@pytest.mark.parametrize(
    ("pattern", "advice"),
    [
        (r"/(?!private)", "no lookahead"),
        (r"(?=/en/)", "no lookahead"),
        (r"(?<=/)x", "no lookbehind"),
        (r"(?<!/)x", "no lookbehind"),
        (r"(a)\1", "no backreferences"),
        (r"\12", "no backreferences"),
        (r"[\1]", "no backreferences"),
        (r"(?P<n>a)(?P=n)", "no backreferences"),
        (r"(a)?(?(1)b|c)", "no conditional"),
        (r"(?>a+)", "no atomic"),
        (r"a++", "no possessive"),
        (r"a{2}+", "no possessive"),
        (r"(?#why)a", "no comments"),
        (r"a\Z", r"write \z"),
        (r"\u0041", r"write \x{...}"),
        (r"\N{DASH}", r"write \x{...}"),
        (r"a{1001}", "at most 1000"),
        (r"(a{500}){500}", "at most 1000"),
        (r"a{,3}", "write {0,3}"),
        (r"[^a[:digit:]]", "write it out"),
        (r"(?x)a b", "(?x"),
        (r"(?a)\w", "(?a"),
        (r"\Qa.b\E", r"has \Q"),
        (r"\C", r"has \C"),
        (r"(", "missing )"),
        ("\ud800", "lone surrogate"),
        (r".{1000}.{300}", f"may have {MAX_PROGRAM:,}"),
    ],
)
def test_pattern_re2_cannot_express_is_refused_with_advice(pattern: str, advice: str) -> None:
    problem = pattern_problem(pattern)
    assert problem is not None
    assert advice in problem


@pytest.mark.parametrize(
    "pattern",
    [
        *COSTLY,
        r"(?i)/tag/.*",
        r"^https://[^/]+/(en|de)/",
        r"(?P<x>a)+",
        r"\.(jpg|png)$",
        r"[(+)*]+",
        r"\(a+\)+",
        r"[]{,3}a]",
        r"\{,3}",
        r"[[:a]",
        r"\0\x41\x{42}\z",
        r"\pL[\p{Greek}]",
    ],
)
def test_ordinary_pattern_is_accepted(pattern: str) -> None:
    assert pattern_problem(pattern) is None


@pytest.mark.parametrize("pattern", [r"\w+", r"[\W]", r"\bEUR", r"\B"])
def test_ascii_word_class_is_refused_where_text_has_every_script(pattern: str) -> None:
    assert pattern_problem(pattern) is None
    assert "every script" in (pattern_problem(pattern, unicode=True) or "")


_SIMPLE = r"a b / . \. \d \D \w \W \s \S \b \B ^ $ \A \x61 \0 { } a{,2} x{2 (?i) (?s) (?:) \Q."
_SETS = r"[ab] [^a] [a-c/] []a] [\d-] [\w.] [[a] [a&&b] [[:alpha:]]"
_ATOMS = st.sampled_from([*_SIMPLE.split(" "), *_SETS.split(" ")])
_REPEATS = st.sampled_from(["", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,}", "{0,2}", "{2,3}?", "*+", "{,2}"])
_PATTERNS = st.recursive(
    st.tuples(_ATOMS, _REPEATS).map("".join),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join),
        st.tuples(st.sampled_from(["(", "(?:", "(?i:"]), inner, st.just(")"), _REPEATS).map("".join),
    ),
    max_leaves=8,
)


@pytest.mark.long
@settings(max_examples=1500, deadline=None)
@given(_PATTERNS, st.lists(st.text("abcAB0_/.x-{}", min_size=1, max_size=8), min_size=4, max_size=4))
def test_accepted_pattern_finds_what_python_finds_in_a_url(pattern: str, texts: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            python = re.compile(pattern)
        except re.error:
            return
    if pattern_problem(pattern) is not None:
        return
    both = Patterns(["never", pattern])
    for text in texts:
        assert both.matching(text) == ([1] if python.search(text) else []), (pattern, text)


def test_value_is_the_first_group_or_the_whole_match() -> None:
    assert value_in(r"(\d+) EUR", "köstet 12 EUR") == "12"
    assert value_in(r"k.s", "es köstet") == "kös"
    assert value_in(r"(x)?k", "köstet") is None
    assert value_in(r"x", "köstet") is None
    with pytest.raises(PatternRefused):
        value_in(r"\w+", "köstet")


def test_search_without_memory_falls_back_to_single_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    """RE2's set returns nothing then, not even the pattern that matches every text."""
    monkeypatch.setattr(re2.Set, "Match", lambda self, text: None)
    some = Patterns(["b$", "[ab]*a", "c"])
    assert (some.matching("ab"), some.matching("c"), some.matching("d")) == ([0, 1], [2], [])


# --- what it costs ----------------------------------------------------------------------------------------------------


def least_cpu_s(search: Callable[[], object]) -> float:
    spent = []
    for _ in range(7):
        before = time.process_time()
        search()
        spent.append(time.process_time() - before)
    return min(spent)


@pytest.mark.parametrize("pattern", [*COSTLY, r"[ab]*a[ab]{30}c"])
@pytest.mark.parametrize("unit", ["a", "/a.php", "ab", "a,"])
def test_search_of_twice_the_text_takes_about_twice_the_time(pattern: str, unit: str) -> None:
    compiled = Patterns([pattern])

    def spent(length: int) -> float:
        text = "http://a.test/" + unit * (length // len(unit)) + "!"
        compiled.matching(text)  # the automaton is built at the first search
        return least_cpu_s(lambda: compiled.matching(text))

    tries = ((spent(200_000), spent(400_000)) for _ in range(5))  # a noisy machine spoils one try, not all of them
    assert any(longer < 2.5 * shorter + 0.001 for shorter, longer in tries)


def test_size_of_all_patterns_of_a_list_is_bounded() -> None:
    some = tuple(f"{digit}.{{1000}}" for digit in range(2))
    assert all(program_size(pattern) < MAX_PROGRAM for pattern in some)
    with pytest.raises(SpecError, match=r"scope\.exclude: its patterns compile to 16,0\d\d instructions together"):
        parse_spec({"seeds": ["http://a.test/"], "scope": {"exclude": list(some)}})
    with pytest.raises(PatternRefused, match="together"):
        Patterns(some)


# --- specs ------------------------------------------------------------------------------------------------------------

SEEDS = (Seed(url="http://a.test/"),)
OLD = [
    ("scope.include[1]", Scope(include=("a", "(?!b)")), Extract()),
    ("scope.exclude[0]", Scope(exclude=("(?>a)",)), Extract()),
    (
        "extract.items[0].when",
        Scope(),
        Extract(items=(ItemRule(name="a", fields={"b": ItemField(css="b")}, when=r"a\Z"),)),
    ),
    (
        "extract.items[0].fields.b.match",
        Scope(),
        Extract(items=(ItemRule(name="a", fields={"b": ItemField(css="b", match=r"\w+")}),)),
    ),
]


@pytest.mark.parametrize(("place", "scope", "extract"), OLD)
def test_refused_pattern_is_told_with_its_place(place: str, scope: Scope, extract: Extract) -> None:
    said = refused_pattern(scope, extract)
    assert said is not None
    assert said.startswith(f"{place}: ")


@pytest.mark.parametrize(("place", "scope", "extract"), OLD)
def test_stored_spec_with_refused_pattern_judges_nothing_and_explains(
    place: str, scope: Scope, extract: Extract
) -> None:
    """It was stored by another version, which accepts it: nothing may be excluded, or let in, by half of its rules."""
    spec = decode_spec(encode_spec(CrawlSpec(seeds=SEEDS, scope=scope, extract=extract)))
    compiled = CompiledScope(spec)
    with pytest.raises(PatternRefused, match=r"RE2|ASCII"):
        compiled.judge("http://a.test/x", "a.test", depth=1, via_host="a.test")
    verdicts = compiled.explain("http://a.test/x", "a.test", depth=1, via_host="a.test")
    refused = [verdict for verdict in verdicts if not verdict.allowed]
    assert refused[0].rule is ExclusionReason.EXCLUDE
    assert refused[0].detail.startswith(f"{place}: ")


def test_spec_with_a_refused_pattern_is_refused_with_its_path() -> None:
    with pytest.raises(SpecError) as refused:
        parse_spec(
            {
                "seeds": ["http://a.test/"],
                "scope": {"include": ["ok", "(?!x)"]},
                "extract": {
                    "items": [{"name": "a", "when": "a++", "fields": {"b": {"css": "b", "match": r"\w"}}}],
                },
            }
        )
    assert [problem.path for problem in refused.value.problems] == [
        "scope.include[1]",
        "extract.items[0].fields.b.match",
    ]
    with pytest.raises(SpecError, match=r"extract\.items\[0\]\.when: 'a\+\+' is not a regular expression of RE2"):
        parse_spec(
            {
                "seeds": ["http://a.test/"],
                "extract": {"items": [{"name": "a", "when": "a++", "fields": {"b": {"css": "b"}}}]},
            }
        )
