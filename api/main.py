"""The master's composition root. Shutdown runs in the reverse order of the contexts."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import structlog
import uvloop

from api.frontier.ownership import FrontierSettings
from api.frontier.stats import OwnerStats
from api.master.cluster_master import ClusterMaster, ClusterSettings
from api.master.standalone import Standalone
from api.members.eviction import Eviction
from shared.adapters.local.addresses import listening_endpoints
from shared.adapters.local.clock import SystemClock
from shared.adapters.local.resources import disk_of, memory_of_process
from shared.adapters.local.specs import LocalSpecs
from shared.adapters.local.suffixes import installed_list, use_list, use_snapshot
from shared.adapters.nats.broker import NatsBroker
from shared.adapters.nats.settings import StreamSettings, nats_tls_of, streams_of
from shared.adapters.sql.catalog.items import SqlItems
from shared.adapters.sql.engine.lock_holder import write_note
from shared.adapters.sql.engine.sqlite import SqliteThreads
from shared.adapters.sql.frontier.store import SqliteStore, SqlStore
from shared.domain.crawl.spec import CrawlSpec, decode_spec
from shared.domain.crawl.spec_rules import refused_pattern
from shared.domain.errors import Permanent, Transient, Unusable, single
from shared.domain.frontier.placement import StoreKind
from shared.domain.ops.counts import CrawlCounts
from shared.domain.ops.egress import ETCD_PORT, NATS_PORT, POSTGRES_PORT, engine_endpoints
from shared.domain.ops.watermarks import Resource
from shared.domain.software import VERSION
from shared.domain.web.url import public_suffix_snapshot
from shared.ports.catalog import Catalog
from shared.runtime.garbage import collecting_when_idle
from shared.runtime.pressure_monitor import Gauge, refusing
from shared.runtime.retry import until_answered
from shared.runtime.stalls import ending_where_it_stands
from shared.runtime.supervise import Tasks, close_on_exec, failpoint_of, until_stopped
from shared.settings import ClusterMasterSettings, MasterSettings, from_environment, listed
from shared.telemetry import configure_logging
from shared.tls import ClientTls, TlsSettings, following, server_tls
from shared.wire.keys import Keys, MemberRecord

T = TypeVar("T")

log = structlog.get_logger("orb.master")

_MAX_LOCAL_HOSTS: Final = 40_000
"""Hosts that the master of a local crawl keeps in memory, over all partitions."""

_PROBE_S = 2.0
_LAST_WORDS_S = 1.0
DATABASE = "crawl.db"
SPEC = "spec.json"
SPECS = "specs"
_POSTGRES = ("postgresql:", "postgres:")


async def run(settings: MasterSettings) -> int:
    """Work on the folder's crawl until SIGTERM. Return the exit code: 0, or 4 if the environment is unusable."""
    return await _until_signalled(lambda stop, up: _serve(settings, stop, up))


async def serve_cluster(settings: ClusterMasterSettings) -> int:
    """Run a master of the cluster until SIGTERM. Return the exit code: 0, or 4 if the environment is unusable."""
    return await _until_signalled(lambda stop, up: _serve_cluster(settings, stop, up))


async def _until_signalled(work: Callable[[asyncio.Event, asyncio.Event], Coroutine[Any, Any, None]]) -> int:
    stop, up = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    code = 0
    try:
        with ending_where_it_stands(SystemClock()), collecting_when_idle():
            await until_stopped(work(stop, up), stop, up)
    except* Unusable as group:
        log.error("master.failed", error="; ".join(map(str, single(group))))
        code = 4
    else:
        log.info("master.stopped")
    return code


async def _serve(settings: MasterSettings, stop: asyncio.Event, up: asyncio.Event) -> None:
    spec = _read_spec(settings.dir / SPEC)
    use_snapshot(settings.dir)
    clock = SystemClock()
    path = settings.dir / DATABASE
    store = await _waiting("database", lambda: SqliteStore.open(path, synchronous=settings.synchronous))
    try:
        partitions, _ = await _waiting(
            "database",
            lambda: store.open_cluster(settings.partitions, public_suffix_snapshot(), clock.unix_ms()),
        )
        broker = await _waiting(
            "nats",
            lambda: NatsBroker.connect(
                [settings.nats_url],
                token=settings.nats_token,
                name="orb-master",
                settings=StreamSettings(ack_wait_s=settings.ack_wait_s),
            ),
        )
        try:
            await _waiting("nats", lambda: broker.declare([settings.pool]))
            master = Standalone(
                spec,
                store=store,
                items=SqlItems(store.executor),
                broker=broker,
                specs=LocalSpecs(settings.dir / SPECS),
                clock=clock,
                settings=FrontierSettings(
                    partitions=partitions,
                    grant_s=settings.grant_s,
                    ack_wait_s=settings.ack_wait_s,
                    max_hosts=max(1, _MAX_LOCAL_HOSTS // partitions),
                ),
                alone=settings.alone,
                gauges={Resource.MEMORY: memory_of_process(settings.memory_bytes)},
                retry_id=settings.retry_id,
                unblock=settings.unblock,
            )
            up.set()
            await master.run(stop, grace_s=settings.grace_s)
        finally:
            await broker.close()
    finally:
        await store.close()


async def _serve_cluster(settings: ClusterMasterSettings, stop: asyncio.Event, up: asyncio.Event) -> None:
    from api.events.publisher import EventPublisher
    from api.events.recorder import EventRecorder
    from api.http.authentication import Keyring
    from api.http.deps import Services
    from api.http.forwarding import leaders_client
    from api.http.sse import OpenEventStreams
    from api.observe.metrics import MasterMetrics
    from api.observe.sampler import StatsSampler
    from api.server.app import application
    from api.server.serving import address_of, bound, listen, places_for, serving
    from shared.adapters.etcd import EtcdCoordinator  # Imported here, so that only a cluster loads its libraries.
    from shared.adapters.etcd.settings import etcd_of
    from shared.adapters.etcd.specs import EtcdSpecPublisher
    from shared.adapters.objects.local import LocalSegments
    from shared.adapters.objects.page_archive import ServedPages
    from shared.adapters.sql.admin.retention import SqlRetained
    from shared.adapters.sql.catalog.catalog import SqlCatalog
    from shared.adapters.sql.catalog.desired import SqlDesired
    from shared.adapters.sql.catalog.overview import SqlOverview

    clock, keys = SystemClock(), Keys(settings.cluster)
    async with AsyncExitStack() as stack:
        store, kind = await open_store(settings)
        stack.push_async_callback(store.close)
        partitions, suffixes = await _waiting(
            "database", lambda: store.open_cluster(settings.partitions, installed_list(), clock.unix_ms())
        )
        use_list(suffixes)
        broker = await _waiting(
            "nats",
            lambda: NatsBroker.connect(
                listed(settings.nats_url),
                token=settings.nats_token,
                name=settings.id,
                settings=streams_of(settings),
                tls=nats_tls_of(settings),
            ),
        )
        stack.push_async_callback(broker.close)
        await _declare(broker, listed(settings.pools))
        coordinator = EtcdCoordinator(etcd_of(settings), clock)
        stack.push_async_callback(coordinator.close)
        view = await _waiting("etcd", lambda: stack.enter_async_context(coordinator.watch(keys.root)))
        catalog = SqlCatalog(store.executor)
        tls = server_tls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        others = ClientTls(TlsSettings(settings.tls_ca or settings.tls_client_ca, settings.tls_cert, settings.tls_key))
        listener = bound(settings.http)
        stack.callback(listener.close)
        # The key is shown only once, so print it after everything that can fail the start. It may wait for the
        # database, so do it before listening.
        await show_first_key(catalog, clock.unix_ms())
        listen(listener)
        address = settings.address or ("" if tls is None else "https://") + address_of(listener)
        member = MemberRecord(
            settings.id,
            VERSION,
            started_at_ms=clock.unix_ms(),
            address=address,
            endpoints=_endpoints(settings, address_of(listener)),
        )
        desired = SqlDesired(store.executor)
        tally = OwnerStats(crawls=CrawlCounts(settings.metrics_crawls))
        telling = EventPublisher(broker.events, clock, settings.id)
        master = ClusterMaster(
            member,
            coordinator=coordinator,
            view=view,
            keys=keys,
            store=store,
            items=SqlItems(store.executor),
            desired=desired,
            kind=kind,
            broker=broker,
            publisher=lambda leadership: EtcdSpecPublisher(coordinator, leadership, keys),
            clock=clock,
            frontier=FrontierSettings(partitions=partitions, grant_s=settings.grant_s, ack_wait_s=settings.ack_wait_s),
            tally=tally,
            settings=ClusterSettings(ttl_s=settings.member_ttl_s, log_level=settings.log_level),
            failpoint=failpoint_of(os.environ),
            alarm=telling.alarm,
            gauges=_gauges(settings, store, kind, broker),
            room_heard=telling.room,
            retained=SqlRetained(store.executor),
        )
        overview, streams_open = SqlOverview(store.executor), OpenEventStreams(settings.event_streams)
        chronicle = EventRecorder(master, overview, broker.events, telling, clock, settings.id)
        metering = StatsSampler(
            master.crawls,
            tally.crawls,
            master.owned,
            store=store,
            broker=broker,
            clock=clock,
            read_s=settings.metrics_s,
        )
        places = places_for(settings.http_connections)
        metrics = MasterMetrics(
            master, metering, tally, clock, places, member=settings.id, store=kind, partitions=partitions
        )
        archive = None if settings.archive is None else ServedPages(LocalSegments(settings.archive))
        if archive is not None:
            stack.callback(archive.close)
        services = Services(
            catalog=catalog,
            broker=broker,
            plane=master,
            clock=clock,
            keyring=Keyring(catalog),
            partitions=partitions,
            member=settings.id,
            ready=lambda: _missing(
                {
                    "database": store.newest_term,
                    "nats": broker.reports_state,
                    "etcd": lambda: coordinator.get(keys.leader),
                }
            ),
            registry=metrics.registry(),
            archive=archive,
            desired=desired,
            events=broker.events,
            overview=overview,
            backlog=broker,
            telling=telling,
            streams=streams_open,
            exports=OpenEventStreams(settings.exports),
            body_bytes=settings.body_bytes,
            roster=master.roster,
            tuning=master.tuning,
            wanted=master.wanted,
            longest_grant_s=settings.grant_s,
            ack_wait_s=settings.ack_wait_s,
            pressure=lambda: master.rationing.pressure,
        )
        client = await stack.enter_async_context(leaders_client(others.context))
        up.set()
        log.info("master.started", master=settings.id, partitions=partitions, store=kind, address=member.address)
        async with serving(application(services, client), listener, tls, places), Tasks() as beside:
            beside.start("certificates", following(*((others,) if tls is None else (others, tls))))
            beside.start("metering", metering.run())
            beside.start("telling", telling.run())
            beside.start("chronicle", chronicle.run())
            if isinstance(store.executor, SqliteThreads):
                file = _sqlite_file(settings)
                stack.callback(write_note(file, member.id, member.started_at_ms).unlink, missing_ok=True)
                evicting = Eviction(
                    file, waited_s=store.executor.write_waits_s, leads=master.is_leader, lives=_lives(master)
                )
                beside.start("eviction", evicting.run())
            with streams_open.until_closed():
                await master.run(stop)
            await telling.finish(_LAST_WORDS_S)


def _endpoints(settings: ClusterMasterSettings, listening: str) -> tuple[str, ...]:
    """Return `host:port` of this master's API and of the engines that it uses, which workers keep closed to crawls."""
    database = settings.database if settings.database.startswith(_POSTGRES) else ""
    return (
        *listening_endpoints(listening),
        *engine_endpoints(listed(settings.address), 443 if settings.address.startswith("https:") else 80),
        *engine_endpoints(listed(settings.nats_url), NATS_PORT),
        *engine_endpoints(listed(settings.etcd), ETCD_PORT),
        *engine_endpoints([database] if database else [], POSTGRES_PORT),
    )


async def show_first_key(catalog: Catalog, now_ms: int) -> None:
    """Create and print an admin key if there is no key at all yet.

    Wait while the database is unavailable or full. Every attempt adds the same key: if a reply was lost, that key may
    be stored already and must be the one that is printed.
    """
    from api.http.authentication import first_key

    kept, key = first_key(now_ms)
    if await _waiting("database", lambda: catalog.add_first_key(kept)):
        print(f"orb: the first admin key, shown this once: {key}", file=sys.stderr, flush=True)


async def _waiting(engine: str, call: Callable[[], Awaitable[T]]) -> T:
    """Return the call's result. Log and retry every Transient, for as long as the engine is unavailable."""
    return await until_answered(
        call, lambda error: log.warning("master_start.delayed", engine=engine, error=str(error))
    )


async def _declare(broker: NatsBroker, pools: Sequence[str]) -> None:
    """Declare the streams. Raise Unusable if the broker refuses them: waiting would not help."""
    try:
        await _waiting("nats", lambda: broker.declare(pools))
        await _waiting("nats", broker.events.declare)
    except Permanent as error:
        raise Unusable(f"the broker cannot keep what it is to keep: {error}") from error


async def _missing(probes: Mapping[str, Callable[[], Awaitable[object]]]) -> Sequence[str]:
    """Return the names of the engines that do not answer now."""
    missing = []
    for name, probe in probes.items():
        try:
            async with asyncio.timeout(_PROBE_S):
                await probe()
        except (Transient, Permanent, Unusable, TimeoutError) as error:
            log.warning("readiness_probe.failed", engine=name, error=str(error))
            missing.append(name)
    return missing


def _lives(master: ClusterMaster) -> Callable[[str, int], bool]:
    """Return a function: True if the coordinator lists a master with this id and start time."""

    def lives(member: str, started_at_ms: int) -> bool:
        record = master.members().masters.get(member)
        return record is not None and record.started_at_ms == started_at_ms

    return lives


async def open_store(settings: ClusterMasterSettings) -> tuple[SqlStore, StoreKind]:
    """Open the cluster's database by its URL or path. Wait while the server is unavailable."""
    if settings.database.startswith(_POSTGRES):
        from shared.adapters.sql.engine.postgres import (  # Imported here, so that SQLite does not load its libraries.
            PostgresSettings,
            PostgresStore,
        )

        pools = PostgresSettings(writers=settings.database_writers, readers=settings.database_readers)
        return await _waiting("database", lambda: PostgresStore.open(settings.database, pools)), StoreKind.POSTGRESQL
    path = _sqlite_file(settings)
    store = await _waiting("database", lambda: SqliteStore.open(path, synchronous=settings.synchronous))
    return store, StoreKind.SQLITE


def _gauges(
    settings: ClusterMasterSettings, store: SqlStore, kind: StoreKind, broker: NatsBroker
) -> Mapping[Resource, Gauge]:
    """Return the gauges of the resources that this master measures."""
    gauges: dict[Resource, Gauge] = {
        Resource.NATS: broker.storage,
        Resource.MEMORY: memory_of_process(settings.memory_bytes),
    }
    if kind is StoreKind.SQLITE:
        gauges[Resource.DATABASE] = refusing(disk_of(_sqlite_file(settings)), store.executor.disk_full)
    else:
        from shared.adapters.sql.engine.postgres import database_gauge

        gauges[Resource.DATABASE] = database_gauge(store.executor, settings.database_bytes)
    if settings.nats_store is not None:
        gauges[Resource.NATS_DISK] = disk_of(settings.nats_store)
    return gauges


def _sqlite_file(settings: ClusterMasterSettings) -> Path:
    return Path(re.sub(r"^sqlite:(//(?=/))?", "", settings.database))


def _read_spec(path: Path) -> CrawlSpec:
    try:
        spec = decode_spec(path.read_bytes())
    except FileNotFoundError:
        raise Unusable(f"{path} is missing: start the crawl with `orb crawl`") from None
    except msgspec.MsgspecError as error:
        raise Unusable(f"{path} is no crawl spec ({error}): start the crawl with `orb crawl`") from error
    if (refused := refused_pattern(spec.scope, spec.extract)) is not None:
        raise Unusable(f"{path}: {refused}")
    return spec


def main() -> int:
    """Run from the process's environment."""
    settings = from_environment(MasterSettings)
    close_on_exec()
    configure_logging(settings.log_level, settings.log_format, role="master")
    return uvloop.run(run(settings))


def cluster_main(settings: ClusterMasterSettings) -> int:
    """Run a master of a cluster."""
    close_on_exec()
    configure_logging(settings.log_level, settings.log_format, role="master", master=settings.id)
    return uvloop.run(serve_cluster(settings))
