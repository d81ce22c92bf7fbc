"""Selectors of rules: what is taken is what the parser that runs them takes, and the rest is refused in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from shared.domain.crawl.selectors import PSEUDO_CLASSES, selector_problem

names = st.from_regex(r"-?[a-zA-Z_ä][a-zA-Z0-9_-]{0,5}", fullmatch=True)
values = st.one_of(names, st.from_regex(r'"[^"\\\n\f\r]{0,5}"', fullmatch=True))
attributes = st.builds(
    "[{}{}]".format,
    names,
    st.one_of(
        st.just(""),
        st.builds(
            "{}{}{}".format, st.sampled_from(["=", "~=", "|=", "^=", "$=", "*="]), values, st.sampled_from(["", " i"])
        ),
    ),
)
steps = st.sampled_from(["odd", "even", "3", "2n+1", "-n+2", "n", "2n - 1", "+3n"])
plain = st.sampled_from(
    [f":{name}" for name in PSEUDO_CLASSES if not name.startswith("nth") and name not in ("has", "is", "not")]
)
nth = st.builds(":{}({})".format, st.sampled_from([n for n in PSEUDO_CLASSES if n.startswith("nth")]), steps)


def lists(simple: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    compounds = st.builds(
        lambda named, rest: named + "".join(rest) or "*", st.one_of(names, st.sampled_from(["*", ""])),
        st.lists(simple, max_size=2),
    )  # fmt: skip
    complexes = st.builds(
        lambda first, rest: first + "".join(f"{how}{each}" for how, each in rest),
        compounds,
        st.lists(st.tuples(st.sampled_from([" ", " > ", "+", " ~ "]), compounds), max_size=2),
    )
    return st.lists(complexes, min_size=1, max_size=2).map(", ".join)


simples = st.one_of(st.builds("#{}".format, names), st.builds(".{}".format, names), attributes, plain, nth)
selectors = lists(
    st.one_of(simples, st.builds(":{}({})".format, st.sampled_from(["is", "not", "has"]), lists(simples)))
)


@given(selectors)
def test_what_is_taken_is_taken_by_the_parser_that_runs_it(selector: str) -> None:
    assert selector_problem(selector) is None
    LexborHTMLParser("<p class=a><b>x</b></p>").css(selector)


@given(st.text(st.sampled_from("ap.#[]=:()*>+~, \"'\\n1-ä\t|^$i"), max_size=12))
def test_no_text_is_taken_that_the_parser_does_not_take(text: str) -> None:
    if selector_problem(text) is None:
        LexborHTMLParser("<p class=a><b>x</b></p>").css(text)


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        ("", "ends too early"),
        ("div >", "ends too early"),
        ("h1[", "is no CSS selector from character 3, '['"),
        ("a::before", "unknown pseudo-class '::before'"),
        ("a:hover", "unknown pseudo-class ':hover'"),
        ("a:nth-child", "unknown pseudo-class ':nth-child'"),
        ("a:nth-child(x)", "has no number"),
        (":is(:is(:is(:is(a))))", "nests more than 3 levels"),
        ("a, , b", "is no CSS selector from character 4"),
        ("> a", "is no CSS selector from character 1"),
        (".a\\:b", "is no CSS selector from character 3"),
        ("a:not(b", "ends too early"),
        ("a\0b", "is no CSS selector from character 2"),
    ],
)
def test_what_is_refused_is_refused_in_words(selector: str, said: str) -> None:
    problem = selector_problem(selector)
    assert problem is not None
    assert said in problem


def test_a_long_selector_is_judged_in_linear_time() -> None:
    assert selector_problem("a" + ":not(" * 3 + "b" * 400) is not None
    assert selector_problem(" ".join(["a"] * 50_000)) is None
