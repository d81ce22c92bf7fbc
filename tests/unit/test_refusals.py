"""What the database or the broker refuses for good: it is said, and the master goes on with everything else."""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol, cast

from structlog.testing import capture_logs

from api.observe.sampler import StatsSampler
from shared.adapters.local.clock import SystemClock
from shared.domain.errors import Permanent
from shared.domain.frontier.crawl_rows import ChangeMark, CrawlChanges
from shared.domain.frontier.states import Position
from shared.domain.ids import CrawlId, Partition
from shared.domain.ops.counts import CrawlCounts
from shared.ports.broker import Broker
from shared.ports.store import Store
from shared.runtime.supervise import Tasks
from tests.support.crawl_controller import controlling, lead

_CLOCK: Final = SystemClock()


class Refusing:
    """Stands for a database and a broker; the first call of `refused` is refused. What was asked of it, in order."""

    def __init__(self, refused: str) -> None:
        self.asked: list[str] = []
        self._refused = refused

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if what == self._refused and self.asked.count(what) == 1:
            raise Permanent(f"{what}: refused")

    async def data_version(self) -> None:
        return None

    async def crawl_changes(self, mark: ChangeMark, known: object, compare: object) -> CrawlChanges:
        self._ask("crawl_changes")
        return CrawlChanges(mark, {}, {}, (), (), {}, {})

    async def positions(self) -> dict[Partition, Position]:
        return {}

    async def reopen(self, after: CrawlId, max_count: int, among: object) -> tuple[Sequence[CrawlId], None]:
        self._ask("reopen")
        return [], None

    async def uncollected(self) -> dict[CrawlId, Sequence[int]]:
        self._ask("uncollected")
        return {}

    async def fullness(self, kind: str) -> float:
        self._ask("fullness")
        return 0.0

    async def pending_reports(self) -> int:
        self._ask("pending_reports")
        return 0


class Kept(Protocol):
    """A loop that is kept at, and may be woken."""

    async def run(self) -> None: ...

    def wake(self) -> None: ...


async def told(loop: Kept, engines: Refusing, then: str) -> list[str]:
    """The errors that are logged until `then` is asked for the second time."""
    with capture_logs() as logs:
        async with asyncio.timeout(30), Tasks() as tasks:
            task = tasks.start("run", loop.run())
            while engines.asked.count(then) < 2 and not task.done():
                loop.wake()
                await asyncio.sleep(0.01)
    return [line["event"] for line in logs if line["log_level"] == "error"]


class Tended:
    """A leader's tending, acting."""

    def __init__(self, engines: Refusing) -> None:
        self._controller = controlling(engines, engines, engines, _CLOCK)

    def wake(self) -> None:
        self._controller.wake(look_back=True)

    async def run(self) -> None:
        await lead(self._controller)


class Metered(StatsSampler):
    """A metering that needs no waking."""

    def wake(self) -> None: ...


def test_a_pass_that_the_database_refuses_is_made_up_for_by_the_next() -> None:
    async def story() -> None:
        store = Refusing("crawl_changes")
        assert await told(controlling(store, store, store, _CLOCK), store, "crawl_changes") == ["crawl_sync.refused"]

    asyncio.run(story())


def test_a_leader_goes_on_tending_after_a_refusal() -> None:
    async def story() -> None:
        store = Refusing("crawl_changes")
        assert await told(Tended(store), store, "reopen") == ["crawl_sync.refused"]

    asyncio.run(story())


def test_what_is_refused_of_one_thing_keeps_a_leader_from_nothing_else() -> None:
    async def story() -> None:
        store = Refusing("reopen")
        assert await told(Tended(store), store, "uncollected") == ["crawl_pass.refused"]

    asyncio.run(story())


def test_numbers_that_cannot_be_read_are_read_later() -> None:
    async def story() -> None:
        engines = Refusing("fullness")
        metering = Metered(
            CrawlCounts(1),
            list,
            store=cast(Store, engines),
            broker=cast(Broker, engines),
            clock=_CLOCK,
            read_s=0.01,
        )
        assert await told(metering, engines, "pending_reports") == ["stats_refresh.refused"]

    asyncio.run(story())
