"""A worker follows what is published: how much it holds, how soon it reports, and that it drains."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from shared.adapters.local.clock import SystemClock
from shared.domain.ids import CrawlId
from shared.domain.ops.config import (
    AS_STARTED,
    Drains,
    HotConfig,
    MemberRole,
    StoredConfig,
    WorkerPart,
    WorkerTuning,
    worker_tuning,
)
from shared.ports.broker import Broker
from shared.runtime.config_follower import ConfigFollower
from shared.runtime.supervise import Tasks
from shared.wire.desired_state import config_record, drains_record
from shared.wire.keys import DRAINS, SETTINGS, Keys
from shared.wire.messages import UrlOutcome, WorkerStatus, decode_status
from tests.support.api.snapshot_view import Published
from workers.archive import WarcArchive
from workers.report import Reporter
from workers.request_slots import Requests
from workers.runtime import Runtime, WorkerIdentity
from workers.stats import WorkerStats
from workers.visit import VisitContext
from workers.visit_report import SettledUrl

KEYS = Keys("test")
STARTED = WorkerTuning(max_visits=64, report_s=2.0, log_level="info")


def entries(revision: int, config: HotConfig = AS_STARTED, *drained: str) -> dict[str, bytes]:
    return {
        KEYS.setting(SETTINGS): config_record(StoredConfig(revision, config)),
        KEYS.setting(DRAINS): drains_record(Drains(workers=drained)),
    }


def within(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(cast(Any, story()), 30))


# --- following --------------------------------------------------------------------------------------------------------


def test_a_worker_takes_its_pools_values_and_its_own_drain() -> None:
    applied: list[tuple[WorkerTuning, int]] = []
    drained: list[bool] = []
    view = Published()
    tuning = ConfigFollower(
        view,
        KEYS,
        MemberRole.WORKER,
        "w1",
        STARTED,
        partial(worker_tuning, "eu"),
        apply=lambda values: applied.append((values, tuning.revision)),
        drain=drained.append,
    )
    config = HotConfig(worker=WorkerPart(max_visits=500, report_s=1.0), pools={"eu": WorkerPart(report_s=0.5)})
    shown = [entries(1, config), entries(1, config, "w1"), entries(1, config, "w1", "w2"), {}, entries(2), entries(2)]
    for each in shown:
        view.show(each)
        tuning.follow(view.snapshot)
    assert applied == [(WorkerTuning(500, 0.5, "info"), 1), (STARTED, 2)]
    assert drained == [True, False]


# --- holding ----------------------------------------------------------------------------------------------------------


class Message:
    """A shard that nobody can read: it is acknowledged at once, unless it is handed back."""

    data, delivery = b"", 1

    def __init__(self, settled: "asyncio.Queue[str]") -> None:
        self._settled = settled

    async def ack(self) -> None:
        self._settled.put_nowait("ack")

    async def nak(self, delay_s: float) -> None:
        self._settled.put_nowait("nak")

    async def working(self) -> None:
        raise AssertionError("nobody works on it")


class OneMessageAPull:
    """A broker in which a pull ends when the test lets it, with one message."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.pulling = asyncio.Event()
        self.deliver = asyncio.Event()
        self.settled: asyncio.Queue[str] = asyncio.Queue()
        self.told: list[WorkerStatus] = []

    async def pull_visits(self, pool: str, max_count: int, wait_s: float) -> Sequence[Message]:
        self.asked.append(max_count)
        self.pulling.set()
        await self.deliver.wait()
        self.deliver.clear()
        return [Message(self.settled)]

    async def tell(self, subject: str, data: bytes) -> None:
        self.told.append(decode_status(data))

    async def next_pull(self) -> int:
        """Wait for a further pull: how many it asks for."""
        self.pulling.clear()
        self.deliver.set()
        await self.pulling.wait()
        return self.asked[-1]


async def always() -> None:
    """There always is room."""


def runtime_of(
    broker: OneMessageAPull,
    tasks: Tasks,
    visits: int = 4,
    room: Callable[[], Awaitable[None]] = always,
    requests: Requests | None = None,
) -> Runtime:
    equipment = SimpleNamespace(
        clock=SystemClock(),
        reporter=SimpleNamespace(wait_for_capacity=room),
        stats=WorkerStats(),
        failpoint=lambda name: None,
        requests=requests or Requests(8, SystemClock().elapsed),
    )
    return Runtime(
        WorkerIdentity("w1", "p", "default", 1),
        broker=cast(Broker, broker),
        crawls=cast(Any, None),
        equipment=cast(VisitContext, equipment),
        tasks=tasks,
        visits=visits,
    )


def test_more_or_fewer_visits_are_asked_for_at_the_next_pull() -> None:
    async def story() -> None:
        broker = OneMessageAPull()
        async with Tasks() as tasks:
            runtime = runtime_of(broker, tasks)
            pulling = tasks.start("pull", runtime.pull())
            await broker.pulling.wait()
            assert broker.asked == [4]
            runtime.tune(9, 3)
            assert await broker.next_pull() in (8, 9)
            runtime.tune(1, 4)
            await runtime.tell()
            assert (broker.told[-1].visits, broker.told[-1].config) == (1, 4)
            pulling.cancel()

    within(story)


def test_saturated_worker_pulls_nothing_until_fewer_requests_wait() -> None:
    async def story() -> None:
        broker = OneMessageAPull()
        async with Tasks() as tasks:
            runtime = runtime_of(broker, tasks, requests=(requests := Requests(1, SystemClock().elapsed)))
            places = [requests.place(CrawlId(1), 1) for _ in range(2)]
            await runtime.tell()
            assert (broker.told[-1].saturated, broker.told[-1].free) == (True, 0)
            pulling = tasks.start("pull", runtime.pull())
            for _ in range(10):
                await asyncio.sleep(0)
            assert broker.asked == []
            requests.leave(places[0])
            await broker.pulling.wait()
            assert broker.asked == [4]
            await runtime.tell()
            assert (broker.told[-1].saturated, broker.told[-1].free) == (False, 4)
            pulling.cancel()

    within(story)


def test_visits_lowered_while_reports_wait_bound_the_next_pull() -> None:
    async def story() -> None:
        broker, room = OneMessageAPull(), asyncio.Event()
        held = asyncio.Event()

        async def until_reported() -> None:
            held.set()
            await room.wait()

        async with Tasks() as tasks:
            runtime = runtime_of(broker, tasks, room=until_reported)
            pulling = tasks.start("pull", runtime.pull())
            await held.wait()
            runtime.drain(True)
            room.set()
            await runtime.tell()
            await asyncio.sleep(0)
            assert broker.asked == [], "it rests"
            room.clear()
            held.clear()
            runtime.drain(False)
            await held.wait()
            runtime.tune(1, 2)
            room.set()
            await broker.pulling.wait()
            assert broker.asked == [1]
            pulling.cancel()

    within(story)


def test_drained_worker_hands_back_open_pull_and_resumes_later() -> None:
    async def story() -> None:
        broker = OneMessageAPull()
        async with Tasks() as tasks:
            runtime = runtime_of(broker, tasks)
            pulling = tasks.start("pull", runtime.pull())
            await broker.pulling.wait()
            runtime.drain(True)
            broker.deliver.set()
            assert await broker.settled.get() == "nak"
            await runtime.tell()
            assert (broker.told[-1].pulling, broker.told[-1].draining) == (False, True)
            assert len(broker.asked) == 1, "it pulls nothing more"
            broker.pulling.clear()
            runtime.drain(False)
            await broker.pulling.wait()
            await runtime.tell()
            assert (broker.told[-1].pulling, broker.told[-1].draining) == (True, False)
            pulling.cancel()

    within(story)


# --- reporting --------------------------------------------------------------------------------------------------------


class Kept:
    """A broker that keeps reports, and an archive that is durable at once."""

    def __init__(self) -> None:
        self.reported = asyncio.Event()

    async def publish_report(self, *report: Any) -> int:
        self.reported.set()
        return 1

    async def sync(self) -> None:
        """Nothing is on its way."""

    def writer(self, crawl: Any) -> "Kept":
        return self


def test_a_page_that_waits_is_reported_at_the_new_pace() -> None:
    async def story() -> None:
        kept = Kept()
        async with Tasks() as tasks:
            reporter = Reporter(
                broker=cast(Broker, kept),
                archive=cast(WarcArchive, kept),
                clock=SystemClock(),
                producer="p",
                report_s=60.0,
            )
            running = tasks.start("report", reporter.run())
            visit = reporter.visit(None, 1, cast(Any, 4096), 1, 1)
            visit.add(SettledUrl(UrlOutcome(bytes(16), 0, 0)))
            reporter.pace(0.01)
            await kept.reported.wait()
            running.cancel()

    within(story)
