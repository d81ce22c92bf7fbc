"""Many crawls that run, and a master that leads and looks at them."""

from typing import Any, cast

from sqlalchemy import text

from api.frontier.dispatch_crawls import DispatchCrawls
from shared.adapters.sql.catalog.items import SqlItems
from shared.ports.broker import ItemsState, StreamState
from shared.runtime.supervise import Tasks
from tests.support.crawl_controller import controlling
from tests.support.database.statement_log import executor_of
from tests.support.database.store_tables import NOW_MS, OTHER, PARTITION, Tables
from tests.support.manual_clock import ManualClock

BOUNDED = '{"seeds": [{"url": "http://a.test/"}], "budget": {"max_pages": 1000}}'


class IdleBroker:
    """A broker on which nothing was published."""

    async def reports_state(self) -> StreamState:
        return StreamState(1, 0)

    async def items_state(self) -> ItemsState:
        return ItemsState(1, 1, 0)

    async def last_report(self, partition: int, kind: str) -> int:
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
