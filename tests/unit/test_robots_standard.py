"""RFC 9309 as data: each case has the section that it comes from."""

from typing import Final

import pytest

from shared.domain.web.robots import (
    MAX_ROBOTS_BYTES,
    MAX_ROBOTS_HOPS,
    AllowAll,
    Rules,
    Unreachable,
    policy_of,
    product_token,
    robots_record,
)
from shared.domain.web.robots_rules import rules_for
from shared.domain.web.url import canonicalize

SITE: Final = "https://www.example.com"

SIMPLE: Final = """User-Agent: *
Disallow: *.gif$
Disallow: /example/
Allow: /publications/

User-Agent: foobot
Disallow:/
Allow:/example/page.html
Allow:/example/allowed.gif

User-Agent: barbot
User-Agent: bazbot
Disallow: /example/page.html

User-Agent: quxbot
"""
"""§5.1, with its end of file."""

LONGEST: Final = """User-Agent: foobot
Allow: /example/page/
Disallow: /example/page/disallowed.gif
"""

MERGED: Final = """user-agent: ExampleBot
disallow: /foo
disallow: /bar

user-agent: ExampleBot
disallow: /baz
"""

PREFERRED: Final = """user-agent: *
disallow: /foo
disallow: /bar

user-agent: ExampleBot
disallow: /baz
"""

# Section, robots.txt, product token, what is allowed, what is not.
ACCESS: Final = (
    (
        "§5.1",
        SIMPLE,
        "other",
        "/ /publications/ /publications/a.html /a.gif?b",
        "/a.gif /b/c.gif /example/ /example/page.html",
    ),
    ("§5.1", SIMPLE, "foobot", "/example/page.html /example/allowed.gif", "/ /publications/ /example/ /a.gif"),
    ("§5.1", SIMPLE, "barbot", "/ /a.gif /example/ /publications/", "/example/page.html"),
    ("§5.1", SIMPLE, "bazbot", "/ /a.gif /example/ /publications/", "/example/page.html"),
    ("§5.1", SIMPLE, "quxbot", "/ /a.gif /example/page.html", ""),
    ("§5.2", LONGEST, "foobot", "/example/page/ /example/page/allowed.gif /", "/example/page/disallowed.gif"),
    ("§2.2.1", MERGED, "examplebot", "/ /fo", "/foo /bar /baz /foobar"),
    ("§2.2.1", PREFERRED, "examplebot", "/foo /bar", "/baz"),
    ("§2.2.1", PREFERRED, "other", "/baz", "/foo /bar"),
    ("§2.2.1", "USER-AGENT: eXAMPLEbOT\nDISALLOW: /a\n", "examplebot", "/", "/a"),
    ("§2.2.1", "user-agent: another\ndisallow: /\n", "examplebot", "/ /a", ""),
    ("§2.2.1", "", "examplebot", "/ /a", ""),
    ("§2.2.1", "user-agent: *\nuser-agent: ExampleBot\ndisallow: /a\n", "examplebot", "/", "/a"),
    ("§2.2.2", "disallow: /a\nuser-agent: *\ndisallow: /b\n", "orb", "/a", "/b"),
    ("§2.2.2", "user-agent: *\ndisallow: /a/B\n", "orb", "/A/B /a/b", "/a/B /a/Bc"),
    ("§2.2.2", "user-agent: *\nallow: /a\ndisallow: /a\n", "orb", "/a /a/b", ""),
    ("§2.2.2", "user-agent: *\ndisallow: /a\nallow: /a\n", "orb", "/a /a/b", ""),
    ("§2.2.2", "user-agent: *\n", "orb", "/ /a", ""),
    ("§2.2.2", "user-agent: *\ndisallow: /\n", "orb", "/robots.txt", "/ /robots.txt2 /a"),
    ("§2.2.2", "user-agent: *\ndisallow: /foo/bar?baz=quz\n", "orb", "/foo/bar /foo/bar?baz=", "/foo/bar?baz=quz"),
    (
        "§2.2.2",
        "user-agent: *\ndisallow: /foo/bar?baz=https://foo.bar\n",
        "orb",
        "/foo/bar",
        "/foo/bar?baz=https%3A%2F%2Ffoo.bar /foo/bar?baz=https://foo.bar",
    ),
    (
        "§2.2.2",
        "user-agent: *\ndisallow: /foo/bar?baz=https%3A%2F%2Ffoo.bar\n",
        "orb",
        "/foo/bar",
        "/foo/bar?baz=https%3A%2F%2Ffoo.bar /foo/bar?baz=https://foo.bar",
    ),
    (
        "§2.2.2",
        "user-agent: *\ndisallow: /foo/bar/ツ\n",
        "orb",
        "/foo/bar/",
        "/foo/bar/%E3%83%84 /foo/bar/ツ /foo/bar/%e3%83%84",
    ),
    ("§2.2.2", "user-agent: *\ndisallow: /foo/bar/%E3%83%84\n", "orb", "/foo/bar/", "/foo/bar/%E3%83%84 /foo/bar/ツ"),
    ("§2.2.2", "user-agent: *\ndisallow: /foo/bar/%62%61%7A\n", "orb", "/foo/bar/", "/foo/bar/%62%61%7A /foo/bar/baz"),
    ("§2.2.2", "user-agent: *\ndisallow: /a%2Fb\n", "orb", "/a/b", "/a%2Fb /a%2fb"),
    (
        "§2.2.3",
        "user-agent: * # all\n# a line\ndisallow: / # in line\nallow: /this/path/exactly$\nallow: /this/*/too\n",
        "orb",
        "/this/path/exactly /this/1/2/too/3",
        "/this/path/exactly/not /this /this/too",
    ),
    (
        "§2.2.3",
        "user-agent: *\ndisallow: /path/file-with-a-%2A.html\n",
        "orb",
        "/path/file-with-a-b.html",
        "/path/file-with-a-*.html /path/file-with-a-%2A.html",
    ),
    (
        "§2.2.3",
        "user-agent: *\ndisallow: /path/foo-%24\n",
        "orb",
        "/path/foo- /path/foo",
        "/path/foo-$ /path/foo-%24 /path/foo-$x",
    ),
    ("§2.2.3", "user-agent: *\ndisallow: /a$b\n", "orb", "/a", "/a$b /a$bc"),
    ("§2.2.3", "user-agent: *\ndisallow: /a**b*$\n", "orb", "/a", "/ab /a/b/c"),
    ("§2.2.4", "user-agent: orb\nsitemap: /s.xml\nuser-agent: other\ndisallow: /a\n", "orb", "/", "/a"),
    ("§2.2.4", "user-agent: orb\ndisallow: /a\nsitemap: /s.xml\ndisallow: /b\n", "orb", "/", "/a /b"),
    ("§2.2 EOL", "user-agent: *\rdisallow: /a\r\ndisallow: /b\ndisallow: /c", "orb", "/", "/a /b /c"),
    ("§2.2 WS", " \tuser-agent\t: \t* \n\tdisallow \t:\t/a \t\n", "orb", "/", "/a"),
    ("§2.2 group", "user-agent: orb\n\n\n\nuser-agent: other\n\n\ndisallow: /a\n", "orb", "/", "/a"),
    ("§2.2 empty-pattern", "user-agent: *\ndisallow:\nallow:\n", "orb", "/ /a", ""),
    ("§2.3 BOM", "\ufeffuser-agent: *\ndisallow: /a\n", "orb", "/", "/a"),
    ("§2.3.1.5", "user-agent: *\n\0\x01<html>\ndisallow: /a\nallow /\x7f\n:::\n=\ndisallow: /b\n", "orb", "/", "/a /b"),
)


@pytest.mark.parametrize(("section", "text", "token", "allowed", "forbidden"), ACCESS)
def test_rules_of_rfc_9309_allow_and_forbid(section: str, text: str, token: str, allowed: str, forbidden: str) -> None:
    rules = rules_for(text.encode(), token)
    for paths, expected in ((allowed, True), (forbidden, False)):
        for path in paths.split():
            url = canonicalize(SITE + path)
            assert url is not None
            assert rules.allows(url) is expected, f"{section}: {path}"


# Section, status of the answer (0: none came), what follows for the site.
RESULTS: Final = (
    *[("§2.3.1.1", status, Rules) for status in (200, 203, 206, 299)],
    *[("§2.3.1.2", status, AllowAll) for status in (301, 302, 303, 307, 308)],
    *[("§2.3.1.3", status, AllowAll) for status in (400, 401, 403, 404, 410, 418, 451, 499)],
    *[("§2.3.1.4", status, Unreachable) for status in (500, 501, 502, 503, 504, 599)],
    ("§2.3.1.4, no answer", 0, Unreachable),
    ("RFC 6585 §4: the site asks to wait", 429, Unreachable),
)


@pytest.mark.parametrize(("section", "status", "kind"), RESULTS)
def test_access_results_of_rfc_9309_have_their_meaning(section: str, status: int, kind: type) -> None:
    record = robots_record(status, b"user-agent: *\ndisallow: /\n", fetched_at_ms=0)
    assert isinstance(policy_of(record), kind), section


def test_bounds_of_rfc_9309_are_kept() -> None:
    """§2.3.1.2: at least five redirects. §2.4: at most 24 hours. §2.5: at least 500 KiB are parsed."""
    assert MAX_ROBOTS_HOPS >= 5
    assert robots_record(200, b"", fetched_at_ms=0, max_age_s=1e9).lifetime_s == 86_400
    assert MAX_ROBOTS_BYTES >= 500 * 1024
    text = b"user-agent: *\n" + b"# filler\n" * (499 * 1024 // 9) + b"disallow: /a\n"
    policy = policy_of(robots_record(200, text, fetched_at_ms=0))
    assert isinstance(policy, Rules)
    assert not policy.rules.allows(f"{SITE}/a", "orb")


def test_product_token_is_that_of_the_identification_string() -> None:
    """§2.2.1: the example of an identification string."""
    identification = "Mozilla/5.0 (compatible; ExampleBot/0.1; https://www.example.com/bot.html)"
    assert product_token(identification).lower() == "examplebot"
