"""The end of a worker: reports get their time, a broker that does not answer gets none, and nobody complains later."""

import asyncio
import gc
from typing import Any, cast

import pytest

from shared.domain.errors import Permanent, Transient, Unusable
from shared.ports.broker import Broker, VisitMessage
from shared.ports.clock import Clock
from shared.runtime.supervise import Tasks
from shared.wire.messages import UrlShard, encode
from workers import drain as draining
from workers import runtime
from workers.drain import SILENT_S, cut_short, listen
from workers.request_slots import Requests
from workers.runtime import Runtime, WorkerIdentity


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def elapsed(self) -> float:
        return self.now


class Silent:
    """A broker that answers nothing, each time for as long as its adapter waits."""

    def __init__(self, clock: Hand, error: Exception | None = None) -> None:
        self._clock = clock
        self._error = error or Transient("no answer")
        self.asked = 0
        self.answers = False

    async def get_robots(self, key: str) -> None:
        self.asked += 1
        if not self.answers:
            self._clock.now += SILENT_S
            raise self._error


class Halted:
    halted = False

    def cancel_all(self) -> None:
        self.halted = True


async def drained(broker: Silent, clock: Hand) -> bool:
    """End a worker one of whose visits would never be reported; whether it was halted."""
    visiting = Halted()
    async with asyncio.timeout(30), Tasks() as visits:
        visits.start("visit", asyncio.Event().wait())
        short = cut_short(cast(Runtime, visiting), visits, cast(Broker, broker), cast(Clock, clock), grace_s=0)
        await short
        await visits.ended()
    return visiting.halted


@pytest.mark.parametrize("error", [Transient("no answer"), Permanent("no such stream"), Unusable("JetStream is off")])
def test_a_broker_that_does_not_answer_or_keeps_no_reports_is_not_waited_for(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the worker end by its error, before the shards are handed back."""
    monkeypatch.setattr(draining, "LAST_REPORTS_S", 3600.0)
    clock = Hand()
    assert asyncio.run(drained(Silent(clock, error), clock))


def test_a_broker_that_answers_has_the_time_of_the_last_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "LAST_REPORTS_S", 0.2)
    monkeypatch.setattr(draining, "_ASK_S", 0.0)
    clock = Hand()
    broker = Silent(clock)
    broker.answers = True
    assert asyncio.run(drained(broker, clock))
    assert broker.asked > 1, "and was asked until then"


def test_a_broker_that_answers_again_is_silent_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "_ASK_S", 0.0)

    async def story() -> None:
        clock, silent = Hand(), asyncio.Event()
        broker = Silent(clock)
        async with asyncio.timeout(30), Tasks() as tasks:
            tasks.start("listen", listen(cast(Broker, broker), cast(Clock, clock), silent))
            await silent.wait()
            broker.answers = True
            while silent.is_set():  # noqa: ASYNC110  an event is waited for until it is set, not until it is not
                await asyncio.sleep(0)

    asyncio.run(story())


def test_a_broker_that_takes_long_over_one_question_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another answer of its own, to whoever asks it next, is there in time."""
    monkeypatch.setattr(draining, "_ASK_S", 0.0)

    class Loaded(Silent):
        """Every other question takes as long as its adapter waits, and longer."""

        async def get_robots(self, key: str) -> None:
            self.answers = self.asked % 2 == 1
            await super().get_robots(key)

    async def story() -> None:
        clock, silent = Hand(), asyncio.Event()
        broker = Loaded(clock)
        async with asyncio.timeout(30), Tasks() as tasks:
            tasks.start("listen", listen(cast(Broker, broker), cast(Clock, clock), silent))
            while broker.asked < 10:
                assert not silent.is_set()
                await asyncio.sleep(0)

    asyncio.run(story())


class Forgotten:
    """A shard whose broker answers its handing back long after the worker has gone on, by an error."""

    data = encode(UrlShard(lease=4099, crawl=1, spec=1, host_id=8195, host="a.test", slot=0, delay_ms=0, urls=[]))
    delivery = 1

    def __init__(self) -> None:
        self.given_up = asyncio.Event()
        self.answered = asyncio.Event()

    async def nak(self, _delay_s: float) -> None:
        try:
            await self.given_up.wait()
            raise Transient("the connection broke")
        finally:
            self.answered.set()


def test_failed_nak_after_worker_resumed_raises_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "_HAND_BACK_S", 0.01)

    async def story() -> list[Any]:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        begun = asyncio.Event()

        class Waiting:
            async def active(self, *_: object) -> None:
                begun.set()
                await asyncio.Event().wait()

        class Parts:
            clock = Hand()
            requests = Requests(1, clock.elapsed)

        message = Forgotten()
        async with Tasks() as tasks:
            identity = WorkerIdentity("w1", "w1.x", "default", 1)
            worker = Runtime(
                identity, broker=cast(Any, None), crawls=cast(Any, Waiting()), equipment=cast(Any, Parts()),
                tasks=tasks, visits=1,
            )  # fmt: skip
            visit = tasks.start("visit", worker._attend_and_settle(cast(VisitMessage, message), accepted=True))
            await begun.wait()
            visit.cancel()
            await tasks.ended()
            message.given_up.set()
            await message.answered.wait()
            await asyncio.sleep(0)
        gc.collect()
        return complaints

    assert asyncio.run(story()) == []
