"""Reading reports while the broker goes away: what is in hand is applied, and nothing is loaded anew."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from api.frontier.ingest import Ingest
from shared.domain.errors import Transient
from shared.domain.frontier.states import Position
from shared.domain.ids import Partition
from shared.ports.broker import Delivered


class Gone:
    """A reader that has one report, loses its broker during the lingering read, and has another one after that."""

    def __init__(self, first: Delivered, second: Delivered) -> None:
        self.script: list[Any] = [[first], Transient("the broker is away", retry_in=0.0), [second], []]
        self.closed = False

    async def read(self, count: int, wait_s: float) -> Sequence[Delivered]:
        match self.script.pop(0) if self.script else asyncio.Event():
            case Transient() as error:
                raise error
            case asyncio.Event() as never:
                await never.wait()
                raise AssertionError
            case reports:
                return cast(Sequence[Delivered], reports)

    async def close(self) -> None:
        self.closed = True


def test_disconnect_during_the_lingering_read_loads_nothing_anew() -> None:
    first, second = Delivered(1, 1, b"a"), Delivered(2, 2, b"b")
    reader = Gone(first, second)
    applied: list[int] = []

    async def story() -> None:
        async def read_reports(*_: Any) -> Gone:
            return reader

        done = asyncio.Event()
        own = SimpleNamespace(
            partition=Partition(0),
            position=Position(),
            settings=SimpleNamespace(batch=10, linger_s=0.0, batch_bytes=1 << 20),
            in_hand={},
        )
        writer = SimpleNamespace(own=own, store=None, clock=None, stats=None)
        ingest = Ingest(cast(Any, writer), cast(Any, SimpleNamespace(read_reports=read_reports)))

        async def outcomes(part: Sequence[Delivered]) -> None:
            applied.extend(report.sequence for report in part)
            if len(applied) == 2:
                done.set()

        ingest.outcomes = outcomes  # type: ignore[method-assign, assignment]  # what is applied is not in question
        reading = asyncio.create_task(ingest.run("outcome"))
        waiting = asyncio.create_task(done.wait())
        await asyncio.wait({reading, waiting}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert not reading.done(), "it ended, and the owner would load the partition anew"
        reading.cancel()
        waiting.cancel()
        await asyncio.gather(reading, waiting, return_exceptions=True)

    asyncio.run(story())
    assert (applied, reader.closed) == ([1, 2], True)
