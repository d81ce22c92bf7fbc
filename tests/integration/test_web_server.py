"""The test web keeps its promises: it serves what it computes, and its log tells the truth about times."""

import asyncio
import http.client
import io
import os
import signal
import socket
import time
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from tests.support.engines.etcd import stopped
from tests.support.web import log_judge
from tests.support.web.file_site import FileTree
from tests.support.web.hostile_site import BOMB_BYTES, GOOD, HOSTILE, MIB, RAW, UNENDING, HostileSite, bomb_blocks
from tests.support.web.http_server import TICK_S
from tests.support.web.reference_walk import links_of, reachable
from tests.support.web.synthetic_site import PageKind, SyntheticSite
from tests.support.web.web_server import Web

Serve = Callable[..., Web]


def get(connection: http.client.HTTPConnection, path: str) -> tuple[int, str, bytes]:
    connection.request("GET", path, headers={"User-Agent": "tester"})
    response = connection.getresponse()
    about = response.headers.get("Location") or response.headers.get("Content-Type") or ""
    return response.status, about, response.read()


def connect(host: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(host, timeout=30)


def test_hosts_are_separate_and_connections_are_kept(web: Serve) -> None:
    served = web(SyntheticSite(pages=10, hosts=2), SyntheticSite(pages=3, seed=2))
    assert len(served.origins) == 3
    assert served.origins_of(1) == served.origins[2:]
    for host in served.hosts:
        connection = connect(host)
        assert get(connection, "/robots.txt")[0] == 200
        assert get(connection, "/nothing-here")[0] == 404
        connection.close()
    log = served.wait_until(lambda log: len(log) == 6)
    assert log_judge.hosts(log) == list(served.hosts)
    assert len({exchange.connection for exchange in log}) == 3
    assert log_judge.user_agents(log) == {"tester": 6}


def test_the_log_brackets_what_the_client_saw(web: Serve) -> None:
    served = web(SyntheticSite(pages=3, latency_s=(0.05,), body_bytes=600_000))
    connection = connect(served.hosts[0])
    asked = time.monotonic_ns()
    get(connection, "/")
    read = time.monotonic_ns()
    time.sleep(0.03)
    again = time.monotonic_ns()
    get(connection, "/")
    connection.close()
    first, second = served.wait_until(lambda log: len(log) == 2)
    assert asked < first.begun_ns < first.ended_ns < read
    assert first.ended_ns - first.begun_ns >= 45_000_000
    assert first.complete
    assert first.sent_bytes > 600_000
    assert second.begun_ns > again
    # The gap a client keeps is never measured shorter than it was.
    assert log_judge.smallest_gap([first, second], served.hosts[0]) >= (again - read) * 1e-9


@pytest.mark.parametrize("size", [2_000, 600_000])
def test_what_a_client_has_read_is_in_the_log(web: Serve, size: int) -> None:
    served = web(SyntheticSite(pages=3, body_bytes=size))
    connection = connect(served.hosts[0])
    for number in range(200):
        get(connection, "/")
        assert len(served.log()) == number + 1
    connection.close()


def test_an_exchange_broken_off_by_the_client_is_logged_as_such(web: Serve) -> None:
    served = web(SyntheticSite(pages=3, latency_s=(60.0,)))
    connection = connect(served.hosts[0])
    connection.request("GET", "/")
    connection.close()
    (exchange,) = served.wait_until(lambda log: len(log) == 1)
    assert not exchange.complete


def test_pages_beyond_those_that_may_be_answered_wait_until_more_may(web: Serve) -> None:
    served = web(SyntheticSite(pages=9, hosts=3))
    served.answer(2)
    one, two, three = (connect(host) for host in served.hosts)
    assert [get(connection, "/1/0.html")[0] for connection in (one, two)] == [404, 404]
    three.request("GET", "/1/0.html")
    assert get(one, "/robots.txt")[0] == 200
    two.request("GET", "/1/0.html")
    assert get(one, "/robots.txt")[0] == 200
    served.wait_until(lambda log: len(log) == 4)
    served.answer(1)
    served.wait_until(lambda log: len(log) == 5)
    assert get(one, "/robots.txt")[0] == 200
    assert len(served.wait_until(lambda log: len(log) >= 6)) == 6
    served.answer(None)
    assert [connection.getresponse().status for connection in (two, three)] == [404, 404]
    assert get(one, "/1/0.html")[0] == 404
    for connection in (one, two, three):
        connection.close()


def test_the_web_ends_when_its_owner_closes_it(web: Serve) -> None:
    served = web(SyntheticSite(pages=3))
    assert served.process.stdin is not None
    served.process.stdin.close()
    assert served.process.wait(30) == 0


def test_the_web_is_not_stopped_by_a_signal_to_the_group_of_the_test(web: Serve) -> None:
    served = web(SyntheticSite(pages=3))
    assert os.getpgid(served.process.pid) != os.getpgid(0)
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(30) == 0


def crawl(served: Web, site: SyntheticSite) -> set[str]:
    """All pages of an obedient, retrying crawl by hand."""
    connections = {host: connect(host) for host in served.hosts}
    waiting, met, stored = deque([served.origins[0] + "/"]), {served.origins[0] + "/"}, set()
    while waiting:
        url = waiting.popleft()
        host, path = url.removeprefix("http://").split("/", 1)
        if path.startswith("private/"):
            continue
        status, about, body = get(connections[host], "/" + path)
        while status == 500:
            status, about, body = get(connections[host], "/" + path)
        found = {about} if status in (301, 302) else set()
        if status == 200:
            stored.add(url)
            text = body.decode()
            found = {part.split('"')[0] for part in text.split('href="')[1:]}
        for link in found:
            target = link if link.startswith("http") else f"http://{host}{link}"
            if target not in met:
                met.add(target)
                waiting.append(target)
    for connection in connections.values():
        connection.close()
    return stored


def test_a_crawl_of_a_synthetic_site_stores_exactly_the_expected_pages(web: Serve) -> None:
    site = SyntheticSite(
        pages=400, hosts=5, seed=9, missing=50, flaky=50, flaky_failures=2, redirects=50, loops=30, private=50
    )
    kinds = {site.kind(page) for page in range(site.pages)}
    assert kinds == set(PageKind)
    served = web(site)
    expected = site.expected_pages(served.origins)
    assert 200 < len(expected) < 400
    assert crawl(served, site) == set(expected)
    log = served.log()
    assert log_judge.disallowed_requested(log, {host: site.robots() for host in served.hosts}) == []
    assert any(exchange.status == 500 for exchange in log)


def test_depths_of_a_synthetic_site_are_least_depths() -> None:
    site = SyntheticSite(pages=500, hosts=3, redirects=100, missing=30)
    origins = ["http://a", "http://b", "http://c"]
    everything = site.expected_pages(origins)
    for limit in range(4):
        assert site.expected_pages(origins, limit) == {u: d for u, d in everything.items() if d <= limit}
    deeper = site.expected_pages(origins, redirect_depth=1)
    assert set(deeper) == set(everything)
    assert all(deeper[url] >= everything[url] for url in deeper)
    assert site.expected_pages(origins, 0) == {"http://a/": 0}


def test_a_large_synthetic_site_is_all_reachable_without_faults() -> None:
    site = SyntheticSite(pages=20_000, hosts=7)
    assert len(site.expected_pages([f"http://{n}" for n in range(7)])) == 20_000
    assert site.page_at(site.path(19_999)) == 19_999
    assert site.page_at("/1/2.html") is None
    assert site.page_at("/0/20000.html") is None


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "sub").mkdir(parents=True)
    (root / "index.html").write_text(
        '<a href="a b.html">1</a><A HREF="sub">2</A><a href="SUB/x.html">3</a><!-- <a href="hidden.html"> -->'
        '<a href="http://elsewhere/">4</a><a href="#top">5</a><a href="no.html" rel="nofollow">6</a>'
        '<a href="closed/x.html">7</a><a href="data.bin">8</a><a href="mailto:x@y">9</a><a href="../../up.html">10</a>'
    )
    (root / "a b.html").write_text('<base href="sub/"><a href="link.html?q=ü#f">x</a>')
    (root / "sub" / "index.html").write_bytes("<meta charset=euc-kr><a href='한.html'>x</a>".encode("euc-kr"))
    (root / "sub" / "한.html").write_text("<meta http-equiv=refresh content='0; URL=../last.html'>")
    (root / "last.html").write_text("<title>last</title>")
    (root / "no.html").write_text("<title>not followed</title>")
    (root / "data.bin").write_bytes(b"<a href='no.html'>")
    (root / "sub" / "link.html").symlink_to("../last.html")
    return root


def test_the_walk_finds_what_a_person_would(tree: Path) -> None:
    walk = reachable(tree, "/", robots="User-agent: *\nDisallow: /closed/\n")
    korean = "/sub/%ED%95%9C.html"
    assert walk.documents == {
        "/": 0,
        "/a%20b.html": 1,
        "/data.bin": 1,
        "/sub/": 1,
        "/sub/link.html?q=%C3%BC": 2,
        korean: 2,
        "/last.html": 3,
    }
    assert walk.html == set(walk.documents) - {"/data.bin"}
    assert walk.redirects == {"/sub": 1}
    assert walk.missing == {"/SUB/x.html": 1, "/up.html": 1}
    assert walk.disallowed == {"/closed/x.html"}
    assert "/no.html" in reachable(tree, "/", obey_nofollow=False).documents
    assert set(reachable(tree, "/", max_depth=1).documents) == {"/", "/a%20b.html", "/data.bin", "/sub/"}


def test_the_tree_is_served_as_the_walk_expects_it(web: Serve, tree: Path) -> None:
    robots = "User-agent: *\nDisallow: /closed/\n"
    served = web(FileTree(str(tree), robots))
    walk = reachable(tree, "/", robots=robots)
    connection = connect(served.hosts[0])
    for path in walk.documents:
        status, kind, _ = get(connection, path)
        assert (status, kind) == (200, "text/html" if path in walk.html else "application/octet-stream")
    for path in walk.missing:
        assert get(connection, path)[0] == 404
    assert get(connection, "/sub")[:2] == (301, "/sub/")
    assert get(connection, "/%2e%2e/%2e%2e/etc/passwd")[0] == 404
    connection.close()


def test_links_are_found_in_bad_html() -> None:
    assert links_of(b"<a href=x><a href='y'<a href=\"z\">", "/d/") >= {"/d/x", "/d/y"}
    assert links_of(b"<a href='http://[bad'>", "/") == set()
    assert links_of(b"<meta charset=nothing-known><a href=x>", "/") == {"/x"}


def test_the_bomb_unpacks_to_zeros_and_is_small_on_the_wire() -> None:
    start, block, times = bomb_blocks()
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    unpacked = unpacker.decompress(start + block * 5)
    assert unpacked == b"\0" * (5 * MIB)
    assert times * MIB == BOMB_BYTES
    assert len(block) * times < 20 * MIB


def test_hostile_answers_are_sent_and_the_good_pages_come_through(web: Serve) -> None:
    served = web(HostileSite())
    name, port = served.hosts[0].split(":")
    for path in HOSTILE:
        with socket.create_connection((name, int(port)), timeout=30) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            if path == "/silent":
                continue
            try:
                first = sock.recv(65536)
            except ConnectionResetError:
                assert path == "/reset"
            else:
                assert bool(first) == (path != "/nothing"), path
    connection = connect(served.hosts[0])
    assert all(get(connection, path)[0] == 200 for path in ("/", *GOOD))
    connection.close()
    log = served.wait_until(lambda log: {exchange.path for exchange in log} >= {*HOSTILE, *GOOD, "/"})
    assert log_judge.requested(log)[f"{served.origins[0]}/endless"] == 1


class Sent:
    """What `http.client` needs of a socket on which everything has come."""

    def __init__(self, sent: bytes) -> None:
        self._sent = sent

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._sent)


def leaves_the_connection(sent: bytes) -> bool:
    """Whether a client of these bytes sends no further request on their connection."""
    response = http.client.HTTPResponse(cast(socket.socket, Sent(sent)))
    try:
        response.begin()
        closes = response.will_close
        response.read()
    except (http.client.HTTPException, OverflowError):  # not HTTP, cut, or a chunk longer than any memory
        return True
    return closes


def test_raw_response_prevents_requests_on_the_closing_connection() -> None:
    async def collected(path: str) -> bytes:
        return b"".join([piece async for piece in RAW[path]()])

    ended = [path for path in RAW if path not in UNENDING]
    assert [path for path in ended if not leaves_the_connection(asyncio.run(collected(path)))] == []
    assert not leaves_the_connection(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")


def wait_past_timers(since_ns: int, seconds: float) -> None:
    """Wait until every timer of the web that was due within `seconds` of `since_ns` has run out."""
    while time.monotonic_ns() < since_ns + seconds * 1e9:
        time.sleep(0.005)


def test_web_log_client_gone_while_web_stopped_ends_before_leaving(web: Serve) -> None:
    """Else a crawler that released a host, and waited, would seem to have asked again too soon.

    The stop outlasts the web's timers. It interrupts a wait of its loop, which returns nothing: timers run first.
    """
    served = web(SyntheticSite(pages=3))
    coming = connect(served.hosts[0])
    for number in range(8):
        leaving = connect(served.hosts[0])
        assert get(leaving, "/robots.txt")[0] == 200
        with stopped(served.process.pid):
            leaving.request("GET", "/")
            leaving.close()
            left_ns = time.monotonic_ns()
            coming.request("GET", "/")
            wait_past_timers(left_ns, 3 * TICK_S)
        response = coming.getresponse()
        assert (response.status, bool(response.read())) == (200, True)
        log = served.wait_until(lambda log, ended=3 * (number + 1): len(log) == ended)  # type: ignore[misc]
        broken, answered = sorted((one for one in log[-3:] if one.path == "/"), key=lambda one: one.complete)
        assert (broken.complete, answered.complete) == (False, True)
        assert broken.ended_ns < left_ns < answered.begun_ns
    coming.close()


def test_web_log_delayed_answer_after_client_left_is_not_complete(web: Serve) -> None:
    """The answer is due when the web goes on, which its client left while the web was stopped."""
    served = web(SyntheticSite(pages=3, latency_s=(0.3,)))
    for _ in range(3):
        leaving = connect(served.hosts[0])
        assert get(leaving, "/robots.txt")[0] == 200
        before = len(served.log())
        leaving.request("GET", "/")
        served.log()
        with stopped(served.process.pid):
            leaving.close()
            left_ns = time.monotonic_ns()
            wait_past_timers(left_ns, 0.4)
        broken = served.wait_until(lambda log, seen=before: len(log) > seen)[-1]  # type: ignore[misc]
        assert not broken.complete
        assert broken.ended_ns < left_ns
