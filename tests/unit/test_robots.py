import re
from itertools import pairwise

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.domain.web.robots import (
    MAX_LIFETIME_S,
    MAX_ROBOTS_BYTES,
    MAX_STALE_S,
    UNREACHABLE_LIFETIME_S,
    AllowAll,
    RobotsRecord,
    RobotsRules,
    Rules,
    Unreachable,
    outliving_delay,
    policy_of,
    product_token,
    robots_record,
    with_cached,
)
from shared.domain.web.robots_rules import MAX_CRAWL_DELAY_S

SITE = "http://example.org"


def allows(text: str, path: str, agent: str = "orb") -> bool:
    return RobotsRules(text.encode()).allows(SITE + path, agent)


def rfc9309(rules: list[tuple[bool, str]], path: str) -> bool:
    """The RFC's rule in its plainest form: of the patterns that match, the longest decides; allow wins a tie."""
    matching = [
        (len(pattern), allow)
        for allow, pattern in rules
        if re.match(
            "".join(".*" if c == "*" else re.escape(c) for c in pattern.removesuffix("$"))
            + (r"\Z" if pattern.endswith("$") else ""),
            path,
            re.DOTALL,
        )
    ]
    return max(matching)[1] if matching else True


PATTERNS = st.builds("/{}{}".format, st.text("ab/*", max_size=5), st.sampled_from(["", "", "$"]))


@given(st.lists(st.tuples(st.booleans(), PATTERNS), max_size=6), st.text("ab/", max_size=8))
@example([(False, "/a"), (True, "/a")], "a")
@example([(False, "/*b$"), (True, "/ab")], "ab")
def test_precedence_is_that_of_the_rfc(rules: list[tuple[bool, str]], tail: str) -> None:
    text = "User-agent: *\n" + "".join(f"{'Allow' if allow else 'Disallow'}: {pattern}\n" for allow, pattern in rules)
    assert allows(text, "/" + tail) == rfc9309(rules, "/" + tail)


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("/fish", "/fish/salmon.html", True),
        ("/fish", "/Fish.asp", False),
        ("/fish/", "/fish", False),
        ("/*.php$", "/folder/filename.php", True),
        ("/*.php$", "/filename.php?parameters", False),
        ("/*.php", "/filename.php5", True),
        ("/a?b", "/a?b=c", True),
        ("/foo/bar?baz=http://foo.bar", "/foo/bar?baz=http%3A%2F%2Ffoo.bar", True),
        ("/foo/bar?baz=http%3A%2F%2Ffoo.bar", "/foo/bar?baz=http://foo.bar", True),
        ("/path/file-with-a-%2A.html", "/path/file-with-a-*.html", True),
        ("/path/file-with-a-%2A.html", "/path/file-with-a-b.html", False),
        ("/path/foo-%24", "/path/foo-$", True),
        ("/a%3Ab", "/a:b", True),
        ("/foo/\u30c4", "/foo/%E3%83%84", True),
        ("/foo/%E3%83%84", "/foo/%E3%83%84", True),
        ("/foo/bar/%62%61%7A", "/foo/bar/baz", True),
        ("/%7ejoe/", "/~joe/a", True),
        ("/a%2fb", "/a%2Fb", True),
        ("/a%2fb", "/a/b", False),
        ("/*", "/", True),
    ],
)
def test_patterns_match_as_the_rfc_says(pattern: str, path: str, matches: bool) -> None:
    assert allows(f"User-agent: *\nDisallow: {pattern}\n", path) is not matches


def test_robots_txt_itself_is_always_allowed() -> None:
    assert allows("User-agent: *\nDisallow: /\n", "/robots.txt")


def test_own_group_wins_over_star_and_groups_of_one_agent_are_merged() -> None:
    text = "User-agent: *\nDisallow: /\n\nUser-Agent: OTHER\nUser-agent: Orb\nDisallow: /a\n"
    text += "\nuser-agent: orb\nDisallow: /b"
    assert allows(text, "/c")
    assert not allows(text, "/a")
    assert not allows(text, "/b")
    assert not allows(text, "/c", agent="somebody")


def test_a_group_that_gives_a_version_still_names_the_agent() -> None:
    assert not allows("User-agent: orb/2.0 # us\nDisallow: /a\n", "/a")
    assert allows("User-agent: orbit\nDisallow: /a\n", "/a")


def test_an_empty_disallow_allows_everything() -> None:
    assert allows("User-agent: *\nDisallow:\n", "/a")


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_line_ends_and_a_byte_order_mark_are_read(ends: str) -> None:
    body = ("\ufeff" + ends.join(["User-agent: *", "Disallow: /a", ""])).encode()
    assert not RobotsRules(body).allows(SITE + "/a", "orb")


def test_crawl_delay_is_the_own_groups_and_only_a_sane_number() -> None:
    text = "User-agent: *\nCrawl-delay: 10\n\nUser-agent: orb\nCrawl-delay: 2.5\n\n"
    assert RobotsRules(text.encode()).crawl_delay("orb") == 2.5
    assert RobotsRules(text.encode()).crawl_delay("x") == 10
    for bad in ("inf", "nan", "-1", "soon"):
        assert RobotsRules(f"User-agent: *\nCrawl-delay: {bad}\n".encode()).crawl_delay("orb") is None
    assert RobotsRules(b"User-agent: *\nCrawl-delay: 1e300\n").crawl_delay("orb") == MAX_CRAWL_DELAY_S
    assert RobotsRules(b"").crawl_delay("orb") is None


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_a_body_over_the_limit_is_cut_at_a_line_end(end: bytes) -> None:
    """Half of the last rule could be `Disallow: /`."""
    head = b"User-agent: *" + end + b"Disallow: /aaaaaaaaa" + end
    filler = b"#" * (MAX_ROBOTS_BYTES - len(head) - len(end) - len(b"Disallow: /")) + end
    body = head + filler + b"Disallow: /private-area/" + end + b"Disallow: /c" + end
    record = robots_record(200, body, fetched_at_ms=0)
    assert len(record.body) <= MAX_ROBOTS_BYTES
    policy = policy_of(record)
    assert isinstance(policy, Rules)
    assert policy.rules.allows(SITE + "/b", "orb")
    assert not policy.rules.allows(SITE + "/aaaaaaaaab", "orb")


def test_a_body_of_just_the_limit_is_used_whole() -> None:
    body = b"User-agent: *\n" + b"#" * (MAX_ROBOTS_BYTES - len(b"User-agent: *\n\nDisallow: /a")) + b"\nDisallow: /a"
    assert len(body) == MAX_ROBOTS_BYTES
    assert robots_record(200, body, fetched_at_ms=0).body == body


@given(st.binary(max_size=400))
def test_anything_parses_and_answers(body: bytes) -> None:
    rules = RobotsRules(body)
    assert rules.allows(SITE + "/a", "orb") in (True, False)
    delay = rules.crawl_delay("orb")
    assert delay is None or 0 <= delay <= MAX_CRAWL_DELAY_S


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, Rules),
        (206, Rules),
        (301, AllowAll),
        (401, AllowAll),
        (403, AllowAll),
        (404, AllowAll),
        (410, AllowAll),
        (429, Unreachable),
        (500, Unreachable),
        (503, Unreachable),
        (999, Unreachable),
        (0, Unreachable),
    ],
)
def test_what_a_status_means(status: int, kind: type) -> None:
    record = robots_record(status, b"User-agent: *\nDisallow: /\n", fetched_at_ms=0)
    assert isinstance(policy_of(record), kind)
    assert bool(record.body) == (kind is Rules)
    assert record.lifetime_s == (UNREACHABLE_LIFETIME_S if kind is Unreachable else MAX_LIFETIME_S)


@given(st.integers(0, 999), st.none() | st.floats(allow_nan=False))
def test_no_record_lives_longer_than_a_day(status: int, max_age_s: float | None) -> None:
    record = robots_record(status, b"", fetched_at_ms=1_000, max_age_s=max_age_s)
    assert 0 < record.lifetime_s <= MAX_LIFETIME_S
    assert record.fresh(1_000)
    assert not record.fresh(1_000 + int(MAX_LIFETIME_S * 1000))


def test_robots_record_from_a_clock_ahead_is_unused_until_then() -> None:
    """It would outlive its day by as much as the clock was ahead."""
    record = robots_record(200, b"", fetched_at_ms=3_600_000)
    assert record.fresh(3_600_000 - 60_000), "a minute is what clocks differ by"
    assert not record.fresh(0)


def test_a_cached_copy_serves_while_the_site_is_unreachable() -> None:
    old = robots_record(200, b"User-agent: *\nDisallow: /a\n", fetched_at_ms=0)
    down = robots_record(503, b"", fetched_at_ms=9_000)
    served = with_cached(down, old)
    assert isinstance(policy_of(served), Rules)
    assert (served.fetched_at_ms, served.lifetime_s) == (9_000, UNREACHABLE_LIFETIME_S)
    assert with_cached(down, None) is down
    assert with_cached(down, down) is down
    gone = robots_record(404, b"", fetched_at_ms=9_000)
    assert with_cached(gone, old) is gone


def test_a_cached_copy_serves_for_a_day_beyond_its_lifetime_and_no_longer() -> None:
    record = robots_record(200, b"User-agent: *\nDisallow: /a\n", fetched_at_ms=0)
    end_ms = int((MAX_LIFETIME_S + MAX_STALE_S) * 1000)
    served = 0
    for now_ms in range(int(MAX_LIFETIME_S * 1000), 3 * end_ms, 300_000):
        down = robots_record(503, b"", fetched_at_ms=now_ms)
        record = with_cached(down, record)
        if isinstance(policy_of(record), Unreachable):
            break
        served = now_ms
        assert now_ms + record.lifetime_s * 1000 <= end_ms
    assert 0 < served < end_ms
    assert now_ms >= end_ms


def test_a_record_survives_the_wire() -> None:
    for one, other in pairwise([robots_record(s, b"x", fetched_at_ms=s, detail="why") for s in (0, 200, 404)]):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=RobotsRecord) == one != other


@pytest.mark.parametrize(
    ("user_agent", "token"),
    [
        ("orb/0.1.0 (+https://example.org/bot)", "orb"),
        ("MyBot", "MyBot"),
        ("Mozilla/5.0 (compatible; My-Bot/2.1; +http://example.org/)", "My-Bot"),
        ("(+)", "*"),
    ],
)
def test_product_token(user_agent: str, token: str) -> None:
    assert product_token(user_agent) == token


@pytest.mark.parametrize(
    ("delay_s", "lifetime_s"), [(0.0, 300.0), (200.0, 400.0), (MAX_LIFETIME_S, 90_000.0), (200_000.0, 203_600.0)]
)
def test_lifetime_is_longer_than_the_hosts_delay(delay_s: float, lifetime_s: float) -> None:
    record = robots_record(200, b"", fetched_at_ms=0, max_age_s=0.0)
    assert outliving_delay(record, delay_s).lifetime_s == lifetime_s


def test_old_copy_does_not_outlive_its_end_for_a_long_delay() -> None:
    old = robots_record(200, b"User-agent: *\nDisallow: /a\n", fetched_at_ms=0)
    copy = with_cached(robots_record(503, b"", fetched_at_ms=170_000_000), old)
    assert outliving_delay(copy, MAX_LIFETIME_S).lifetime_s == 2_800.0
