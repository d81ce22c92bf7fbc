"""The master of a local crawl waits where its disk is full or an engine does not answer, and goes on."""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from api.frontier.ownership import FrontierSettings
from api.master import standalone
from api.master.standalone import Standalone
from shared.adapters.local.clock import SystemClock
from shared.adapters.local.specs import LocalSpecs
from shared.adapters.nats import NatsBroker
from shared.adapters.sql.catalog.items import SqlItems
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.crawl.spec import CrawlSpec
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.errors import ResourceFull, Transient
from shared.domain.frontier.crawl_rows import CrawlRow
from shared.domain.frontier.states import CrawlState
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId, Partition, Term
from shared.domain.web.url import public_suffix_snapshot
from shared.ports.specs import PublishedSpec
from shared.runtime.supervise import Tasks
from tests.support.engines.nats_server import POOL, BrokerServer
from tests.support.engines.nats_server import server as server

FULL = ResourceFull("the disk is full", retry_in=0.01)
AWAY = Transient("the engine is away", retry_in=0.01)


class Failures:
    """What calls meet, by their names: the next failure of each, or None where it is let through."""

    def __init__(self, **planned: list[Transient | None]) -> None:
        self.planned = planned
        self.asked = asyncio.Event()

    def meet(self, name: str) -> None:
        self.asked.set()
        if (planned := self.planned.get(name)) and (failure := planned.pop(0)) is not None:
            raise failure


class Failing(SqliteStore):
    """A database that fails as it was planned."""

    failures: Failures

    async def put_crawl(self, name: str, spec: str, now_ms: int) -> tuple[CrawlRow, bool]:
        self.failures.meet("put_crawl")
        return await super().put_crawl(name, spec, now_ms)

    async def counters_by_partition(
        self, crawl_ids: Collection[CrawlId]
    ) -> Mapping[CrawlId, Mapping[Partition, Counters]]:
        self.failures.meet("counters_by_partition")
        return await super().counters_by_partition(crawl_ids)

    async def newest_term(self) -> Term:
        self.failures.meet("newest_term")
        return await super().newest_term()

    async def set_state(self, crawl_id: CrawlId, state: CrawlState, reason: str | None, now_ms: int) -> None:
        self.failures.meet("set_state")
        await super().set_state(crawl_id, state, reason, now_ms)

    async def add_active_time(self, crawl_id: CrawlId, ms: int) -> None:
        self.failures.meet("add_active_time")
        await super().add_active_time(crawl_id, ms)


class FailingSpecs(LocalSpecs):
    """A folder that fails as it was planned."""

    failures: Failures

    async def publish(self, spec: PublishedSpec) -> None:
        self.failures.meet("publish")
        await super().publish(spec)


class Leaping(SystemClock):
    """A clock that can be turned ahead."""

    ahead_s = 0.0

    def elapsed(self) -> float:
        return super().elapsed() + self.ahead_s


@asynccontextmanager
async def master(
    folder: Path, broker: NatsBroker, spec: CrawlSpec, failures: Failures, clock: SystemClock | None = None
) -> Any:
    """The master of a folder's crawl, and its database."""
    store = await Failing.open(folder / "crawl.db")
    assert isinstance(store, Failing)
    store.failures = failures
    await store.open_cluster(1, public_suffix_snapshot(), 0)
    specs = FailingSpecs(folder / "specs")
    specs.failures = failures
    yield (
        Standalone(
            spec,
            store=store,
            items=SqlItems(store.executor),
            broker=broker,
            specs=specs,
            clock=clock or SystemClock(),
            settings=FrontierSettings(partitions=1, sweep_interval_s=0.05),
            alone=True,
        ),
        store,
    )
    await store.close()


async def reached(store: SqliteStore, state: CrawlState) -> CrawlRow:
    """The crawl once it is in that state; whoever calls has a time limit."""
    while (row := await store.crawl(CrawlId(1))) is None or row.state is not state:  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0.02)
    return row


def test_a_crawl_begins_when_there_is_room_for_it(tmp_path: Path, server: BrokerServer) -> None:
    failures = Failures(
        put_crawl=[FULL, AWAY],
        counters_by_partition=[AWAY],
        publish=[FULL, FULL],
        newest_term=[AWAY, AWAY],
        set_state=[FULL, AWAY],
    )

    async def run() -> None:
        async with server.broker() as broker, Tasks() as tasks:
            await broker.declare([POOL])
            async with master(tmp_path, broker, parse_spec({"seeds": ["http://a.test/"]}), failures) as (made, store):
                stop = asyncio.Event()
                running = tasks.start("master", made.run(stop, grace_s=0))
                await reached(store, CrawlState.RUNNING)
                stop.set()
                await running

    asyncio.run(asyncio.wait_for(run(), 60))
    assert not any(failures.planned.values())


def test_a_master_that_is_told_to_stop_while_it_waits_for_room_ends(tmp_path: Path, server: BrokerServer) -> None:
    async def run() -> None:
        failures = Failures(put_crawl=[FULL] * 10_000)
        async with (
            server.broker() as broker,
            Tasks() as tasks,
            master(tmp_path, broker, parse_spec({"seeds": ["http://a.test/"]}), failures) as (made, store),
        ):
            stop = asyncio.Event()
            running = tasks.start("master", made.run(stop, grace_s=0))
            await failures.asked.wait()
            stop.set()
            await running
            assert await store.worked_on() == []

    asyncio.run(asyncio.wait_for(run(), 60))


def test_crawl_ends_once_disk_has_space_without_flooding_the_log(
    tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standalone, "_ACTIVE_TIME_S", 0.0)
    spec = parse_spec({"seeds": ["http://a.test/"], "budget": {"max_seconds": 1}})
    failures = Failures(add_active_time=[FULL, FULL, AWAY], set_state=[None, FULL, AWAY])

    async def run() -> None:
        async with server.broker() as broker, Tasks() as tasks:
            await broker.declare([POOL])
            async with master(tmp_path, broker, spec, failures) as (made, store):
                stop = asyncio.Event()
                running = tasks.start("master", made.run(stop, grace_s=0))
                row = await reached(store, CrawlState.FINISHED)
                assert (row.finished_reason, row.active_ms > 0) == ("max_seconds", True)
                published = LocalSpecs(tmp_path / "specs").latest(CrawlId(1))
                assert published is not None
                assert published.paused, "visits go on after the crawl's time"
                stop.set()
                await running

    with capture_logs() as logs:
        asyncio.run(asyncio.wait_for(run(), 60))
    assert not any(failures.planned.values())
    said = [(line["event"], line["error"]) for line in logs if line.get("error") in (str(AWAY), str(FULL))]
    # Of a full disk the store's adapter tells. What adds is not done again where nobody knows whether it was.
    assert said == [("active_time.unconfirmed", str(AWAY)), ("crawl_update.delayed", str(FULL))]


def test_time_in_which_a_full_disk_is_waited_for_is_not_counted(
    tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice there is no room to write down the time worked; meanwhile 1,000 s pass, and the crawl is held."""
    clock = Leaping()

    class Passing(Failures):
        def meet(self, name: str) -> None:
            if name == "add_active_time" and len(self.planned[name]) == 2:
                clock.ahead_s += 1000
            super().meet(name)

    failures = Passing(add_active_time=[FULL, FULL])
    monkeypatch.setattr(standalone, "_ACTIVE_TIME_S", 0.0)
    monkeypatch.setattr(Standalone, "_held", lambda _: "full" if failures.planned["add_active_time"] else None)
    spec = parse_spec({"seeds": ["http://a.test/"], "budget": {"max_seconds": 1}})

    async def run() -> None:
        async with server.broker() as broker, Tasks() as tasks:
            await broker.declare([POOL])
            async with master(tmp_path, broker, spec, failures, clock) as (made, store):
                stop = asyncio.Event()
                running = tasks.start("master", made.run(stop, grace_s=0))
                row = await reached(store, CrawlState.FINISHED)
                assert row.finished_reason == "max_seconds"
                assert row.active_ms < 1_000_000
                stop.set()
                await running

    asyncio.run(asyncio.wait_for(run(), 60))
    assert clock.ahead_s == 1000
