"""What goes out, what comes back, where it may go: the fetcher against real sockets."""

import asyncio
import socket
import threading
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from shared.domain.web.fetch import Answer, FailureKind, FetchFailed, FetchLimits, FetchRequest
from tests.support.processes.open_files import kept_on_exec
from tests.support.web.fetchers import fetcher, run
from tests.support.web.raw_server import Connection, page, raw_server, saying
from workers.fetch.egress import EgressRules

LIMITS = FetchLimits(connect_s=5, first_byte_s=10, total_s=20)
HEADERS = (("User-Agent", "test/1 (+https://example.org/bot)"), ("Accept", "text/html"), ("X-Empty", ""))


async def serving_pages(connection: Connection) -> None:
    while True:
        await connection.request()
        await connection.send(page(b"page"))


@pytest.mark.parametrize(
    ("request_", "sent_body"),
    [
        (FetchRequest("http://{}/"), b""),
        (FetchRequest("http://{}"), b""),
        (FetchRequest("http://{}/a/../b;x?q=%C3%A9&{{}}|[]\"'^`#part", HEADERS), b""),
        (FetchRequest("http://{}/?a=b", (*HEADERS, ("Accept-Encoding", "identity"), ("Host", "other.example"))), b""),
        (FetchRequest("http://{}/", (("If-None-Match", '"v-\xe9t\xe9\x80\xff"'), ("X-Empty", ""))), b""),
        (FetchRequest("http://user:p%40ss@{}/secret"), b""),
        (FetchRequest("http://{}/form", HEADERS, "POST", b"a=1\0&b=2"), b"a=1\0&b=2"),
        (FetchRequest("http://{}/form", (("Content-Type", "text/plain"),), "PUT", b"x" * 3000), b"x" * 3000),
        (FetchRequest("http://{}/form", HEADERS, "POST"), b""),
        (FetchRequest("http://{}/get", HEADERS, "GET", b"a body in a GET"), b"a body in a GET"),
        (FetchRequest("http://{}/", HEADERS, "HEAD"), b""),
        (FetchRequest("http://{}/", HEADERS, "DELETE"), b""),
        (FetchRequest("http://{}/", HEADERS, "OPTIONS"), b""),
    ],
)
@pytest.mark.parametrize("on_uvloop", [True, False])
def test_the_request_head_of_the_answer_is_what_was_sent(
    request_: FetchRequest, sent_body: bytes, on_uvloop: bool
) -> None:
    async def main() -> None:
        async with raw_server(saying(page(b"" if request_.method == "HEAD" else b"ok"))) as server, fetcher() as client:
            url = request_.url.format(f"127.0.0.1:{server.port}")
            answer = await client.fetch(replace(request_, url=url, limits=LIMITS))
            assert isinstance(answer, Answer), answer
            assert server.requests == [answer.request_head + sent_body]
            assert answer.url == url

    run(main(), on_uvloop=on_uvloop)


def test_a_head_answer_has_the_length_but_no_body() -> None:
    async def main() -> None:
        async with (
            raw_server(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n")) as server,
            fetcher() as client,
        ):
            answer = await client.fetch(FetchRequest(server.url(), method="HEAD", limits=LIMITS))
            assert isinstance(answer, Answer), answer
            assert (answer.body, answer.truncated, answer.header("content-length")) == (b"", None, "5000")

    run(main())


def test_a_connection_to_a_site_is_closed_in_processes_started_meanwhile() -> None:
    async def main() -> None:
        async with raw_server(serving_pages) as server, fetcher() as client:
            await client.fetch(FetchRequest(server.url(), limits=LIMITS))
            kept = kept_on_exec(psutil.Process())
            assert [target for target in kept.values() if target.startswith("socket:")] == []
            assert len(server.connections) == 1

    run(main())


def test_connections_are_reused_and_the_timings_say_so() -> None:
    async def main() -> None:
        async with raw_server(serving_pages) as server, fetcher() as client:
            answers = [await client.fetch(FetchRequest(server.url(), limits=LIMITS)) for _ in range(5)]
            assert len(server.connections) == 1
            first, *others = (answer.timings for answer in answers)
            assert first.connect_s is not None
            assert first.first_byte_s is not None
            assert first.connect_s <= first.first_byte_s <= first.total_s
            assert first.tls_s is None
            assert all(timings.connect_s is None and timings.dns_s is None for timings in others)
            assert repr(client) == "<CurlFetcher 0 of 64 fetching, 1 idle handles>"

    run(main())


def test_unlike_requests_on_one_fetcher_leave_no_trace_in_each_other() -> None:
    async def main() -> None:
        async with raw_server(serving_pages) as server, fetcher() as client:
            plain = FetchRequest(server.url("/plain"), HEADERS, limits=LIMITS)
            post = FetchRequest(server.url("/post"), (("X-Post", "1"),), "POST", b"body", LIMITS)
            for request in (plain, post, plain, replace(plain, headers=()), plain):
                answer = await client.fetch(request)
                assert isinstance(answer, Answer)
                sent = [one for one in server.requests if one == answer.request_head + request.body]
                assert sent
            assert server.requests.count(server.requests[0]) == 3

    run(main())


def test_no_more_connections_than_the_limit_and_waiting_calls_get_their_turn() -> None:
    async def main() -> None:
        release, all_busy = asyncio.Event(), asyncio.Barrier(4)

        async def held(connection: Connection) -> None:
            while True:
                await connection.request()
                if not release.is_set():
                    await all_busy.wait()
                await release.wait()
                await connection.send(page(b"page"))

        async with raw_server(held) as server, fetcher(max_connections=3) as client, asyncio.TaskGroup() as group:
            fetches = [group.create_task(client.fetch(FetchRequest(server.url(), limits=LIMITS))) for _ in range(10)]
            await all_busy.wait()
            assert repr(client) == "<CurlFetcher 3 of 3 fetching, 0 idle handles>"
            release.set()
            assert all([isinstance(await one, Answer) for one in fetches])
            assert len(server.connections) == 3

    run(main())


def test_idle_connections_never_exceed_the_limit_over_many_hosts() -> None:
    async def main() -> None:
        closed: list[asyncio.Event] = []

        async def counted(connection: Connection) -> None:
            closed.append(asyncio.Event())
            try:
                await serving_pages(connection)
            finally:
                closed[connection.number].set()

        async with raw_server(counted) as server:
            names = {f"h{number}.example:{server.port}": "127.0.0.1" for number in range(12)}
            async with fetcher(max_connections=4, resolve=names) as client:
                for name in names:
                    assert isinstance(await client.fetch(FetchRequest(f"http://{name}/", limits=LIMITS)), Answer)
                for event in closed[:8]:
                    await event.wait()
                assert [event.is_set() for event in closed[8:]] == [False] * 4

    run(main())


def test_kept_connection_closed_on_reuse_fails_and_sends_nothing_twice() -> None:
    async def close_after_one(connection: Connection) -> None:
        await connection.request()
        await connection.send(page(b"one"))
        # The next request is read and the connection ended without an answer, as an idle limit does at that moment.
        await connection.request()

    async def main() -> None:
        async with raw_server(close_after_one) as server, fetcher() as client:
            for asked in range(1, 7):
                answer = await client.fetch(FetchRequest(server.url(f"/{asked}"), limits=LIMITS))
                assert len(server.requests) == asked
                if asked % 2:
                    assert isinstance(answer, Answer), answer
                else:
                    assert isinstance(answer, FetchFailed), answer
                    assert (answer.kind, answer.sent, answer.stale) == (FailureKind.RESET, True, True)
                    assert "kept connection" in answer.detail

    run(main())


def test_fresh_request_uses_no_kept_connection_and_blames_its_reset() -> None:
    connections: list[int] = []

    async def first_only(connection: Connection) -> None:
        connections.append(len(connections))
        await connection.request()
        if len(connections) < 3:
            await connection.send(page(b"one"))
            await connection.request()

    async def main() -> None:
        async with raw_server(first_only) as server, fetcher() as client:
            for _ in range(2):
                assert isinstance(await client.fetch(FetchRequest(server.url(), limits=LIMITS, fresh=True)), Answer)
            answer = await client.fetch(FetchRequest(server.url(), limits=LIMITS, fresh=True))
            assert isinstance(answer, FetchFailed)
            assert (answer.kind, answer.stale, len(connections)) == (FailureKind.RESET, False, 3)

    run(main())


def test_a_post_is_never_sent_twice() -> None:
    async def main() -> None:
        bodies: list[bytes] = []

        async def first_only(connection: Connection) -> None:
            bodies.append(await connection.request())
            await connection.send(page(b"one"))
            bodies.append(await connection.request())

        async with raw_server(first_only) as server, fetcher() as client:
            await client.fetch(FetchRequest(server.url(), limits=LIMITS))
            answer = await client.fetch(FetchRequest(server.url(), (), "POST", b"order", LIMITS))
            assert isinstance(answer, Answer)
            assert sum(b"order" in body for body in bodies) == 1

    run(main())


def test_what_cannot_be_asked_is_a_failure_that_was_not_sent() -> None:
    async def main() -> None:
        async with fetcher() as client:
            for url in (
                "ftp://127.0.0.1/",
                "file:///etc/passwd",
                "gopher://127.0.0.1/",
                "nonsense",
                "http://127.0.0.1:99999/",
            ):
                failure = await client.fetch(FetchRequest(url, limits=LIMITS))
                assert isinstance(failure, FetchFailed)
                assert (failure.kind, failure.sent) == (FailureKind.OTHER, False)

    run(main())


def test_a_refused_connection_is_a_connect_failure() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

        async def main() -> None:
            async with fetcher() as client:
                failure = await client.fetch(FetchRequest(f"http://127.0.0.1:{port}/", limits=LIMITS))
                assert isinstance(failure, FetchFailed)
                assert (failure.kind, failure.sent) == (FailureKind.CONNECT, False)

        run(main())


def test_a_connection_that_is_never_accepted_ends_at_the_connect_limit() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with socket.socket() as first, socket.socket() as second:
            for filler in (first, second):
                filler.setblocking(False)
                filler.connect_ex(full.getsockname())

            async def main() -> None:
                async with fetcher() as client:
                    url = f"http://127.0.0.1:{full.getsockname()[1]}/"
                    failure = await client.fetch(FetchRequest(url, limits=replace(LIMITS, connect_s=0.3)))
                    assert isinstance(failure, FetchFailed)
                    assert (failure.kind, failure.sent) == (FailureKind.CONNECT_TIMEOUT, False)
                    failure = await client.fetch(FetchRequest(url, limits=replace(LIMITS, first_byte_s=0.3)))
                    assert isinstance(failure, FetchFailed)
                    assert (failure.kind, failure.sent) == (FailureKind.CONNECT_TIMEOUT, False)

            run(main())


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "0x7f.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"]
)
def test_loopback_is_denied_in_every_spelling_and_nothing_is_sent(host: str) -> None:
    async def main() -> None:
        async with raw_server(serving_pages) as server, fetcher(EgressRules()) as client:
            failure = await client.fetch(FetchRequest(f"http://{host}:{server.port}/", limits=LIMITS))
            assert isinstance(failure, FetchFailed)
            assert (failure.kind, failure.sent) == (FailureKind.EGRESS_DENIED, False)
            assert "--allow-net" in failure.detail
            assert not server.connections

    run(main())


def test_a_name_that_resolves_to_a_denied_address_is_denied() -> None:
    async def main() -> None:
        async with raw_server(serving_pages) as server:
            names = {f"rebound.example:{server.port}": "127.0.0.1"}
            async with fetcher(EgressRules(), resolve=names) as client:
                failure = await client.fetch(FetchRequest(f"http://rebound.example:{server.port}/", limits=LIMITS))
                assert isinstance(failure, FetchFailed)
                assert failure.kind is FailureKind.EGRESS_DENIED
                assert not server.connections

    run(main())


def test_names_are_given_addresses() -> None:
    async def main() -> None:
        async with raw_server(serving_pages) as server:
            names = {f"docs.example:{server.port}": "127.0.0.1"}
            async with fetcher(resolve=names) as client:
                for _ in range(2):
                    answer = await client.fetch(FetchRequest(f"http://docs.example:{server.port}/", limits=LIMITS))
                    assert isinstance(answer, Answer), answer
                    assert f"Host: docs.example:{server.port}\r\n".encode() in server.requests[0]
                    assert answer.ip == "127.0.0.1"
                assert isinstance(await client.fetch(FetchRequest(server.url(), limits=LIMITS)), Answer)

    run(main())


def test_the_source_address_is_the_one_asked_for() -> None:
    async def main() -> None:
        peers: list[str] = []

        async def script(connection: Connection) -> None:
            peers.append(connection.peer)
            await serving_pages(connection)

        async with raw_server(script) as server, fetcher(source_address="127.0.0.77") as client:
            assert isinstance(await client.fetch(FetchRequest(server.url(), limits=LIMITS)), Answer)
            assert peers == ["127.0.0.77"]

    run(main())


def test_proxies_and_cookies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def main() -> None:
        async with raw_server(saying(page(b"1", b"Set-Cookie: a=b"), page(b"2"))) as server, fetcher() as client:
            for _ in range(2):
                assert isinstance(await client.fetch(FetchRequest(server.url(), limits=LIMITS)), Answer)
            assert all(b"cookie" not in request.lower() for request in server.requests)

    run(main())


def test_hosts_whose_dns_is_silent_delay_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    answering = threading.Event()

    def look_up(host: bytes, *_: object, **__: object) -> list[Any]:
        if b"silent" in host:
            answering.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    async def main() -> None:
        async with raw_server(serving_pages) as server, fetcher() as client:
            briefly = replace(LIMITS, connect_s=2)
            urls = [f"http://silent{n}.example:{server.port}/" for n in range(50)]
            silent = [asyncio.create_task(client.fetch(FetchRequest(url, limits=briefly))) for url in urls]
            await asyncio.sleep(0)
            for host in ("a.example", "b.example.", "a.example"):
                answer = await client.fetch(FetchRequest(f"http://{host}:{server.port}/", limits=LIMITS))
                assert isinstance(answer, Answer), answer
                assert answer.ip == "127.0.0.1"
            assert not any(task.done() for task in silent)
            for failure in await asyncio.gather(*silent):
                assert isinstance(failure, FetchFailed)
                assert (failure.kind, failure.sent) == (FailureKind.DNS, False)
                assert failure.detail.endswith(".example: no answer within 2 s")
            answering.set()

    run(main())
