"""A worker's counts of URLs, and its one-path HTTP server, which believes nothing that it is sent."""

import asyncio
import re
from collections import Counter
from typing import Any, get_args

import pytest

from shared.domain.errors import Unusable
from shared.domain.frontier.states import UrlEnd
from shared.domain.ops.counts import OTHER, Key
from shared.domain.web.fetch import FailureKind
from shared.telemetry import Metric, registry_of
from shared.wire.messages import UrlOutcome
from workers.metrics import _ENDS
from workers.metrics_server import HEAD_BYTES, MAX_CONNECTIONS, answer, exposing
from workers.runtime import Settlement
from workers.stats import FAILED, WorkerStats

UP = Metric("up", "gauge", "Up.")
REGISTRY = registry_of([UP], lambda: [(UP, {(): 1})])


def outcome(end: UrlEnd, **more: Any) -> UrlOutcome:
    return UrlOutcome(b"\0" * 16, end, 0, **more)


def test_every_settled_url_is_counted_once() -> None:
    tally, counts = WorkerStats(), Counter[Key]()
    tally.settled(counts, outcome(UrlEnd.ANSWERED, status=200, size=10, latency_ms=20))
    tally.settled(counts, outcome(UrlEnd.ANSWERED, status=204, size=5, latency_ms=20))
    tally.settled(counts, outcome(UrlEnd.ANSWERED, status=999, size=1, latency_ms=20))
    tally.settled(counts, outcome(UrlEnd.FAILED, reason=FailureKind.DNS, latency_ms=20))
    tally.settled(counts, outcome(UrlEnd.FAILED, reason="never heard of", latency_ms=20))
    tally.settled(counts, outcome(UrlEnd.DENIED, reason="robots"))
    assert counts == {
        ("status", "2xx"): 2, ("status", OTHER): 1, ("status", FAILED): 2, ("bytes", ""): 16, ("denied", "robots"): 1,
    }  # fmt: skip
    assert tally.failures == {"dns": 1, OTHER: 1}
    assert tally.fetches.count == 5


def test_visits_total_has_a_result_for_each_settlement() -> None:
    assert set(_ENDS.values()) == {settlement.__name__ for settlement in get_args(Settlement)}


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET /metrics?a=b HTTP/1.0\r\n\r\n", 200),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", 200),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics/.. HTTP/1.1\r\n\r\n", 404),
        (b"GET http://elsewhere/metrics HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 400),
    ],
)
def test_there_is_one_path_and_it_is_only_read(head: bytes, status: int) -> None:
    said = answer(head, REGISTRY)
    top, _, body = said.partition(b"\r\n\r\n")
    assert top.startswith(f"HTTP/1.1 {status} ".encode())
    length = re.search(rb"Content-Length: (\d+)", top)
    assert length is not None
    assert (b"\norb_up 1.0\n" in body) == (status == 200 and not head.startswith(b"HEAD"))
    assert not body if head.startswith(b"HEAD") else len(body) == int(length[1])


async def said_to(address: str, request: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether nothing was said until it was closed, or cut off."""
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


def test_it_is_served_until_the_block_ends_and_then_the_port_is_free() -> None:
    async def story() -> None:
        async with exposing("127.0.0.1:0", REGISTRY) as address:
            assert b"orb_up 1.0" in await said_to(address, b"GET /metrics HTTP/1.1\r\n\r\n")
        with pytest.raises(ConnectionRefusedError):
            await said_to(address, b"")
        async with exposing(address, REGISTRY):
            with pytest.raises(Unusable, match="--metrics"):
                async with exposing(address, REGISTRY):
                    pytest.fail("two listen at one port")

    asyncio.run(story())


@pytest.mark.parametrize("address", ["", "9101", "host:", "127.0.0.1:x", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_refused_with_the_name_of_the_flag(address: str) -> None:
    async def story() -> None:
        with pytest.raises(Unusable, match="--metrics"):
            async with exposing(address, REGISTRY):
                pytest.fail("it listens")

    asyncio.run(story())


def test_client_with_large_requests_or_many_connections_blocks_no_other() -> None:
    async def story() -> None:
        async with exposing("127.0.0.1:0", REGISTRY) as address:
            host, _, port = address.rpartition(":")
            assert await said_to(address, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * (2 * HEAD_BYTES)) == b""
            silent = [await asyncio.open_connection(host, int(port)) for _ in range(MAX_CONNECTIONS)]
            for _ in range(3):
                assert b"orb_up 1.0" in await said_to(address, b"GET /metrics HTTP/1.1\r\n\r\n")
            assert await ended(silent[0][0]), "the one that has said nothing for longest made room"
            for reader, writer in silent:
                writer.close()
                assert await ended(reader)

    asyncio.run(story())
