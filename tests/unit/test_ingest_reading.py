"""Reading reports while the broker goes away: what is in hand is applied, and nothing is loaded anew."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import count, repeat
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


def reading(reader: Gone, clock: Iterator[float]) -> Ingest:
    """An Ingest whose linger costs no time, over a reader and a clock."""

    async def read_reports(*_: Any) -> Gone:
        return reader

    own = SimpleNamespace(
        partition=Partition(0),
        position=Position(),
        settings=SimpleNamespace(batch=10, linger_s=0.0, batch_bytes=1 << 20),
        in_hand={},
    )
    writer = SimpleNamespace(own=own, store=None, clock=SimpleNamespace(elapsed=lambda: next(clock)), stats=None)
    return Ingest(cast(Any, writer), cast(Any, SimpleNamespace(read_reports=read_reports)))


async def until_applied(ingest: Ingest, number: int, outcomes: Callable[[Sequence[Delivered]], None]) -> None:
    """Read outcomes until `outcomes` has got `number` of them."""
    done, applied = asyncio.Event(), 0

    async def apply(part: Sequence[Delivered]) -> None:
        nonlocal applied
        outcomes(part)
        applied += len(part)
        if applied == number:
            done.set()

    ingest.outcomes = apply  # type: ignore[method-assign, assignment]  # what is applied is not in question
    running = asyncio.create_task(ingest.run("outcome"))
    waiting = asyncio.create_task(done.wait())
    await asyncio.wait({running, waiting}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    assert not running.done(), "it ended, and the owner would load the partition anew"
    running.cancel()
    waiting.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)


def test_disconnect_during_the_lingering_read_loads_nothing_anew() -> None:
    reader = Gone(Delivered(1, 1, b"a"), Delivered(2, 2, b"b"))
    applied: list[int] = []

    async def story() -> None:
        ingest = reading(reader, repeat(0.0))
        await until_applied(ingest, 2, lambda part: applied.extend(report.sequence for report in part))

    asyncio.run(story())
    assert (applied, reader.closed) == ([1, 2], True)


def test_outcomes_have_arrived_when_read_and_not_after_the_linger() -> None:
    """The host's delay counts from then."""
    first, second = Delivered(1, 1, b"a"), Delivered(2, 2, b"b")
    reader = Gone(first, second)
    reader.script = [[first], [second]]
    arrived: list[dict[int, float]] = []

    async def story() -> None:
        ingest = reading(reader, count(10.0))
        await until_applied(ingest, 2, lambda _: arrived.append(dict(ingest.arrived)))
        assert not ingest.arrived, "times of applied outcomes are forgotten"

    asyncio.run(story())
    assert arrived == [{1: 10.0, 2: 11.0}]
