"""Many crawls that run, and a master that leads and looks at them."""

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import text

from api.events.publisher import EventPublisher
from api.events.recorder import EventRecorder
from api.frontier.dispatch_crawls import DispatchCrawls
from api.observe.sampler import StatsSampler
from shared.adapters.sql.catalog.items import SqlItems
from shared.adapters.sql.catalog.overview import SqlOverview
from shared.domain.ids import Partition, Term
from shared.domain.ops.counts import CrawlCounts
from shared.ports.broker import Broker, Delivered, ItemsState, StreamState
from shared.ports.events import Events
from shared.runtime.supervise import Tasks
from shared.wire.events import EventKind
from shared.wire.keys import MemberRecord
from tests.support.crawl_controller import controlling
from tests.support.database.statement_log import executor_of
from tests.support.database.store_tables import NOW_MS, OTHER, PARTITION, Tables
from tests.support.manual_clock import ManualClock
from tests.support.single_master import SingleMaster

BOUNDED = '{"seeds": [{"url": "http://a.test/"}], "budget": {"max_pages": 1000}}'


class IdleBroker:
    """A broker on which nothing was published."""

    async def reports_state(self) -> StreamState:
        return StreamState(1, 0)

    async def items_state(self) -> ItemsState:
        return ItemsState(1, 1, 0)

    async def last_report(self, partition: int, kind: str) -> int:
        return 0

    async def fullness(self, kind: str) -> float:
        return 0.0

    async def pending_reports(self) -> int:
        return 0


class Master:
    """A master that leads: its passes, and what its leader does after one."""

    def __init__(self, t: Tables) -> None:
        self.crawls = DispatchCrawls()
        items = SqlItems(executor_of(t))
        self.controller = controlling(t.store, items, IdleBroker(), ManualClock(), partitions=8, crawls=self.crawls)
        self.controller._leading = True
        self.controller._known.look_at_all({})

    async def look(self) -> None:
        await self.controller.once()
        await self.controller._tend(cast(Tasks, None))
        await self.controller._finish()
        await self.controller._reopen()
        await self.controller.count_time()


class NoEvents:
    """An empty stream of events."""

    async def declare(self) -> None: ...

    async def newest(self, pattern: str) -> Sequence[Delivered]:
        return []


class Recorder:
    """The recorder of events of a master that leads, and the (kind, about, action) that it published."""

    def __init__(self, t: Tables) -> None:
        self.published: list[tuple[EventKind, object, str]] = []
        self.clock = ManualClock()
        plane, overview = SingleMaster(MemberRecord("m", "1", started_at_ms=1), Term(1), 8), SqlOverview(executor_of(t))
        self.recorder = EventRecorder(
            plane, overview, cast(Events, NoEvents()), cast(EventPublisher, self), self.clock, "m"
        )

    def publish(self, kind: EventKind, about: object, action: str, **rest: object) -> None:
        self.published.append((kind, about, action))

    async def look(self) -> None:
        self.clock.now += 1.0
        await self.recorder.once()


def sampling(t: Tables, owned: Sequence[Partition]) -> StatsSampler:
    """Return the sampler of a master that owns these partitions."""
    broker = cast(Broker, IdleBroker())
    return StatsSampler(CrawlCounts(), lambda: owned, store=t.store, broker=broker, clock=ManualClock())


async def running(t: Tables, crawls: int, queued: int) -> None:
    """Let there be so many more crawls that run, with `queued` URLs each in two partitions."""

    def add(connection: Any) -> None:
        last = connection.execute(text("SELECT max(crawl_id) FROM crawls")).scalar_one()
        connection.execute(
            text(
                "INSERT INTO crawls (name, revision, state, created_at_ms, change)"
                " SELECT :name, 1, 'running', 0, 1 + max(change) FROM crawls"
            ),
            [{"name": f"many-{last}-{n}"} for n in range(crawls)],
        )
        connection.execute(
            text(
                "INSERT INTO crawl_revisions (crawl_id, revision, spec, created_at_ms)"
                " SELECT crawl_id, 1, :spec, :now FROM crawls WHERE crawl_id > :last"
            ),
            {"last": last, "spec": BOUNDED, "now": NOW_MS},
        )
        for partition in (PARTITION, OTHER):
            connection.execute(
                text(
                    "INSERT INTO crawl_counters (crawl_id, partition, queued, version)"
                    " SELECT crawl_id, :partition, :queued, 1 FROM crawls WHERE crawl_id > :last"
                ),
                {"last": last, "partition": partition, "queued": queued},
            )

    await executor_of(t).write(add)


async def ended(t: Tables) -> None:
    """Let no crawl be worked on. Forget what was counted of them: there are no URLs of it."""

    def end(connection: Any) -> None:
        connection.execute(text("UPDATE crawls SET state = 'finished'"))
        connection.execute(text("DELETE FROM crawl_counters"))

    await executor_of(t).write(end)
