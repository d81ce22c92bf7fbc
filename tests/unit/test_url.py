import random
import string
from collections import Counter
from urllib.parse import unquote_to_bytes, urlsplit

import pytest
from ada_url import normalize_url
from hypothesis import assume, example, given
from hypothesis import strategies as st

from shared.domain.ids import MAX_PARTITIONS
from shared.domain.web import url as urls
from shared.domain.web.url import (
    MAX_URL_CHARS,
    Location,
    Resolver,
    canonicalize,
    fingerprint,
    host_of,
    locate,
    origin_of,
    partition_of,
    registrable_domain,
    scheme_of,
)

# fmt: off
PIECES = st.sampled_from([
    "a", "B", "~", "%7E", "%7e", "%2F", "%2f", "%", "%%", "%2", "%25", "%41", ".", "..", "%2e", "/", "//", "\\", "?",
    "#", "&", "=", "+", ";", ":", "@", "é", "%c3%a9", "日", "'", '"', "|", "[", "]", "{", "<", "*", " ", "\t", "\x00",
])
HOSTS = st.sampled_from([
    "example.org", "EXAMPLE.org", "bücher.example", "127.1", "[::1]", "a.b.", "a_b.test", "h:8080",
])
PREFIXES = st.sampled_from(["http:", "https:", "mailto:", "//h/", "?", "#", "/", "../", "./"])
# fmt: on
TAILS = st.lists(PIECES, max_size=12).map("".join)
URLS = st.builds("{}://{}/{}".format, st.sampled_from(["http", "HTTPS", "https"]), HOSTS, TAILS)
PAGES = URLS.map(canonicalize).filter(lambda url: url is not None)
REFERENCES = st.one_of(
    TAILS,
    URLS,
    st.builds("{}{}".format, PREFIXES, TAILS),
)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("HTTP://Example.ORG", "http://example.org/"),
        ("http://example.org:80/", "http://example.org/"),
        ("https://example.org:443/a", "https://example.org/a"),
        ("https://example.org:80/a", "https://example.org:80/a"),
        ("http://example.org:0080/a", "http://example.org/a"),
        ("http://example.org/a/./b/../c/%2E%2e/d", "http://example.org/a/d"),
        ("http://example.org/../../a", "http://example.org/a"),
        ("http://example.org/#top", "http://example.org/"),
        ("http://example.org/a?b#c?d#e", "http://example.org/a?b"),
        ("http://example.org/%7Euser/%e4%bD?q=%7e%3d", "http://example.org/~user/%E4%BD?q=~%3D"),
        ("http://example.org/a b\u00e9", "http://example.org/a%20b%C3%A9"),
        ("  http://example.org/a\n/b\t ", "http://example.org/a/b"),
        ("http:\\\\example.org\\a", "http://example.org/a"),
        ("http://B\u00fccher.example/", "http://xn--bcher-kva.example/"),
        ("http://\u65e5\u672c\u8a9e\u3002jp/", "http://xn--wgv71a119e.jp/"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("http://[2001:DB8:0:0::1]/", "http://[2001:db8::1]/"),
        ("http://[::ffff:1.2.3.4]/", "http://[::ffff:102:304]/"),
        ("http://example.org/a%2Fb", "http://example.org/a%2Fb"),
    ],
)
def test_equivalent_spellings_have_one_canonical_form(written: str, canonical: str) -> None:
    assert canonicalize(written) == canonical
    assert canonicalize(canonical) == canonical


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://example.org/", "https://example.org/"),
        ("http://example.org/", "http://example.org/?"),
        ("http://example.org/a", "http://example.org/a/"),
        ("http://example.org/a", "http://example.org/A"),
        ("http://example.org/a/b", "http://example.org/a//b"),
        ("http://example.org/a%2Fb", "http://example.org/a/b"),
        ("http://example.org/a%3Fb", "http://example.org/a?b"),
        ("http://example.org/?a=1&b=2", "http://example.org/?b=2&a=1"),
        ("http://example.org/?a=%26", "http://example.org/?a=&"),
        ("http://example.org/?a=+", "http://example.org/?a=%20"),
        ("http://example.org/?a", "http://example.org/?a="),
        ("http://example.org/", "http://www.example.org/"),
        ("http://example.org/", "http://example.org./"),
        ("http://example.org/%2%35", "http://example.org/%25"),
        ("http://example.org/%%34%31", "http://example.org/%41"),
        ("http://example.org/;a", "http://example.org/%3Ba"),
        ("http://example.org/index.html", "http://example.org/"),
    ],
)
def test_what_a_server_may_tell_apart_is_never_merged(one: str, other: str) -> None:
    first, second = locate(one), locate(other)
    assert first is not None
    assert second is not None
    assert first.url != second.url
    assert first.fingerprint != second.fingerprint


@pytest.mark.parametrize(
    "refused",
    [
        "",
        "/relative",
        "example.org",
        "ftp://example.org/",
        "mailto:someone@example.org",
        "javascript:void(0)",
        "data:text/html,<p>",
        "http://",
        "http://user@example.org/",
        "http://user:secret@example.org/",
        "http://a..b/",
        "http://./",
        "http://{{host}}/",
        "http://a*b.example/",
        "http://a b/",
        "http://256.1.1.1/",
        "http://[::1/",
        "http://example.org:0/",
        "http://example.org:65536/",
        "http://" + "a" * 64 + ".example/",
        "http://" + "a." * 127 + "org/",
        "http://example.org/\ud800",
        "http://example.org/" + "a" * MAX_URL_CHARS,
    ],
)
def test_what_cannot_be_crawled_has_no_canonical_form(refused: str) -> None:
    assert canonicalize(refused) is None
    assert locate(refused) is None


def test_longest_name_is_taken_with_port_and_trailing_dot() -> None:
    name = "a." * 125 + "org"
    assert len(name) == 253
    assert canonicalize(f"http://{name}.:8080/") == f"http://{name}.:8080/"


def test_relative_references_resolve_against_the_base() -> None:
    base = "http://example.org/a/b?c"
    assert canonicalize("../d?e", base) == "http://example.org/d?e"
    assert canonicalize("", base) == base
    assert canonicalize("#f", base) == base
    assert canonicalize("?g", base) == "http://example.org/a/b?g"
    assert canonicalize("//other.example", base) == "http://other.example/"
    assert canonicalize("a", "not a url") is None


@given(st.one_of(URLS, st.text()))
@example("http://a/%2%35")
@example("http://a/%%34%31")
@example("http://a/%2%2e")
def test_canonicalisation_is_idempotent(url: str) -> None:
    canonical = canonicalize(url)
    assume(canonical is not None)
    assert canonical is not None
    assert canonicalize(canonical) == canonical
    assert "#" not in canonical
    assert canonical.isascii()
    assert canonical.isprintable()


PLAIN_PIECES = st.sampled_from([*"aZ09-._~!$&'()*+,;=:@/?", "..", "/.", "/..", "xn--", "xn--a", "//", "/~", "%41"])
PLAIN = st.builds(
    "{}://{}/{}".format,
    st.sampled_from(["http", "https"]),
    st.sampled_from(["a.example", "a-.example", "-a.b--c.example", "xn--a.example", "xn--bcher-kva.example", "a.xn--a"])
    | st.sampled_from(["127.0.0.ab", "0x7f.abc", "0x7f.de", "1.example", "a..example", "a.example.", "a.example1"])
    | st.sampled_from([f"{'a' * 63}.example", f"{'a' * 64}.example", ".".join(["abcdefg"] * 32)]),
    st.lists(PLAIN_PIECES, max_size=10).map("".join),
)


@given(PLAIN)
@example("http://a.example/'?'")
@example("http://a.example/.?")
@example("http://a.example/a/.")
@example("https://a.example/a/.%2e/")
@example("http://a.example/\n")
@example("http://a.example/a|b")
def test_urls_that_look_canonical_are_what_the_parser_makes_of_them(url: str) -> None:
    made = canonicalize(url)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(urls, "_PLAIN", lambda _: None)
        assert made == canonicalize(url)


@given(PAGES)
def test_canonical_form_asks_the_server_for_the_same_octets(url: str) -> None:
    """Re-escaping every escaped octet, in either case, and adding a fragment leads back to the same URL."""
    scrambled = "".join(
        f"%{ord(char):02x}" if char in string.ascii_letters + string.digits + "~_-" else char
        for char in url[len(origin_of(url)) :]
    )
    if "%" not in url:
        assert canonicalize(origin_of(url) + scrambled + "#x") == url
    assert unquote_to_bytes(urlsplit(url).path).startswith(b"/")


@given(PAGES, PAGES)
def test_fingerprints_are_equal_exactly_for_equal_canonical_urls(one: str, other: str) -> None:
    assert (fingerprint(one) == fingerprint(other)) == (one == other)
    assert len(fingerprint(one)) == 16


def _as_served(url: str) -> tuple[bytes, bytes | None]:
    """Path and query as a server that decodes once sees them."""
    path, mark, query = url[len(origin_of(url)) :].partition("?")
    return unquote_to_bytes(path), unquote_to_bytes(query) if mark else None


@given(URLS)
def test_canonicalisation_never_changes_what_a_server_decodes(url: str) -> None:
    """The WHATWG serialisation and the canonical form decode to the same path and query, and cut at the same places."""
    canonical = canonicalize(url)
    assume(canonical is not None)
    assert canonical is not None
    plain = normalize_url(url).partition("#")[0]
    assert _as_served(canonical) == _as_served(plain)
    for delimiter in "/?&=;+":
        assert canonical.count(delimiter) == plain.count(delimiter)


@given(PAGES, REFERENCES)
@example("http://example.org/a?b", "http:")
@example("http://example.org/a?b", "http:?c")
@example("http://example.org/a/b?c/d", "e #f")
@example("http://example.org/a/b?c/d", "")
@example("http://example.org/a/b?c/d", " #")
@example("http://example.org/a/b?c/d", "\t?e")
@example("http://example.org/a/b", "c" * 600 + "#d")
@example("http://example.org/a/b", "c#" + "d" * MAX_URL_CHARS)
def test_shared_results_of_a_resolver_equal_plain_resolution(base: str, reference: str) -> None:
    resolver = Resolver(base)
    assert resolver.resolve(reference) == locate(reference, base)
    assert resolver.resolve(reference) == locate(reference, base)


@pytest.mark.parametrize(
    ("url", "scheme", "origin", "host"),
    [
        ("http://example.org/a", "http", "http://example.org", "example.org"),
        ("https://example.org/a", "https", "https://example.org", "example.org"),
        ("https://example.org:8443/", "https", "https://example.org:8443", "example.org:8443"),
        ("http://example.org./", "http", "http://example.org.", "example.org"),
        ("http://example.org.:81/", "http", "http://example.org.:81", "example.org:81"),
        ("http://[::1]:81/", "http", "http://[::1]:81", "[::1]:81"),
        ("http://[::1]/", "http", "http://[::1]", "[::1]"),
    ],
)
def test_host_is_the_politeness_key(url: str, scheme: str, origin: str, host: str) -> None:
    assert (scheme_of(url), origin_of(url), host_of(url)) == (scheme, origin, host)
    located = locate(url)
    assert located is not None
    assert located == Location(url, host, fingerprint(url))


@pytest.mark.parametrize(
    ("host", "domain"),
    [
        ("example.org", "example.org"),
        ("a.b.example.org:8080", "example.org"),
        ("www.example.co.uk", "example.co.uk"),
        ("someone.github.io", "someone.github.io"),
        ("github.io", "github.io"),
        ("www.ck", "www.ck"),
        ("a.xn--p1ai", "a.xn--p1ai"),
        ("x.a.xn--p1ai", "a.xn--p1ai"),
        ("localhost:81", "localhost"),
        ("127.0.0.1:81", "127.0.0.1"),
        ("[2001:db8::1]:81", "[2001:db8::1]"),
        ("[::1]", "[::1]"),
    ],
)
def test_registrable_domain(host: str, domain: str) -> None:
    assert registrable_domain(host) == domain


def test_hosts_of_one_domain_share_a_partition_and_domains_spread() -> None:
    for partitions in (1, 3, 64, MAX_PARTITIONS):
        assert partition_of("www.example.org:81", partitions) == partition_of("example.org", partitions)
    names = random.Random(1).sample(range(10**9), 6400)
    taken = [partition_of(f"d{name}.example", 64) for name in names]
    assert set(taken) == set(range(64))
    assert max(Counter(taken).values()) < 200


def test_partition_is_stable_across_releases() -> None:
    """A cluster's partition count and hash never change: a known value guards the formula."""
    assert [partition_of(host, 64) for host in ("example.org", "127.0.0.1", "[::1]")] == [2, 51, 41]
