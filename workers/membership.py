"""A worker's membership of a cluster: its registration in etcd, and the specs and configuration that it reads there.

The endpoints (host and port) of masters, workers and engines are closed: no crawl may connect to them.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog

from shared.adapters.etcd import EtcdCoordinator
from shared.adapters.etcd.settings import etcd_of
from shared.adapters.etcd.specs import EtcdSpecs
from shared.adapters.local.addresses import listening_endpoints
from shared.adapters.local.suffixes import use_list
from shared.domain.errors import Transient
from shared.domain.ops.config import MemberRole, WorkerTuning, worker_tuning
from shared.domain.ops.egress import ETCD_PORT, NATS_PORT, engine_endpoints
from shared.domain.software import VERSION
from shared.ports.clock import Clock
from shared.ports.coordinator import Entry, View, differences
from shared.ports.specs import SpecSource
from shared.runtime.config_follower import ConfigFollower
from shared.runtime.exclusions import ExclusionsFollower
from shared.runtime.registration import Registration
from shared.runtime.retry import until_answered
from shared.runtime.supervise import Tasks
from shared.settings import ClusterWorkerSettings, WorkerSettings, listed
from shared.telemetry import set_log_level
from shared.wire.keys import Keys, MemberRecord, decode_record, decode_suffixes, encode_record
from shared.wire.messages import Malformed
from workers.fetch.closed_endpoints import ClosedEndpoints
from workers.report import Reporter
from workers.runtime import Runtime

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerMembership:
    """The connection of a worker to its cluster while it is a member.

    - `specs`: the specs of the crawls.
    - `configuration`: the present hot configuration, read from the etcd keys under `keys.configuration`.
    - `exclusions`: the exclusions in force, which are read from `configuration`.
    - `say(capacity, draining)`: register how many visits the worker can run, and if it drains.
    - `registration`: the worker's key in etcd, which disappears when the worker is gone.
    - `closed`: endpoints of the cluster that no crawl may connect to.
    - `listens(address)`: add the address of the worker's own server to `closed`, and register it for other members.
    """

    specs: SpecSource
    configuration: View
    keys: Keys
    say: Callable[[int, bool], None]
    registration: Registration
    closed: ClosedEndpoints
    listens: Callable[[str], None]
    exclusions: ExclusionsFollower

    def tuning(self, settings: WorkerSettings, runtime: Runtime, reporter: Reporter) -> ConfigFollower[WorkerTuning]:
        """Return a follower that applies the hot configuration to the worker's parts.

        The present configuration is applied before this returns. So a worker that must drain never pulls a shard.
        """
        visits, draining = settings.max_visits, False

        def apply(values: WorkerTuning) -> None:
            nonlocal visits
            visits = values.max_visits
            set_log_level(values.log_level)
            reporter.pace(values.report_s)
            runtime.tune(visits, follower.revision)
            self.say(visits, draining)

        def drain(desired: bool) -> None:
            nonlocal draining
            draining = desired
            runtime.drain(draining)
            self.say(visits, draining)

        started = WorkerTuning(settings.max_visits, settings.report_s, settings.log_level)
        tuned = partial(worker_tuning, settings.pool)
        follower = ConfigFollower(
            self.configuration, self.keys, MemberRole.WORKER, settings.id, started, tuned, apply=apply, drain=drain
        )
        follower.follow(self.configuration.snapshot)
        return follower


@asynccontextmanager
async def joined(settings: ClusterWorkerSettings, clock: Clock) -> AsyncIterator[WorkerMembership]:
    """Yield the worker's membership, registered in etcd until the `with` block ends.

    At the start, wait until etcd answers. A later outage of etcd stops nothing: the worker uses the last specs and
    registers again afterwards.
    """
    keys = Keys(settings.cluster)
    brokers = engine_endpoints(listed(settings.nats_url), NATS_PORT)
    engines = (*brokers, *engine_endpoints(listed(settings.etcd), ETCD_PORT))
    member = MemberRecord(
        settings.id,
        VERSION,
        started_at_ms=clock.unix_ms(),
        pool=settings.pool,
        capacity=settings.max_visits,
        allow_net=settings.allow_net.parts,
        endpoints=engines,
    )
    closed = ClosedEndpoints()
    closed.add((*engines, *listed(settings.closed)))
    coordinator = EtcdCoordinator(etcd_of(settings), clock)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(coordinator.close)

        def on_delay(error: Transient) -> None:
            log.warning("worker_start.delayed", engine="etcd", address=settings.etcd, error=str(error))

        async def watched(prefix: str) -> View:
            return await until_answered(lambda: stack.enter_async_context(coordinator.watch(prefix)), on_delay)

        view = await watched(keys.crawls)
        configuration = await watched(keys.configuration)
        tasks = await stack.enter_async_context(Tasks())
        registration = Registration(
            coordinator,
            keys.worker(settings.id),
            encode_record(member),
            ttl_s=settings.member_ttl_s,
            on_error=_on_unregistered,
        )

        def say(capacity: int, draining: bool) -> None:
            nonlocal member
            previous, member = member, msgspec.structs.replace(member, capacity=capacity, draining=draining)
            if member != previous:
                registration.change(encode_record(member))

        def listens(bound: str) -> None:
            nonlocal member
            own = listening_endpoints(bound)
            closed.add(own)
            member = msgspec.structs.replace(member, endpoints=(*member.endpoints, *own))
            registration.change(encode_record(member))

        tasks.start("registration", registration.run())
        masters = await watched(keys.masters)
        workers = await watched(keys.workers)
        for role, members in (("masters", masters), ("workers", workers)):
            _close(closed, members.snapshot.entries.values())
            tasks.start(f"closed endpoints of {role}", _keep_closed(closed, members))
        await closed.resolve()
        tasks.start("closed endpoints", closed.run())
        suffixes = await watched(keys.public_suffixes)
        use_list(await list_in(suffixes, keys))
        exclusions = ExclusionsFollower(configuration, keys)
        yield WorkerMembership(
            EtcdSpecs(view, keys), configuration, keys, say, registration, closed, listens, exclusions
        )


async def _keep_closed(closed: ClosedEndpoints, members: View) -> None:
    """Forbid crawls to connect to members of the cluster, until cancelled.

    When a member registers or changes its registration, add its endpoints to `closed`.
    """
    known = members.snapshot
    while True:
        snapshot = await members.changed(known, None)
        _close(closed, [change.after for change in differences(known, snapshot) if change.after is not None])
        known = snapshot


def _close(closed: ClosedEndpoints, members: Iterable[Entry]) -> None:
    for entry in members:
        try:
            closed.add(decode_record(MemberRecord, entry.value).endpoints)
        except Malformed as error:
            log.error("control_record.rejected", key=entry.key, error=str(error))


async def list_in(view: View, keys: Keys) -> str:
    """Return the public suffix list by which the cluster assigns hosts to partitions.

    Wait until a leader has published it. With another list, the worker would send links to the wrong owners.
    """
    snapshot = view.snapshot
    while (entry := snapshot.entries.get(keys.public_suffixes)) is None:
        log.info("worker_start.delayed", reason="no leader has published the public suffix list yet")
        snapshot = await view.changed(snapshot, None)
    return decode_suffixes(entry.value)


def _on_unregistered(reason: str) -> None:
    log.warning("worker.unregistered", reason=reason)
