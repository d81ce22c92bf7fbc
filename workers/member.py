"""A worker's place in a cluster: registered among the workers, with a view of the crawls."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import msgspec
import structlog

from shared.adapters.etcd import EtcdCoordinator
from shared.adapters.etcd.settings import etcd_of
from shared.adapters.etcd.specs import EtcdSpecs
from shared.adapters.local.suffixes import use_list
from shared.domain.software import VERSION
from shared.ports.clock import Clock
from shared.ports.coordinator import View
from shared.ports.registering import Registration
from shared.ports.retrying import until_answered
from shared.ports.specs import SpecSource
from shared.settings import ClusterWorkerSettings
from shared.supervise import Tasks
from shared.wire.keys import Keys, MemberRecord, decode_suffixes, encode_record

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """What a worker of a cluster goes by: its crawls, and a view of the hot configuration under `keys.configuration`.
    `say` registers anew how many visits it can hold, and whether it drains; `registration` is its sign of life."""

    specs: SpecSource
    configuration: View
    keys: Keys
    say: Callable[[int, bool], None]
    registration: Registration


@asynccontextmanager
async def joined(settings: ClusterWorkerSettings, clock: Clock) -> AsyncIterator[Place]:
    """Registered for the block. Waits for a coordinator that is away.

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
        configuration = await until_answered(lambda: stack.enter_async_context(coordinator.watch(keys.configuration)))
        tasks = await stack.enter_async_context(Tasks())
        registration = Registration(
            coordinator, keys.worker(settings.id), encode_record(member), ttl_s=settings.member_ttl_s, told=_told
        )

        def say(capacity: int, draining: bool) -> None:
            nonlocal member
            said, member = member, msgspec.structs.replace(member, capacity=capacity, draining=draining)
            if member != said:
                registration.change(encode_record(member))

        tasks.start("registration", registration.run())
        suffixes = await until_answered(lambda: stack.enter_async_context(coordinator.watch(keys.public_suffixes)))
        use_list(await list_in(suffixes, keys))
        yield Place(EtcdSpecs(view, keys), configuration, keys, say, registration)


async def list_in(view: View, keys: Keys) -> str:
    """The public suffix list that the cluster divides hosts by, as soon as a leader has published it.

    A worker of a newer release brings a newer list; by that one it would send links to the wrong owners.
    """
    snapshot = view.snapshot
    while (entry := snapshot.entries.get(keys.public_suffixes)) is None:
        log.info("worker.waits", reason="no leader has said yet how hosts are divided")
        snapshot = await view.changed(snapshot, None)
    return decode_suffixes(entry.value)


def _told(reason: str) -> None:
    log.warning("worker.unregistered", reason=reason)
