import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.archive.cdxj import surt
from shared.domain.web.url import canonicalize

# What the Internet Archive's own library makes of these.
REFERENCE = [
    ("http://www.Example.org:8080/Foo/?b=2&a=1", "org,example:8080)/foo?a=1&b=2"),
    ("https://www2.example.org/a//b/", "org,example)/a/b"),
    ("http://example.org/", "org,example)/"),
    ("http://example.org/?", "org,example)/"),
    ("http://example.org/a?", "org,example)/a"),
    ("http://example.org/a%2Fb%7e%C3%A9", "org,example)/a/b~%c3%a9"),
    ("http://example.org/a%20b?q=%26x%3D1&&c", "org,example)/a%20b?&c&q=&x=1"),
    ("http://127.0.0.1:81/A", "1,0,0,127:81)/a"),
    ("http://[::1]/a", "::1)/a"),
    ("http://example.org/?PHPSESSID=0123456789abcdef0123456789abcdef&x=1", "org,example)/?x=1"),
    ("http://example.org/?b&a=&a=2&A=1", "org,example)/?a=&a=1&a=2&b"),
    ("http://example.org./x", "org,example)/x"),
    ("http://www.com/", "com)/"),
    ("http://xn--bcher-kva.example/", "example,xn--bcher-kva)/"),
    ("http://example.org/(S(4hqa0555fwsecu455xqckv45))/mileg.aspx", "org,example)/mileg.aspx"),
    ("http://example.org/a?sid=0123456789abcdef0123456789abcdef&x=1", "org,example)/a?x=1"),
    ("http://example.org/a/?x=1/", "org,example)/a?x=1/"),
    ("http://example.org/%25%32", "org,example)/%252"),
    ("http://example.org/a+b?c+d", "org,example)/a+b?c+d"),
    ("http://example.org/a?cfid=1234&cftoken=abc12345&x=1", "org,example)/a?x=1"),
    ("https://example.org:80/a", "org,example:80)/a"),
    ("https://example.org:443/a", "org,example)/a"),
    ("http://example.org/a%3Fb%23c", "org,example)/a?b%23c"),
    ("http://www.example.org/%2F/", "org,example)/"),
    ("http://wwww.example.org/", "org,example,wwww)/"),
    ("http://www1.www.example.org/", "org,example,www)/"),
]


@pytest.mark.parametrize(("url", "key"), REFERENCE)
def test_keys_are_those_that_replay_tools_look_up(url: str, key: str) -> None:
    canonical = canonicalize(url)
    assert canonical is not None
    assert surt(canonical) == key


@given(st.text(), st.text())
def test_every_key_is_one_printable_word(path: str, query: str) -> None:
    canonical = canonicalize(f"http://example.org/{path}?{query}")
    if canonical is not None:
        key = surt(canonical)
        assert key.isascii()
        assert key.isprintable()
        assert " " not in key
        assert key.startswith("org,example)/")
