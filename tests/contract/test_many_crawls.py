"""What masters do for all crawls at every pass takes as many statements for a thousand crawls as for ten."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import pytest
from sqlalchemy import text

from api.crawls.active_crawls import ActiveCrawlSync
from api.crawls.controller import CrawlController
from api.frontier.dispatch_crawls import DispatchCrawls
from api.members.partition_owners import PartitionOwners
from shared.adapters.sql.catalog.items import SqlItems
from shared.domain.errors import Transient
from shared.domain.frontier.states import CrawlState, Position
from shared.ports.broker import Broker, ItemsState, StreamState
from shared.runtime.supervise import Tasks
from tests.support.database.statement_log import executor_of, statements
from tests.support.database.store_tables import NOW_MS, OTHER, PARTITION, Tables
from tests.support.manual_clock import Turned

OnStore = Callable[[Callable[[Tables], Awaitable[None]]], None]
BOUNDED = '{"seeds": [{"url": "http://a.test/"}], "budget": {"max_pages": 1000}}'


class Quiet:
    """A broker on which nothing was published."""

    async def reports_state(self) -> StreamState:
        return StreamState(1, 0)

    async def items_state(self) -> ItemsState:
        return ItemsState(1, 1, 0)

    async def last_report(self, partition: int, kind: str) -> int:
        return 0


class Away:
    """The owners of a master that owns nothing."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def owns_all(self) -> bool:
        return False

    def wake(self) -> None:
        """There is no owner to wake."""


@pytest.mark.parametrize("queued", [0, 1])
def test_tending_many_crawls_takes_few_statements(on_store: OnStore, queued: int) -> None:
    """Ten crawls more or a thousand, all complete or all with a URL queued."""

    async def story(t: Tables) -> None:
        sql = executor_of(t)
        await sql.write(lambda c: c.execute(text("UPDATE partitions SET stream_created_ns = 1")).close())
        assert (await t.store.positions())[PARTITION] == Position(1)
        await ended(t)
        taken = []
        for crawls in (10, 1_000):
            await running(t, crawls, queued)
            tending = tending_of(t)
            with statements() as sent:
                await tending._pass(lambda: True, cast(Tasks, None))
            taken.append(len([each for each in sent if each.startswith(("SELECT", "WITH"))]))
            left = [row for row in await t.store.worked_on() if row.state is CrawlState.RUNNING]
            assert len(left) == (0 if queued == 0 else crawls), "a complete crawl is found in the first pass"
            await ended(t)
        assert taken[1] - taken[0] <= 4, taken
        assert taken[0] >= 3, "they are not counted"

    on_store(story)


def test_loading_many_crawls_takes_few_statements(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await ended(t)
        taken = []
        for crawls in (10, 1_000):
            await running(t, crawls, 1)
            loaded = DispatchCrawls()
            crawling = ActiveCrawlSync(loaded, cast(PartitionOwners, Away()), t.store)
            for _ in range(2):  # new ones, and then what others spend of their budgets
                with statements() as sent:
                    await crawling.once()
                taken.append(len(sent))
            assert sum(crawl.dispatching for crawl in loaded) >= crawls
            await ended(t)
        assert max(taken[2:]) - max(taken[:2]) <= 4, taken

    on_store(story)


def test_crawl_with_unread_spending_is_not_dispatched(on_store: OnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next pass dispatched it as if nothing of its budget were spent."""

    async def story(t: Tables) -> None:
        await ended(t)
        await running(t, 1, 1)
        loaded = DispatchCrawls()
        crawling = ActiveCrawlSync(loaded, cast(PartitionOwners, Away()), t.store)
        with monkeypatch.context() as away:
            away.setattr(t.store, "counters_by_partition", _away)
            for _ in range(2):
                with pytest.raises(Transient):
                    await crawling.once()
            assert [crawl.dispatching for crawl in loaded] == [False]
        await crawling.once()
        assert [crawl.dispatching for crawl in loaded] == [True]
        await ended(t)

    on_store(story)


async def _away(crawl_ids: Any) -> Any:
    raise Transient("away")


def tending_of(t: Tables) -> CrawlController:
    return CrawlController(
        store=t.store,
        items=SqlItems(executor_of(t)),
        broker=cast(Broker, Quiet()),
        clock=Turned(),
        partitions=8,
        told=lambda: None,
    )


async def running(t: Tables, crawls: int, queued: int) -> None:
    """Let there be so many more crawls that run, with `queued` URLs each in two partitions."""

    def add(connection: Any) -> None:
        last = connection.execute(text("SELECT max(crawl_id) FROM crawls")).scalar_one()
        connection.execute(
            text("INSERT INTO crawls (name, revision, state, created_at_ms) VALUES (:name, 1, 'running', 0)"),
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
