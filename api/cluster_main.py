"""Start a master of a cluster: connect its services, compose its parts, and stop them in reverse order."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

import structlog
import uvloop

from api.events.publisher import EventPublisher
from api.events.recorder import EventRecorder
from api.frontier.ownership import FrontierSettings
from api.frontier.stats import OwnerStats
from api.http.authentication import Keyring, first_key
from api.http.deps import Services
from api.http.forwarding import leaders_client
from api.http.sse import StreamLimit
from api.main import connected, until_signalled
from api.master.cluster_master import ClusterMaster, ClusterSettings
from api.members.engines import MasterEngines
from api.members.eviction import Eviction
from api.observe.metrics import MasterMetrics
from api.observe.sampler import StatsSampler
from api.security.key_uses import KeyUses
from api.security.limits import Permits, WrongKeys
from api.server.app import application
from api.server.serving import address_of, bound, listen, places_for, serving
from shared.adapters.etcd import EtcdCoordinator
from shared.adapters.etcd.settings import etcd_of
from shared.adapters.etcd.specs import EtcdSpecPublisher
from shared.adapters.local.addresses import listening_endpoints
from shared.adapters.local.clock import SystemClock
from shared.adapters.local.resources import disk_of, memory_of_process
from shared.adapters.local.suffixes import installed_list, use_list
from shared.adapters.nats.broker import NatsBroker
from shared.adapters.objects.local import LocalSegments
from shared.adapters.objects.page_archive import ServedPages
from shared.adapters.sql.admin.retention import SqlRetained
from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.adapters.sql.catalog.items import SqlItems
from shared.adapters.sql.catalog.overview import SqlOverview
from shared.adapters.sql.catalog.schedules import SqlSchedules
from shared.adapters.sql.engine.lock_holder import write_note
from shared.adapters.sql.engine.sqlite import SqliteThreads
from shared.adapters.sql.frontier.store import SqliteStore, SqlStore
from shared.domain.errors import Permanent, Transient, Unusable
from shared.domain.frontier.placement import StoreKind
from shared.domain.ops.counts import CrawlCounts
from shared.domain.ops.egress import ETCD_PORT, NATS_PORT, POSTGRES_PORT, engine_endpoints
from shared.domain.ops.watermarks import Resource
from shared.domain.software import VERSION
from shared.ports.catalog import Catalog
from shared.ports.overview import Overview
from shared.runtime.pressure_monitor import Gauge, refusing
from shared.runtime.supervise import Tasks, close_on_exec, failpoint_of
from shared.settings import ClusterMasterSettings, is_postgresql, listed, sqlite_file
from shared.telemetry import configure_logging
from shared.tls import ClientTls, TlsSettings, following, server_tls
from shared.wire.keys import Keys, MemberRecord

log = structlog.get_logger("orb.master")

_PROBE_S: Final = 2.0
_LAST_WORDS_S: Final = 1.0


def cluster_main(settings: ClusterMasterSettings) -> int:
    """Run a master of a cluster until SIGTERM or SIGINT.

    Return the exit code: 0, or 4 if the environment is unusable.
    """
    close_on_exec()
    configure_logging(settings.log_level, settings.log_format, role="master", master=settings.id)
    return uvloop.run(until_signalled(lambda stop, up: _serve(settings, stop, up)))


async def _serve(settings: ClusterMasterSettings, stop: asyncio.Event, up: asyncio.Event) -> None:
    async with AsyncExitStack() as stack:
        store, broker, partitions, engines = await _connect(settings, stack)
        catalog, clock = SqlCatalog(store.executor), engines.clock
        tls = server_tls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        others = ClientTls(TlsSettings(settings.tls_ca or settings.tls_client_ca, settings.tls_cert, settings.tls_key))
        listener = bound(settings.http)
        stack.callback(listener.close)
        # The key is shown only once, so print it after everything that can fail the start. It may wait for the
        # database, so do it before listening.
        await show_first_key(catalog, clock.unix_ms())
        listen(listener)
        member = _member(settings, address_of(listener), secure=tls is not None, now_ms=clock.unix_ms())
        publisher = EventPublisher(broker.events, clock, settings.id)
        stats = OwnerStats(crawls=CrawlCounts(settings.metrics_crawls))
        frontier = FrontierSettings(partitions=partitions, grant_s=settings.grant_s, ack_wait_s=settings.ack_wait_s)
        master = ClusterMaster(
            member,
            engines,
            ClusterSettings(frontier, ttl_s=settings.member_ttl_s, log_level=settings.log_level),
            gauges=_gauges(settings, store, engines.kind, broker),
            stats=stats,
            alarm=publisher.alarm,
            on_pressure=publisher.pressure,
            on_firing=publisher.fired,
            failpoint=failpoint_of(os.environ),
        )
        sampler = StatsSampler(
            stats.crawls,
            master.owned,
            store=store,
            broker=broker,
            clock=clock,
            read_s=settings.metrics_s,
        )
        places = places_for(settings.http_connections)
        wrong_keys = WrongKeys(settings.wrong_keys)
        metrics = MasterMetrics(
            master,
            sampler,
            stats,
            clock,
            places,
            wrong_keys,
            member=settings.id,
            store=engines.kind,
            partitions=partitions,
        )
        overview = SqlOverview(store.executor)
        services = _services(
            settings, master, partitions, engines, catalog, overview, broker, publisher, metrics, wrong_keys
        )
        if isinstance(services.archive, ServedPages):
            stack.callback(services.archive.close)
        recorder = EventRecorder(master, overview, broker.events, publisher, clock, settings.id)
        master.on_crawl_changes(recorder.take, sampler.take)
        client = await stack.enter_async_context(leaders_client(others.context))
        up.set()
        log.info(
            "master.started", master=settings.id, partitions=partitions, store=engines.kind, address=member.address
        )
        async with serving(application(services, client), listener, tls, places), Tasks() as beside:
            beside.start("certificates", following(*((others,) if tls is None else (others, tls))))
            beside.start("sampler", sampler.run())
            beside.start("publisher", publisher.run())
            beside.start("recorder", recorder.run())
            beside.start("key_uses", services.uses.run())
            if isinstance(store.executor, SqliteThreads):
                file = sqlite_file(settings.database)
                stack.callback(write_note(file, member.id, member.started_at_ms).unlink, missing_ok=True)
                waited_s = store.executor.write_waits_s
                beside.start(
                    "eviction", Eviction(file, waited_s=waited_s, leads=master.is_leader, lives=_lives(master)).run()
                )
            with services.streams.until_closed():
                await master.run(stop)
            await publisher.finish(_LAST_WORDS_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await services.uses.store()


async def _connect(
    settings: ClusterMasterSettings, stack: AsyncExitStack
) -> tuple[SqlStore, NatsBroker, int, MasterEngines]:
    """Connect to the database, NATS and etcd, waiting for each.

    Return the store, the broker, the number of partitions, and the engines. `stack` closes them.
    """
    clock, keys = SystemClock(), Keys(settings.cluster)
    store, kind = await open_store(settings)
    stack.push_async_callback(store.close)
    partitions, suffixes = await connected(
        "database", lambda: store.open_cluster(settings.partitions, installed_list(), clock.unix_ms())
    )
    use_list(suffixes)
    broker = await connected("nats", lambda: NatsBroker.of_master(settings, settings.id))
    stack.push_async_callback(broker.close)
    await _declare(broker, listed(settings.pools))
    coordinator = EtcdCoordinator(etcd_of(settings), clock)
    stack.push_async_callback(coordinator.close)
    view = await connected("etcd", lambda: stack.enter_async_context(coordinator.watch(keys.root)))
    archive = None if settings.archive is None else ServedPages(LocalSegments(settings.archive), threads=2)
    if archive is not None:
        stack.callback(archive.close)
    engines = MasterEngines(
        keys=keys,
        coordinator=coordinator,
        view=view,
        store=store,
        kind=kind,
        items=SqlItems(store.executor),
        desired=SqlDesired(store.executor),
        schedules=SqlSchedules(store.executor),
        retained=SqlRetained(store.executor),
        broker=broker,
        publisher=lambda leadership: EtcdSpecPublisher(coordinator, leadership, keys),
        clock=clock,
        archive=archive,
    )
    return store, broker, partitions, engines


def _member(settings: ClusterMasterSettings, listening: str, *, secure: bool, now_ms: int) -> MemberRecord:
    address = settings.address or ("https://" if secure else "") + listening
    endpoints = _endpoints(settings, listening)
    return MemberRecord(settings.id, VERSION, started_at_ms=now_ms, address=address, endpoints=endpoints)


def _services(
    settings: ClusterMasterSettings,
    master: ClusterMaster,
    partitions: int,
    engines: MasterEngines,
    catalog: Catalog,
    overview: Overview,
    broker: NatsBroker,
    publisher: EventPublisher,
    metrics: MasterMetrics,
    wrong_keys: WrongKeys,
) -> Services:
    probes: dict[str, Callable[[], Awaitable[object]]] = {
        "database": engines.store.newest_term,
        "nats": broker.reports_state,
        "etcd": lambda: engines.coordinator.get(engines.keys.leader),
    }
    return Services(
        catalog=catalog,
        broker=broker,
        plane=master,
        clock=engines.clock,
        keyring=Keyring(catalog),
        uses=KeyUses(catalog),
        partitions=partitions,
        member=settings.id,
        ready=lambda: _missing(probes),
        registry=metrics.registry(),
        archive=None if settings.archive is None else ServedPages(LocalSegments(settings.archive)),
        desired=engines.desired,
        schedules=engines.schedules,
        events=broker.events,
        overview=overview,
        backlog=broker,
        telling=publisher,
        streams=StreamLimit(settings.event_streams),
        exports=StreamLimit(settings.exports),
        body_bytes=settings.body_bytes,
        permits=Permits(settings.key_reads, settings.key_writes, settings.key_bulk),
        wrong_keys=wrong_keys,
        roster=master.roster,
        tuning=master.tuning,
        wanted=master.wanted,
        exclusions=lambda: master.crawls.exclusions,
        longest_grant_s=settings.grant_s,
        ack_wait_s=settings.ack_wait_s,
        pressure=lambda: master.rationing.pressure,
    )


def _endpoints(settings: ClusterMasterSettings, listening: str) -> tuple[str, ...]:
    """Return `host:port` of this master's API and of the engines that it uses.

    Workers never fetch from these addresses.
    """
    database = settings.database if is_postgresql(settings.database) else ""
    return (
        *listening_endpoints(listening),
        *engine_endpoints(listed(settings.address), 443 if settings.address.startswith("https:") else 80),
        *engine_endpoints(listed(settings.nats_url), NATS_PORT),
        *engine_endpoints(listed(settings.etcd), ETCD_PORT),
        *engine_endpoints([database] if database else [], POSTGRES_PORT),
    )


async def show_first_key(catalog: Catalog, now_ms: int) -> None:
    """Create an admin key and print it, if the database has no key at all.

    Wait while the database is unavailable or full.
    """
    # Every attempt stores the same key: an attempt whose reply was lost may have stored it.
    kept, key = first_key(now_ms)
    if await connected("database", lambda: catalog.add_first_key(kept)):
        print(f"orb: the first admin key, shown this once: {key}", file=sys.stderr, flush=True)


async def _declare(broker: NatsBroker, pools: Sequence[str]) -> None:
    """Create or update the streams in NATS, waiting while it is unavailable. Raise Unusable if it refuses a stream."""
    try:
        await connected("nats", lambda: broker.declare(pools))
        await connected("nats", broker.events.declare)
    except Permanent as error:
        raise Unusable(f"the broker cannot keep what it is to keep: {error}") from error


async def _missing(probes: Mapping[str, Callable[[], Awaitable[object]]]) -> Sequence[str]:
    """Return the names of the engines whose probe fails or does not return within `_PROBE_S` seconds."""
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
    """Return a function that returns True if a process is registered as a master of the cluster.

    It takes the master's id and the start time of the process (Unix ms). A restarted master is another process.
    """

    def lives(member: str, started_at_ms: int) -> bool:
        record = master.members().masters.get(member)
        return record is not None and record.started_at_ms == started_at_ms

    return lives


async def open_store(settings: ClusterMasterSettings) -> tuple[SqlStore, StoreKind]:
    """Open the database of the settings. Return the store and its kind. Wait while a database server is unavailable."""
    if is_postgresql(settings.database):
        from shared.adapters.sql.engine.postgres import (  # Imported here, so that SQLite does not load its libraries.
            PostgresSettings,
            PostgresStore,
        )

        pools = PostgresSettings(writers=settings.database_writers, readers=settings.database_readers)
        return await connected("database", lambda: PostgresStore.open(settings.database, pools)), StoreKind.POSTGRESQL
    path = sqlite_file(settings.database)
    store = await connected("database", lambda: SqliteStore.open(path, synchronous=settings.synchronous))
    return store, StoreKind.SQLITE


def _gauges(
    settings: ClusterMasterSettings, store: SqlStore, kind: StoreKind, broker: NatsBroker
) -> Mapping[Resource, Gauge]:
    """Return the gauges that measure how full each resource of this master is."""
    gauges: dict[Resource, Gauge] = {
        Resource.NATS: broker.storage,
        Resource.MEMORY: memory_of_process(settings.memory_bytes),
    }
    if kind is StoreKind.SQLITE:
        gauges[Resource.DATABASE] = refusing(disk_of(sqlite_file(settings.database)), store.executor.disk_full)
    else:
        from shared.adapters.sql.engine.postgres import database_gauge  # as in `open_store`

        gauges[Resource.DATABASE] = database_gauge(store.executor, settings.database_bytes)
    if settings.nats_store is not None:
        gauges[Resource.NATS_DISK] = disk_of(settings.nats_store)
    return gauges
