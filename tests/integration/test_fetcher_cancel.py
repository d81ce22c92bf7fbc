"""Whoever cancels a fetch, at whatever moment, gets the connection closed and nothing left behind."""

import asyncio
import os
import socket

import pytest

from shared.domain.web.fetch import Answer, FetchLimits, FetchRequest
from tests.support.web.fetchers import fetcher, run
from tests.support.web.raw_server import Connection, page, raw_server

LIMITS = FetchLimits(connect_s=20, first_byte_s=30, total_s=40)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def at_most(max_count: int) -> None:
    """Wait until no more are open: what was closed, or only now accepted, needs a turn of the loop or two."""
    async with asyncio.timeout(30):
        while descriptors() > max_count:  # noqa: ASYNC110  the system has no event for it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "first", [b"", b"HTTP/1.1 200 OK\r\nServer: x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbody"]
)
def test_cancelled_while_waiting_for_the_answer_the_connection_is_closed(first: bytes) -> None:
    async def main() -> None:
        asked, gone = asyncio.Event(), asyncio.Event()

        async def silent(connection: Connection) -> None:
            await connection.request()
            await connection.send(first)
            asked.set()
            await connection.gone()
            gone.set()

        async with raw_server(silent) as server, fetcher() as client:
            task = asyncio.create_task(client.fetch(FetchRequest(server.url(), limits=LIMITS)))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert repr(client).startswith("<CurlFetcher 0 of ")
            await gone.wait()

    run(main())


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_cancelled_at_its_first_step_nothing_is_left(host: str) -> None:
    async def main() -> None:
        async with fetcher() as client:
            for steps in range(4):
                task = asyncio.create_task(client.fetch(FetchRequest(f"http://{host}:9/", limits=LIMITS)))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert repr(client).startswith("<CurlFetcher 0 of ")

    run(main())


def test_cancelled_while_connecting_the_socket_is_closed() -> None:
    with socket.socket() as full, socket.socket() as one, socket.socket() as two:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (one, two):
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())

        async def main() -> None:
            async with fetcher() as client:
                before = descriptors()
                url = f"http://127.0.0.1:{full.getsockname()[1]}/"
                for _ in range(20):
                    task = asyncio.create_task(client.fetch(FetchRequest(url, limits=LIMITS)))
                    await asyncio.sleep(0.01)
                    assert not task.done()
                    task.cancel()
                    await asyncio.wait([task])
                await at_most(before + 2)

        run(main())


def test_cancelled_while_waiting_for_a_place_the_place_is_not_lost() -> None:
    async def main() -> None:
        asked, release = asyncio.Event(), asyncio.Event()

        async def held(connection: Connection) -> None:
            while True:
                await connection.request()
                asked.set()
                await release.wait()
                await connection.send(page(b"page"))

        async with raw_server(held) as server, fetcher(max_connections=1) as client:
            request = FetchRequest(server.url(), limits=LIMITS)
            first, second = (asyncio.create_task(client.fetch(request)) for _ in range(2))
            await asked.wait()
            second.cancel()
            await asyncio.wait([second])
            release.set()
            assert isinstance(await first, Answer)
            assert isinstance(await client.fetch(request), Answer)

    run(main())


def test_a_thousand_cancelled_fetches_leak_no_descriptor_and_no_handle() -> None:
    async def main() -> None:
        async def silent(connection: Connection) -> None:
            await connection.request()
            await connection.gone()

        async with raw_server(silent) as server, fetcher(max_connections=50) as client:
            request = FetchRequest(server.url(), limits=LIMITS)

            async def round_of_fifty(delay: float) -> None:
                tasks = [asyncio.create_task(client.fetch(request)) for _ in range(50)]
                await asyncio.sleep(delay)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                assert all(task.cancelled() for task in tasks)
                while server.tasks:
                    await asyncio.wait(server.tasks)

            await round_of_fifty(0.01)
            before = descriptors()
            for number in range(20):
                await round_of_fifty(0.001 * (number % 10))
            await at_most(before + 2)
            assert repr(client) == "<CurlFetcher 0 of 50 fetching, 50 idle handles>"

    run(main())


@pytest.mark.parametrize("on_uvloop", [True, False])
def test_close_cancels_what_runs_and_closes_every_connection(on_uvloop: bool) -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def answering_once(connection: Connection) -> None:
            await connection.request()
            await connection.send(page(b"kept"))
            await connection.request()
            asked.set()
            await connection.gone()

        before = descriptors()
        async with raw_server(answering_once) as server:
            async with fetcher() as client:
                request = FetchRequest(server.url(), limits=LIMITS)
                kept = await asyncio.gather(client.fetch(request), client.fetch(request))
                assert all(isinstance(one, Answer) for one in kept)
                task = asyncio.create_task(client.fetch(request))
                await asked.wait()
                await client.close()
                with pytest.raises(asyncio.CancelledError):
                    await task
            with pytest.raises(RuntimeError, match="closed"):
                await client.fetch(FetchRequest(server.url(), limits=LIMITS))
            assert "closed" in repr(client)
            while server.tasks:
                await asyncio.wait(server.tasks)
        await at_most(before + 1)

    run(main(), on_uvloop=on_uvloop)
