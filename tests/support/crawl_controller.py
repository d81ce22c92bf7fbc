"""A crawl controller under test, of a master that owns nothing unless it is given owners."""

from collections.abc import Iterator
from typing import Any, cast

from api.crawls.controller import CrawlController
from api.frontier.dispatch_crawls import DispatchCrawls
from api.leader.spec_publisher import CrawlSpecPublisher
from api.members.partition_owners import PartitionOwners
from shared.adapters.etcd.specs import EtcdSpecPublisher
from shared.adapters.local.clock import SystemClock
from shared.domain.ids import Term
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.ports.coordinator import Coordinator, Leadership
from shared.ports.items import ItemTable
from shared.ports.specs import SpecPublisher
from shared.ports.store import Store
from shared.runtime.supervise import Tasks
from shared.wire.keys import Keys


class NoOwners:
    """The owners of a master that owns nothing."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def owns_all(self) -> bool:
        return False

    def resumed(self) -> None:
        """There is no owner to wake."""


def controlling(
    store: Any, items: Any, broker: Any, clock: Any, *, partitions: int = 1, **others: Any
) -> CrawlController:
    """Return a controller on these engines or doubles."""
    return CrawlController(
        store=cast(Store, store),
        items=cast(ItemTable, items),
        broker=cast(Broker, broker),
        clock=cast(Clock, clock),
        partitions=partitions,
        crawls=others.pop("crawls", None) or DispatchCrawls(),
        fleet=cast(PartitionOwners, others.pop("fleet", None) or NoOwners()),
        **others,
    )


async def lead(controller: CrawlController, term: Term | None = None) -> None:
    """Run the controller as on a master that leads, until cancelled."""
    async with Tasks() as tasks:
        tasks.start("crawls", controller.run())
        await controller.lead(lambda: True, lambda: term)


def spec_publisher(
    coordinator: Coordinator,
    leadership: Leadership,
    keys: Keys,
    store: Store,
    *,
    publisher: SpecPublisher | None = None,
    partitions: int = 8,
) -> CrawlSpecPublisher:
    """Return a publisher of specs, with a controller that only reads what changed."""
    clock = SystemClock()
    records = publisher or EtcdSpecPublisher(coordinator, leadership, keys)
    controller = controlling(store, None, None, clock, partitions=partitions)
    return CrawlSpecPublisher(coordinator, leadership, records, keys, store, controller, clock, partitions)
