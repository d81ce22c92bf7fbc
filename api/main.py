"""The master's composition root. The order of the contexts is the order of shutdown, reversed."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog
import uvloop

from api.control.cluster import ClusterMaster, ClusterSettings
from api.control.eviction import Eviction
from api.control.standalone import Standalone
from api.frontier.ownership import FrontierSettings
from api.frontier.tally import FrontierTally
from shared.adapters.local.addresses import listening_endpoints
from shared.adapters.local.clock import SystemClock
from shared.adapters.local.room import disk_of, memory_of_process
from shared.adapters.local.specs import LocalSpecs
from shared.adapters.local.suffixes import installed_list, use_list, use_snapshot
from shared.adapters.nats.broker import NatsBroker
from shared.adapters.nats.settings import StreamSettings, nats_tls_of, streams_of
from shared.adapters.sql.engine import SqliteThreads
from shared.adapters.sql.holder import write_note
from shared.adapters.sql.items import SqlItems
from shared.adapters.sql.store import SqliteStore, SqlStore
from shared.domain.crawl import CrawlSpec, decode_spec
from shared.domain.egress import ETCD_PORT, NATS_PORT, POSTGRES_PORT, engine_endpoints
from shared.domain.errors import Permanent, Transient, Unusable, single
from shared.domain.placement import StoreKind
from shared.domain.software import VERSION
from shared.domain.spec_rules import refused_pattern
from shared.domain.tally import CrawlCounts
from shared.domain.url import public_suffix_snapshot
from shared.domain.watermarks import Place
from shared.ports.catalog import Catalog
from shared.ports.rationing import Gauge, refusing
from shared.ports.retrying import until_answered
from shared.settings import ClusterMasterSettings, MasterSettings, from_environment, listed
from shared.stalls import ending_where_it_stands
from shared.supervise import Tasks, close_on_exec, failpoint_of, until_stopped
from shared.telemetry import configure_logging
from shared.tls import ClientTls, TlsSettings, following, server_tls
from shared.wire.keys import Keys, MemberRecord

T = TypeVar("T")

log = structlog.get_logger("orb.master")

_PROBE_S = 2.0
_LAST_WORDS_S = 1.0
DATABASE = "crawl.db"
SPEC = "spec.json"
SPECS = "specs"
_POSTGRES = ("postgresql:", "postgres:")


async def run(settings: MasterSettings) -> int:
    """Work on the folder's crawl until SIGTERM; 0, or 4 when the environment does not carry it."""
    return await _until_signalled(lambda stop, up: _serve(settings, stop, up))


async def serve_cluster(settings: ClusterMasterSettings) -> int:
    """Be a master of the cluster until SIGTERM; 0, or 4 when the environment does not carry it."""
    return await _until_signalled(lambda stop, up: _serve_cluster(settings, stop, up))


async def _until_signalled(work: Callable[[asyncio.Event, asyncio.Event], Coroutine[Any, Any, None]]) -> int:
    stop, up = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    code = 0
    try:
        with ending_where_it_stands(SystemClock()):
            await until_stopped(work(stop, up), stop, up)
    except* Unusable as group:
        log.error("master.unusable", error="; ".join(map(str, single(group))))
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
                    partitions=partitions, grant_s=settings.grant_s, ack_wait_s=settings.ack_wait_s
                ),
                alone=settings.alone,
                gauges={Place.MEMORY: memory_of_process(settings.memory_bytes)},
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
    from api.control.chronicle import Chronicle
    from api.control.metering import Metering
    from api.control.telling import Telling
    from api.deps import Services
    from api.feeds import OpenStreams
    from api.forwarding import leaders_client
    from api.http import application
    from api.metrics import MasterMetrics
    from api.security.authentication import Keyring
    from api.serving import address_of, bound, listen, places_for, serving
    from shared.adapters.etcd import EtcdCoordinator  # its libraries are loaded where they are needed
    from shared.adapters.etcd.settings import etcd_of
    from shared.adapters.etcd.specs import EtcdSpecPublisher
    from shared.adapters.objects.local import LocalSegments
    from shared.adapters.objects.served import ServedPages
    from shared.adapters.sql.catalog import SqlCatalog
    from shared.adapters.sql.desired import SqlDesired
    from shared.adapters.sql.overview import SqlOverview
    from shared.adapters.sql.retained import SqlRetained

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
        # Behind all that may end this start, for it is shown once; before anybody may ask, for it waits, too.
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
        tally = FrontierTally(crawls=CrawlCounts(settings.metrics_crawls))
        telling = Telling(broker.events, clock, settings.id)
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
        overview, streams_open = SqlOverview(store.executor), OpenStreams(settings.event_streams)
        chronicle = Chronicle(master, overview, broker.events, telling, clock, settings.id)
        metering = Metering(
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
            exports=OpenStreams(settings.exports),
            body_bytes=settings.body_bytes,
            roster=master.roster,
            tuning=master.tuning,
            wanted=master.wanted,
            longest_grant_s=settings.grant_s,
            ack_wait_s=settings.ack_wait_s,
            held=lambda: master.rationing.reason,
        )
        client = await stack.enter_async_context(leaders_client(others.context))
        up.set()
        log.info("master.started", master=settings.id, partitions=partitions, store=kind, http=member.address)
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
    """Print an admin's key where there is no key at all yet, however long the database is away or has no room. It is
    the same one at every try: one whose answer was lost is in the database, and nowhere else."""
    from api.security.authentication import first_key

    kept, key = first_key(now_ms)
    if await _waiting("database", lambda: catalog.add_first_key(kept)):
        print(f"orb: the first admin key, shown this once: {key}", file=sys.stderr, flush=True)


async def _waiting(engine: str, call: Callable[[], Awaitable[T]]) -> T:
    """The call's result, however long the engine is away; the log says what is waited for, and why."""
    return await until_answered(call, lambda error: log.warning("master.waits", engine=engine, error=str(error)))


async def _declare(broker: NatsBroker, pools: Sequence[str]) -> None:
    """The streams as they are to be. Unusable where the broker cannot have them so: waiting would not help."""
    try:
        await _waiting("nats", lambda: broker.declare(pools))
        await _waiting("nats", broker.events.declare)
    except Permanent as error:
        raise Unusable(f"the broker cannot keep what it is to keep: {error}") from error


async def _missing(probes: Mapping[str, Callable[[], Awaitable[object]]]) -> Sequence[str]:
    """The engines that do not answer now."""
    missing = []
    for name, probe in probes.items():
        try:
            async with asyncio.timeout(_PROBE_S):
                await probe()
        except (Transient, Permanent, Unusable, TimeoutError) as error:
            log.warning("master.unready", engine=name, error=str(error))
            missing.append(name)
    return missing


def _lives(master: ClusterMaster) -> Callable[[str, int], bool]:
    """Return what tells of a master, by its id and its start, whether the coordinator lists it."""

    def lives(member: str, started_at_ms: int) -> bool:
        found = master.members().masters.get(member)
        return found is not None and found.started_at_ms == started_at_ms

    return lives


async def open_store(settings: ClusterMasterSettings) -> tuple[SqlStore, StoreKind]:
    """The cluster's database, by its URL or path; waits for a server that is away."""
    if settings.database.startswith(_POSTGRES):
        from shared.adapters.sql.postgres import (  # its libraries are loaded where they are needed
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
) -> Mapping[Place, Gauge]:
    """What this master sees filling up."""
    gauges: dict[Place, Gauge] = {Place.NATS: broker.storage, Place.MEMORY: memory_of_process(settings.memory_bytes)}
    if kind is StoreKind.SQLITE:
        gauges[Place.DATABASE] = refusing(disk_of(_sqlite_file(settings)), store.executor.out_of_room)
    else:
        from shared.adapters.sql.room import room_of

        gauges[Place.DATABASE] = room_of(store.executor, settings.database_bytes)
    if settings.nats_store is not None:
        gauges[Place.NATS_DISK] = disk_of(settings.nats_store)
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
