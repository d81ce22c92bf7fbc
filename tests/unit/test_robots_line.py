"""The line that is shown as deciding is one of the group that holds for us, and says what the parser says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain import robots_line
from shared.domain.robots import RobotsRules
from shared.domain.robots_line import RobotsLine, deciding_line

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


def test_the_longest_match_of_the_group_that_names_us_decides() -> None:
    assert deciding_line(TEXT, f"{SITE}/search?q=1", "orb") == RobotsLine(8, "disallow: /search", "orb", False)
    assert deciding_line(TEXT, f"{SITE}/search", "orb") == RobotsLine(9, "Allow: /search$", "orb", True)
    assert deciding_line(TEXT, f"{SITE}/search?q=1", "other") == RobotsLine(8, "disallow: /search", "other", False)
    assert deciding_line(TEXT, f"{SITE}/private/x", "orb") is None, "the group of * is not ours"
    private = RobotsLine(3, "Disallow: /private   # keep out", "*", False)
    assert deciding_line(TEXT, f"{SITE}/private/x", "nobody") == private
    assert deciding_line(TEXT, f"{SITE}/private/open", "nobody") == RobotsLine(4, "Allow: /private/open", "*", True)


def test_groups_of_one_name_are_one_group() -> None:
    text = b"User-agent: orb\nDisallow: /a\n\nUser-agent: x\nDisallow: /\n\nUser-agent: orb/2.0\nDisallow: /b\n"
    assert deciding_line(text, f"{SITE}/b", "x") == RobotsLine(5, "Disallow: /", "x", False)
    assert deciding_line(text, f"{SITE}/a", "orb") == RobotsLine(2, "Disallow: /a", "orb", False)


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"Disallow: /", b"User-agent: other\nDisallow: /"])
def test_where_no_rule_holds_there_is_no_line(text: bytes) -> None:
    assert deciding_line(text, f"{SITE}/a", "orb") is None


def test_a_line_that_the_parser_would_not_follow_is_not_shown() -> None:
    """Its leniency: an allowed index page allows its folder."""
    text = b"User-agent: *\nDisallow: /docs/\nAllow: /docs/index.html\n"
    assert RobotsRules.parse(text).allows(f"{SITE}/docs/", "orb")
    assert deciding_line(text, f"{SITE}/docs/", "orb") is None


def test_a_group_beyond_the_limit_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robots_line, "MOST_RULES", 2)
    text = b"User-agent: *\n" + b"Disallow: /a\n" * 3
    assert deciding_line(text, f"{SITE}/a", "orb") is None


_LINES = st.sampled_from(
    ["User-agent: *", "User-agent: orb", "User-agent: orbit/2", "Disallow: /", "Disallow: /a", "Allow: /a/b",
     "Allow: /*b", "Disallow: /a*c$", "Disallow:", "", "Crawl-delay: 3", "Sitemap: http://example.org/s.xml"]
)  # fmt: skip


@given(st.lists(_LINES, max_size=12), st.sampled_from(["/", "/a", "/a/b", "/a/b/c", "/abc", "/b"]))
def test_what_is_shown_is_always_what_counts(lines: list[str], path: str) -> None:
    body = "\n".join(lines).encode()
    found = deciding_line(body, SITE + path, "orb")
    if found is not None:
        assert found.allows == RobotsRules.parse(body).allows(SITE + path, "orb")
        assert lines[found.number - 1].strip() == found.text
