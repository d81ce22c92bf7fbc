"""Every hostile answer ends as a value, within the limits."""

import asyncio
import gzip
import threading
import tracemalloc

import pytest
from msgspec.structs import replace

from shared.domain.web.coding import Decoded, decode
from shared.domain.web.fetch import Answer, FailureKind, FetchFailed, FetchLimits, FetchRequest, Truncation
from tests.support.web.fetchers import fetcher, run
from tests.support.web.raw_server import Connection, Script, page, raw_server, saying
from workers.fetch.decoding import DECODE_ON_LOOP

# Where a limit is to be reached, it leaves a server that stands still for a moment time to do its part first.
LIMITS = FetchLimits(connect_s=5, first_byte_s=10, total_s=20, header_bytes=64 * 1024, body_bytes=100_000)
MIB = 1024 * 1024


def fetched(script: Script, limits: FetchLimits = LIMITS) -> Answer | FetchFailed:
    async def main() -> Answer | FetchFailed:
        async with raw_server(script) as server, fetcher() as client:
            return await client.fetch(FetchRequest(server.url("/page"), limits=limits))

    return run(main())


def answered(script: Script, limits: FetchLimits = LIMITS) -> Answer:
    result = fetched(script, limits)
    assert isinstance(result, Answer), result
    return result


def failed(script: Script, limits: FetchLimits = LIMITS) -> FetchFailed:
    result = fetched(script, limits)
    assert isinstance(result, FetchFailed), result
    assert result.detail
    assert "\n" not in result.detail
    return result


async def endless_body(connection: Connection) -> None:
    await connection.request()
    await connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        await connection.send(b"more " * 10_000)


async def endless_head(connection: Connection) -> None:
    await connection.request()
    await connection.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        await connection.send(b"X-Filler: " + b"x" * 1000 + b"\r\n")


async def endless_header_line(connection: Connection) -> None:
    await connection.request()
    await connection.send(b"HTTP/1.1 200 OK\r\nX-Filler: ")
    while True:
        await connection.send(b"x" * 65536)


async def endless_interim_responses(connection: Connection) -> None:
    await connection.request()
    while True:
        await connection.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 100)


def dripping(first: bytes, drop: bytes) -> Script:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(first)
        while True:
            await asyncio.sleep(0.02)
            await connection.send(drop)

    return script


def silent_after(first: bytes) -> Script:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(first)
        await connection.gone()

    return script


def reset_after(first: bytes) -> Script:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(first)
        # What was sent must have left before the reset, or the kernel drops it.
        await asyncio.sleep(0.05)
        connection.reset()

    return script


def test_an_endless_body_is_cut_at_its_limit() -> None:
    answer = answered(endless_body)
    assert (len(answer.body), answer.truncated) == (LIMITS.body_bytes, Truncation.LENGTH)


def test_a_declared_length_above_the_limit_is_cut_too() -> None:
    answer = answered(saying(page(b"x" * (LIMITS.body_bytes + 1))))
    assert (len(answer.body), answer.truncated) == (LIMITS.body_bytes, Truncation.LENGTH)


def test_a_body_of_exactly_the_limit_is_whole() -> None:
    answer = answered(saying(page(b"x" * LIMITS.body_bytes)))
    assert (len(answer.body), answer.truncated) == (LIMITS.body_bytes, None)


def test_body_in_tiny_chunks_takes_memory_for_its_bytes_only() -> None:
    """Each chunk was an object: a body of 4 MB took 263 MB."""

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(100):
            await connection.send(b"2\r\n%02d\r\n" % number * 3000)
            await connection.send(b"1388\r\n%b\r\n" % (b"large" * 1000))
        await connection.send(b"0\r\n\r\n")

    async def main() -> tuple[Answer | FetchFailed, int]:
        async with raw_server(script) as server, fetcher() as client:
            tracemalloc.start()
            try:
                answer = await client.fetch(FetchRequest(server.url(), limits=replace(LIMITS, body_bytes=2 * MIB)))
                return answer, tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

    answer, peak = run(main())
    assert isinstance(answer, Answer), answer
    assert answer.body == b"".join(b"%02d" % number * 3000 + b"large" * 1000 for number in range(100))
    assert answer.truncated is None
    assert peak < 4 * len(answer.body)


@pytest.mark.parametrize("script", [endless_head, endless_header_line, endless_interim_responses])
def test_an_endless_head_fails_within_memory(script: Script) -> None:
    tracemalloc.start()
    try:
        failure = failed(script)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert failure.kind is FailureKind.HEADERS_TOO_LARGE
    assert peak < 32 * MIB


def test_a_head_above_the_limit_fails_whether_or_not_a_body_follows() -> None:
    large = b"X-Large: " + b"x" * LIMITS.header_bytes
    for body in (b"", b"body"):
        assert failed(saying(page(body, large))).kind is FailureKind.HEADERS_TOO_LARGE


def test_a_header_line_over_100_kib_fails_below_the_limit_and_says_so() -> None:
    limits = replace(LIMITS, header_bytes=256 * 1024)
    assert answered(saying(page(b"", b"X-Large: " + b"x" * 90 * 1024)), limits).status == 200
    failure = failed(saying(page(b"", b"X-Large: " + b"x" * 110 * 1024)), limits)
    assert failure.kind is FailureKind.HEADERS_TOO_LARGE
    assert "100 KiB" in failure.detail


def test_a_head_of_many_headers_below_the_limit_is_kept_whole() -> None:
    many = [b"X-%d: %d" % (number, number) for number in range(3000)]
    answer = answered(saying(page(b"ok", *many)))
    assert answer.header("x-2999") == "2999"
    assert len(answer.headers) == 3001


def test_a_bomb_is_cut_at_the_decoded_limit() -> None:
    bomb = gzip.compress(bytes(50 * MIB))
    limits = replace(LIMITS, decoded_bytes=MIB)
    answer = answered(saying(page(bomb, b"Content-Encoding: gzip")), limits)
    assert answer.body == bomb
    assert (len(answer.decoded), answer.decoded_truncated, answer.truncated) == (MIB, True, None)


@pytest.mark.parametrize(
    ("size", "coding", "on_loop"),
    [(DECODE_ON_LOOP, b"gzip", True), (DECODE_ON_LOOP + 1, b"gzip", False), (1000, b"gzip, gzip", False)],
)
def test_body_that_may_take_long_is_decoded_outside_the_loop(
    size: int, coding: bytes, on_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """92 KB of deflate blocks without data, in two codings, held the loop for 4 s."""
    seen: list[bool] = []

    def noted(body: bytes, content_encoding: str, cap: int) -> Decoded:
        seen.append(threading.current_thread() is threading.main_thread())
        return decode(body, content_encoding, cap)

    monkeypatch.setattr("workers.fetch.decoding.decode", noted)
    body = gzip.compress(gzip.compress(b"page") if b"," in coding else b"page")
    answer = answered(saying(page(body.ljust(size), b"Content-Encoding: " + coding)), replace(LIMITS, body_bytes=MIB))
    assert (len(answer.body), answer.decoded, answer.decode_error, seen) == (size, b"page", None, [on_loop])


def test_wrong_coded_data_is_kept_with_the_error() -> None:
    answer = answered(saying(page(b"<html>plain</html>", b"Content-Encoding: gzip")))
    assert answer.body == b"<html>plain</html>"
    assert (answer.decoded, bool(answer.decode_error)) == (b"", True)


def test_a_slow_drip_in_the_body_ends_at_the_total_limit_with_what_came() -> None:
    answer = answered(dripping(b"HTTP/1.1 200 OK\r\n\r\nfirst", b"."), replace(LIMITS, total_s=3))
    assert answer.body.startswith(b"first.")
    assert answer.truncated is Truncation.TIME


def test_a_slow_drip_in_the_head_ends_at_the_total_limit() -> None:
    failure = failed(dripping(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), replace(LIMITS, total_s=3))
    assert (failure.kind, failure.sent) == (FailureKind.TOTAL_TIMEOUT, True)


def test_silence_before_the_first_byte_ends_at_its_limit() -> None:
    failure = failed(silent_after(b""), replace(LIMITS, first_byte_s=3))
    assert (failure.kind, failure.sent, failure.ip) == (FailureKind.FIRST_BYTE_TIMEOUT, True, "127.0.0.1")


@pytest.mark.long
def test_silence_after_the_head_is_not_bound_by_the_first_byte_limit() -> None:
    limits = replace(LIMITS, first_byte_s=3, total_s=4)
    answer = answered(silent_after(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"), limits)
    assert (answer.body, answer.truncated) == (b"", Truncation.TIME)


@pytest.mark.parametrize(
    "body",
    [
        b"5\r\nhello\r\nzz\r\nworld\r\n0\r\n\r\n",
        b"5\r\nhello\r\n-1\r\n",
        b"5\r\nhello\r\nffffffffffffffffff\r\nxx",
        b"5\r\nhello\r\n6\r\nwor",
        b"5\r\nhello\r\n",
    ],
)
def test_broken_chunks_keep_what_came_before(body: bytes) -> None:
    answer = answered(saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body))
    assert answer.body.startswith(b"hello")
    assert answer.truncated is Truncation.DISCONNECT


def test_a_content_length_above_what_comes_is_a_disconnect() -> None:
    answer = answered(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"))
    assert (answer.body, answer.truncated) == (b"short", Truncation.DISCONNECT)


def test_a_content_length_below_what_comes_ends_the_body_there() -> None:
    answer = answered(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nshort and more"))
    assert (answer.body, answer.truncated) == (b"short", None)


def test_a_reset_in_the_body_keeps_what_came_before() -> None:
    answer = answered(reset_after(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"))
    assert (answer.body, answer.truncated) == (b"short", Truncation.DISCONNECT)


@pytest.mark.parametrize("first", [b"", b"HTTP/1.", b"HTTP/1.1 200 OK\r\nServer: x\r\nCont"])
def test_a_reset_in_the_head_is_a_failure(first: bytes) -> None:
    failure = failed(reset_after(first))
    assert (failure.kind, failure.sent) == (FailureKind.RESET, True)


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nServer: x\r\nCont"])
def test_an_end_in_the_head_is_a_failure(first: bytes) -> None:
    assert failed(saying(first)).kind in (FailureKind.RESET, FailureKind.PROTOCOL)


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>HTTP/0.9 has no head</html>",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 99 Low\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nX: nul\x00byte\r\n\r\nbody",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\nbody",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody!",
        b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\nbody",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x05hello",
        bytes(range(256)) * 40,
    ],
)
def test_what_is_not_http_is_a_failure_or_a_cut_answer(answer: bytes) -> None:
    result = fetched(saying(answer))
    match result:
        case FetchFailed(kind=kind):
            assert kind in (FailureKind.PROTOCOL, FailureKind.RESET)
        case Answer():
            assert result.status >= 200
            assert b"\0" not in result.response_head


def test_interim_responses_are_not_the_answer() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    answer = answered(saying(interim + page(b"final", b"X: 1")))
    assert (answer.status, answer.body) == (200, b"final")
    assert answer.response_head == b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: 1\r\n\r\n"


def test_trailers_are_not_part_of_the_head() -> None:
    for body in (b"5\r\nhello\r\n", b""):
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\nX-Trailer: 1\r\n\r\n"
        answer = answered(saying(chunked))
        assert answer.response_head == b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert answer.header("x-trailer") is None


def test_line_ends_without_cr_are_taken_and_written_with_cr() -> None:
    answer = answered(saying(b"HTTP/1.1 200 OK\nContent-Length: 2\nX: 1\n\nok"))
    assert answer.response_head == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: 1\r\n\r\n"
    assert (answer.body, answer.header("x")) == (b"ok", "1")


def test_repeated_headers_and_bytes_above_ascii_are_kept_in_order() -> None:
    answer = answered(saying(page(b"ok", b"Set-Cookie: a=1", b"X: caf\xe9 ", b"SET-COOKIE: b=2", b"Empty:")))
    assert answer.headers[1:] == (("set-cookie", "a=1"), ("x", "caf\xe9"), ("set-cookie", "b=2"), ("empty", ""))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_answer_and_is_not_followed(status: int) -> None:
    async def main() -> None:
        location = b"HTTP/1.1 %d Moved\r\nLocation: /page\r\nContent-Length: 0\r\n\r\n" % status
        async with raw_server(saying(location, location)) as server, fetcher() as client:
            answer = await client.fetch(FetchRequest(server.url("/page"), limits=LIMITS))
            assert isinstance(answer, Answer)
            assert (answer.status, answer.header("location")) == (status, "/page")
            assert len(server.requests) == 1

    run(main())


def test_binary_with_an_html_type_is_kept_byte_for_byte() -> None:
    binary = bytes(range(256)) * 100
    answer = answered(saying(page(binary, b"Content-Type: text/html; charset=nonsense")))
    assert answer.body == answer.decoded == binary


def test_answers_without_a_body_are_complete() -> None:
    for status in (b"204 No Content", b"304 Not Modified"):
        answer = answered(saying(b"HTTP/1.1 " + status + b"\r\nX: 1\r\n\r\n"))
        assert (answer.body, answer.truncated) == (b"", None)


def test_a_body_that_ends_with_the_connection_is_complete() -> None:
    answer = answered(saying(b"HTTP/1.0 200 OK\r\n\r\nuntil the end"))
    assert (answer.body, answer.truncated, answer.http_version) == (b"until the end", None, "1.0")
