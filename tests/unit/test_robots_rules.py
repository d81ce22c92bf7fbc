"""A robots.txt is read as RFC 9309 says, whatever stands in it, and costs a bounded time."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.web.robots import MAX_AGENTS, MAX_ROBOTS_BYTES, RobotsLine, RobotsRules
from shared.domain.web.robots_rules import MAX_ALIKE, rules_for
from tests.support.cpu_time import least_cpu_s

SITE = "http://example.org"
TEXT = b"""# a comment
User-agent: *
Disallow: /private   # keep out
Allow: /private/open

User-agent: orb
User-Agent: other
disallow: /search
Allow: /search$
Disallow:
"""


def allows(text: str, path: str, agent: str = "orb") -> bool:
    return rules_for(text.encode(), agent).allows(SITE + path)


def line(body: bytes, path: str, agent: str) -> RobotsLine | None:
    return RobotsRules(body).deciding_line(SITE + path, agent)


def test_the_longest_match_of_the_group_that_names_us_decides() -> None:
    assert line(TEXT, "/search?q=1", "orb") == RobotsLine(8, "disallow: /search", "orb", False)
    assert line(TEXT, "/search", "orb") == RobotsLine(9, "Allow: /search$", "orb", True)
    assert line(TEXT, "/search?q=1", "other") == RobotsLine(8, "disallow: /search", "other", False)
    assert line(TEXT, "/private/x", "orb") is None, "the group of * is not ours"
    private = RobotsLine(3, "Disallow: /private   # keep out", "*", False)
    assert line(TEXT, "/private/x", "third") == private
    assert line(TEXT, "/private/open", "third") == RobotsLine(4, "Allow: /private/open", "*", True)


def test_groups_of_one_name_are_one_group() -> None:
    text = b"User-agent: orb\nDisallow: /a\n\nUser-agent: x\nDisallow: /\n\nUser-agent: orb/2.0\nDisallow: /b\n"
    assert line(text, "/b", "x") == RobotsLine(5, "Disallow: /", "x", False)
    assert line(text, "/a", "orb") == RobotsLine(2, "Disallow: /a", "orb", False)
    assert line(text, "/b", "orb") == RobotsLine(8, "Disallow: /b", "orb", False)


def test_of_equal_rules_the_first_line_is_named() -> None:
    assert line(b"User-agent: *\nDisallow: /a\nDisallow: /a\n", "/a", "orb") == RobotsLine(
        2, "Disallow: /a", "*", False
    )


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"Disallow: /", b"User-agent: other\nDisallow: /"])
def test_where_no_rule_holds_there_is_no_line(text: bytes) -> None:
    assert line(text, "/a", "orb") is None


@pytest.mark.parametrize(
    "between",
    ["Crawl-delay: 5", "Sitemap: http://example.org/s.xml", "Foo: bar", "Host: example.org", "Request-rate: 1/5", ""],
)
def test_other_records_between_agents_end_no_group(between: str) -> None:
    text = f"User-agent: orb\n{between}\nUser-agent: other\nDisallow: /x\n"
    assert not allows(text, "/x", "orb")
    assert not allows(text, "/x", "other")


def test_a_delay_between_agents_is_of_those_named_before_it() -> None:
    text = b"User-agent: slow\nCrawl-delay: 30\nUser-agent: *\nDisallow: /x\n"
    assert rules_for(text, "slow").crawl_delay_s == 30
    assert rules_for(text, "orb").crawl_delay_s is None
    assert rules_for(b"User-agent: a\nUser-agent: b\nDisallow: /x\nCrawl-delay: 7\n", "a").crawl_delay_s == 7


def test_the_longest_of_several_delays_counts() -> None:
    text = b"User-agent: orb\nCrawl-delay: 7\nDisallow: /x\nUser-agent: orb\nCrawl-delay: 2\n"
    assert rules_for(text, "orb").crawl_delay_s == 7


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("o", False),
        ("or", False),
        ("orbit", False),
        ("my-orb", False),
        ("orb-images", False),
        ("orb", True),
        ("ORB", True),
        ("orb/2.0", True),
        ("orb bot", True),
        ("orb*", True),
        ("orb # us", True),
        ("", False),
    ],
)
def test_only_the_whole_token_names_us(name: str, ours: bool) -> None:
    assert allows(f"User-agent: {name}\nDisallow: /\n", "/a") is not ours


@pytest.mark.parametrize(
    "rule",
    [
        "Disallow : /x",
        "disallow:/x",
        "DISALLOW:\t/x",
        "Disallow /x",
        "Dissallow: /x",
        "  Disallow: /x",
        "Disallow: /x#y",
    ],
)
def test_a_rule_is_read_in_the_forms_that_sites_write(rule: str) -> None:
    assert not allows(f"User agent: *\n{rule}\n", "/x")


def test_an_allowed_index_page_allows_its_folder() -> None:
    text = "User-agent: *\nDisallow: /docs/\nAllow: /docs/index.html\n"
    assert allows(text, "/docs/")
    assert allows(text, "/docs/index.html")
    assert not allows(text, "/docs/a")


def test_an_own_group_without_rules_allows_everything() -> None:
    assert allows("User-agent: *\nDisallow: /\n\nUser-agent: orb\n", "/a")


_LINES = st.sampled_from(
    ["User-agent: *", "User-agent: orb", "User-agent: orbit/2", "Disallow: /", "Disallow: /a", "Allow: /a/b",
     "Allow: /*b", "Disallow: /a*c$", "Disallow: *", "Allow: /a*", "Disallow:", "", "Crawl-delay: 3", "Allow: /*/*c"]
)  # fmt: skip


@given(st.lists(_LINES, max_size=12), st.sampled_from(["/", "/a", "/a/b", "/a/b/c", "/abc", "/b"]))
def test_the_line_that_is_shown_says_what_counts(lines: list[str], path: str) -> None:
    rules = RobotsRules("\n".join(lines).encode())
    shown = rules.deciding_line(SITE + path, "orb")
    assert rules.allows(SITE + path, "orb") == (shown is None or shown.allows)
    if shown is not None:
        assert lines[shown.number - 1].strip() == shown.text


HOSTILE = {
    "agents": b"User-agent: x\n" * 15_000 + b"Disallow: /a\n" * 15_000,
    "plain": b"User-agent: *\n" + b"".join(b"Disallow: /private%d/\n" % n for n in range(22_000)),
    "wildcards": b"User-agent: *\n" + b"".join(b"Disallow: /*/p%d/\n" % n for n in range(26_000)),
    "ends": b"User-agent: *\n" + b"".join(b"Disallow: /*%d$\n" % n for n in range(29_000)),
    "lengths": b"User-agent: *\n" + b"".join(b"Disallow: /%s\n" % (b"a" * n) for n in range(1_000)),
    "stars": b"User-agent: *\nDisallow: /" + b"*a" * 250_000 + b"\n",
    "pieces": b"User-agent: *\n" + b"".join(b"Disallow: /%s%d\n" % (b"*a*b" * 60, n) for n in range(1_900)),
    "alike": b"User-agent: *\n" + b"".join(b"Disallow: /*a%db*cccccccc\n" % n for n in range(20_000)),
}
URLS = (f"{SITE}/p1/x.html", f"{SITE}/" + "ab" * 1_000, f"{SITE}/" + "a/p123/" * 280, f"{SITE}/?" + "a=1&" * 500)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_costs_a_bounded_time(name: str) -> None:
    """CPU time, far above what it takes; the parser before took 24 s for a quarter of the first file."""
    body = HOSTILE[name][:MAX_ROBOTS_BYTES]
    assert least_cpu_s(lambda: rules_for(body, "orb"), enough=2.5) < 2.5
    rules = rules_for(body, "orb")
    assert least_cpu_s(lambda: [rules.allows(url) for url in URLS], enough=0.5) < 0.5


def test_patterns_that_no_piece_tells_apart_cost_too_much() -> None:
    same = b"Disallow: /*a*b\n" * (MAX_ALIKE + 1)
    assert not rules_for(b"User-agent: *\n" + same, "orb").too_costly, "the same pattern again costs nothing"
    alike = b"".join(b"Disallow: /%s\n" % b"".join(letters) for letters in product((b"*a", b"*b"), repeat=14))
    assert rules_for(b"User-agent: *\n" + alike, "orb").too_costly
    assert not rules_for(b"User-agent: orb\nDisallow: /a\nUser-agent: *\n" + alike, "orb").too_costly


def test_a_file_is_kept_parsed_for_a_bounded_number_of_tokens() -> None:
    rules = RobotsRules(TEXT)
    tokens = [f"bot{n}" for n in range(3 * MAX_AGENTS)]
    assert not any(rules.allows(f"{SITE}/private/x", token) for token in tokens)
    assert sum(map(rules.parsed, tokens)) <= MAX_AGENTS
