"""Fetches that end at the same moment return in separate turns of the loop, so that other events come between."""

import asyncio

import pytest

from shared.domain.web.fetch import Answer, FetchRequest
from tests.support.web.fetchers import fetcher, run
from tests.support.web.raw_server import Connection, page, raw_server
from workers.fetch.turns import Turns

MANY = 20


@pytest.mark.parametrize("on_uvloop", [True, False])
def test_answers_that_arrive_at_once_are_given_in_separate_turns(on_uvloop: bool) -> None:
    async def main() -> None:
        loop, turn = asyncio.get_running_loop(), 0
        requested = 0
        all_requested = asyncio.Event()

        async def answering_at_once(connection: Connection) -> None:
            nonlocal requested
            await connection.request()
            requested += 1
            if requested == MANY:
                all_requested.set()
            await all_requested.wait()
            await connection.send(page(b"page"))

        def count_turns() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(count_turns)

        async with raw_server(answering_at_once) as server, fetcher() as client:

            async def fetched(path: str) -> int:
                answer = await client.fetch(FetchRequest(server.url(path)))
                assert isinstance(answer, Answer), answer
                return turn

            fetches = [asyncio.create_task(fetched(f"/{n}")) for n in range(MANY)]
            await all_requested.wait()
            count_turns()
            turns = await asyncio.gather(*fetches)
        assert len(set(turns)) == MANY, sorted(turns)

    run(main(), on_uvloop=on_uvloop)


def test_cancelled_waiter_costs_the_others_no_turn() -> None:
    async def main() -> None:
        turns = Turns()
        tasks = [asyncio.create_task(turns.take()) for _ in range(5)]
        await asyncio.sleep(0)
        assert [task.done() for task in tasks] == [True, False, False, False, False]
        tasks[1].cancel()
        tasks[3].cancel()
        await asyncio.wait(tasks, timeout=30)
        assert [task.cancelled() for task in tasks] == [False, True, False, True, False]
        await asyncio.sleep(0)
        await asyncio.wait_for(turns.take(), 30)

    run(main())
