"""A worker's place in a cluster: registered among the workers, with a view of the crawls."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import structlog

from shared.adapters.etcd import EtcdCoordinator
from shared.adapters.etcd.settings import etcd_of
from shared.adapters.etcd.specs import EtcdSpecs
from shared.domain.software import VERSION
from shared.ports.clock import Clock
from shared.ports.registering import Registration
from shared.ports.retrying import until_answered
from shared.ports.specs import SpecSource
from shared.settings import ClusterWorkerSettings
from shared.supervise import Tasks
from shared.wire.keys import Keys, MemberRecord, encode_record

log = structlog.get_logger(__name__)


@asynccontextmanager
async def joined(settings: ClusterWorkerSettings, clock: Clock) -> AsyncIterator[SpecSource]:
    """Registered for the block, and its source of specs. Waits for a coordinator that is away.

    Afterwards its absence stops nothing: the specs are those last seen, and the worker registers again when it can.
    """
    keys = Keys(settings.cluster)
    member = MemberRecord(
        settings.id, VERSION, started_at_ms=clock.unix_ms(), pool=settings.pool, capacity=settings.visits
    )
    coordinator = EtcdCoordinator(etcd_of(settings), clock)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(coordinator.close)
        view = await until_answered(lambda: stack.enter_async_context(coordinator.watch(keys.crawls)))
        tasks = await stack.enter_async_context(Tasks())
        registration = Registration(
            coordinator, keys.worker(settings.id), encode_record(member), ttl_s=settings.member_ttl_s, told=_told
        )
        tasks.start("registration", registration.run())
        yield EtcdSpecs(view, keys)


def _told(reason: str) -> None:
    log.warning("worker.unregistered", reason=reason)
