"""Request heads are what goes out; nothing can be smuggled into one."""

import pytest

from workers.fetch.head import Target, locate, request_head, response_head


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://example.org", Target("http", "example.org", "/")),
        ("HTTP://EXAMPLE.org:80/a?b#c", Target("http", "example.org", "/a?b")),
        ("https://example.org:443/", Target("https", "example.org", "/")),
        ("https://example.org:80/", Target("https", "example.org:80", "/")),
        ("http://example.org?q=@/", Target("http", "example.org", "/?q=@/")),
        ("http://[::1]:8080/", Target("http", "[::1]:8080", "/")),
        ("http://user:p%40ss@example.org/", Target("http", "example.org", "/", "user:p%40ss")),
    ],
)
def test_urls_are_taken_apart(url: str, target: Target) -> None:
    assert locate(url) == target


@pytest.mark.parametrize(
    "url",
    ["ftp://example.org/", "file:///etc/passwd", "//example.org/", "http:///path", "http://a/ b", "http://a/\r\nX: y",
     "http://a/\x00", "http://caf\xe9.example/", "", "http://"],
)  # fmt: skip
def test_what_is_not_an_http_url_is_not_located(url: str) -> None:
    assert locate(url) is None


@pytest.mark.parametrize(
    ("authority", "host_port", "host"),
    [("a.example", "a.example:80", "a.example"), ("[::1]", "[::1]:80", "[::1]"), ("[::1]:8", "[::1]:8", "[::1]")],
)
def test_host_and_port_are_told_apart(authority: str, host_port: str, host: str) -> None:
    target = Target("http", authority, "/")
    assert (target.host_port, target.host) == (host_port, host)


@pytest.mark.parametrize(
    "header", [("X", "a\r\nY: b"), ("X", "a\nb"), ("X", "\x00"), ("X:", "a"), ("X Y", "a"), ("", "a")]
)
def test_a_header_that_would_break_the_head_is_refused(header: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        request_head("GET", Target("http", "a", "/"), (header,), None)


def test_a_method_that_is_not_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="not a token"):
        request_head("GET / HTTP/1.1\r\nX:", Target("http", "a", "/"), (), None)


def test_an_http2_head_is_written_in_http1_form() -> None:
    head = response_head([b"HTTP/2 404 \r\n", b"content-type: text/html\r\n", b"\r\n"])
    assert head is not None
    assert (head.version, head.status) == ("2", 404)
    assert head.raw == b"HTTP/1.1 404 Not Found\r\ncontent-type: text/html\r\n\r\n"


def test_an_unfinished_head_after_an_interim_one_is_no_head() -> None:
    interim = [b"HTTP/1.1 200 Connection established\r\n", b"\r\n"]
    assert response_head([*interim, b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"]) is None
    assert response_head([b"HTTP/1.1 103 Early\r\n", b"\r\n"]) is None
    assert response_head([]) is None
