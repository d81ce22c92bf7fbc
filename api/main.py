"""The master's composition root. The order of the contexts is the order of shutdown, reversed."""

import asyncio
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import structlog
import uvloop

from api.control.cluster import ClusterMaster, ClusterSettings
from api.control.standalone import Standalone
from api.frontier.ownership import FrontierSettings
from shared.adapters.local.clock import SystemClock
from shared.adapters.local.specs import LocalSpecs
from shared.adapters.local.suffixes import use_snapshot
from shared.adapters.nats.broker import NatsBroker
from shared.adapters.nats.settings import StreamSettings
from shared.adapters.sql.store import PostgresStore, SqliteStore, SqlStore
from shared.domain.crawl import CrawlSpec, decode_spec
from shared.domain.errors import Transient, Unusable
from shared.domain.placement import StoreKind
from shared.domain.software import VERSION
from shared.domain.url import public_suffix_snapshot
from shared.ports.retrying import until_answered
from shared.settings import ClusterMasterSettings, MasterSettings, from_environment, listed
from shared.telemetry import configure_logging
from shared.wire.keys import Keys, MemberRecord

log = structlog.get_logger("orb.master")

_PROBE_S = 2.0
DATABASE = "crawl.db"
SPEC = "spec.json"
SPECS = "specs"


async def run(settings: MasterSettings) -> int:
    """Work on the folder's crawl until SIGTERM; 0, or 4 when the environment does not carry it."""
    return await _until_signalled(lambda stop: _serve(settings, stop))


async def serve_cluster(settings: ClusterMasterSettings) -> int:
    """Be a master of the cluster until SIGTERM; 0, or 4 when the environment does not carry it."""
    return await _until_signalled(lambda stop: _serve_cluster(settings, stop))


async def _until_signalled(work: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    code = 0
    try:
        await work(stop)
    except* Unusable as group:
        log.error("master.unusable", error="; ".join(map(str, _leaves(group))))
        code = 4
    return code


async def _serve(settings: MasterSettings, stop: asyncio.Event) -> None:
    spec = _read_spec(settings.dir / SPEC)
    use_snapshot(settings.dir)
    clock = SystemClock()
    store = await SqliteStore.open(settings.dir / DATABASE, synchronous=settings.synchronous)
    try:
        partitions, _ = await store.open_cluster(settings.partitions, public_suffix_snapshot(), clock.unix_ms())
        broker = await NatsBroker.connect(
            [settings.nats_url],
            token=settings.nats_token,
            name="orb-master",
            settings=StreamSettings(ack_wait_s=settings.ack_wait_s),
        )
        try:
            await broker.declare([settings.pool])
            master = Standalone(
                spec,
                store=store,
                broker=broker,
                specs=LocalSpecs(settings.dir / SPECS),
                clock=clock,
                settings=FrontierSettings(
                    partitions=partitions, grant_s=settings.grant_s, ack_wait_s=settings.ack_wait_s
                ),
                alone=settings.alone,
            )
            await master.run(stop, grace_s=settings.grace_s)
        finally:
            await broker.close()
    finally:
        await store.close()
    log.info("master.stopped")


async def _serve_cluster(settings: ClusterMasterSettings, stop: asyncio.Event) -> None:
    import httpx

    from api.deps import Services
    from api.http import application
    from api.security.authentication import Keyring, issue_first_key
    from api.serving import address_of, listening, serving
    from shared.adapters.etcd import EtcdCoordinator  # its libraries are loaded where they are needed
    from shared.adapters.etcd.settings import etcd_of
    from shared.adapters.etcd.specs import EtcdSpecPublisher
    from shared.adapters.sql.catalog import SqlCatalog

    clock, keys = SystemClock(), Keys(settings.cluster)
    async with AsyncExitStack() as stack:
        store, kind = await open_store(settings)
        stack.push_async_callback(store.close)
        snapshot = public_suffix_snapshot()
        partitions, suffixes = await store.open_cluster(settings.partitions, snapshot, clock.unix_ms())
        if suffixes != snapshot:
            log.warning("master.public_suffixes", stored=suffixes, here=snapshot)
        streams = StreamSettings(ack_wait_s=settings.ack_wait_s)
        broker = await until_answered(
            lambda: NatsBroker.connect(
                listed(settings.nats_url), token=settings.nats_token, name=settings.id, settings=streams
            )
        )
        stack.push_async_callback(broker.close)
        await until_answered(lambda: broker.declare(listed(settings.pools)))
        coordinator = EtcdCoordinator(etcd_of(settings), clock)
        stack.push_async_callback(coordinator.close)
        view = await until_answered(lambda: stack.enter_async_context(coordinator.watch(keys.root)))
        listener = listening(settings.http)
        stack.callback(listener.close)
        member = MemberRecord(
            settings.id, VERSION, started_at_ms=clock.unix_ms(), address=settings.address or address_of(listener)
        )
        master = ClusterMaster(
            member,
            coordinator=coordinator,
            view=view,
            keys=keys,
            store=store,
            kind=kind,
            broker=broker,
            publisher=lambda leadership: EtcdSpecPublisher(coordinator, leadership, keys),
            clock=clock,
            frontier=FrontierSettings(partitions=partitions, grant_s=settings.grant_s, ack_wait_s=settings.ack_wait_s),
            settings=ClusterSettings(ttl_s=settings.member_ttl_s),
        )
        catalog = SqlCatalog(store.executor)
        if (key := await issue_first_key(catalog, clock.unix_ms())) is not None:
            print(f"orb: the first admin key, shown this once: {key}", file=sys.stderr, flush=True)
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
        )
        client = await stack.enter_async_context(httpx.AsyncClient(follow_redirects=False))
        log.info("master.started", master=settings.id, partitions=partitions, store=kind, http=member.address)
        async with serving(application(services, client), listener):
            await master.run(stop)
    log.info("master.stopped")


async def _missing(probes: Mapping[str, Callable[[], Awaitable[object]]]) -> Sequence[str]:
    """The engines that do not answer now."""
    missing = []
    for name, probe in probes.items():
        try:
            async with asyncio.timeout(_PROBE_S):
                await probe()
        except (Transient, TimeoutError) as error:
            log.warning("master.unready", engine=name, error=str(error))
            missing.append(name)
    return missing


async def open_store(settings: ClusterMasterSettings) -> tuple[SqlStore, StoreKind]:
    """The cluster's database, by its URL or path; waits for a server that is away."""
    if settings.database.startswith(("postgresql:", "postgres:")):
        return await until_answered(lambda: PostgresStore.open(settings.database)), StoreKind.POSTGRESQL
    path = Path(re.sub(r"^sqlite:(//(?=/))?", "", settings.database))
    return await SqliteStore.open(path, synchronous=settings.synchronous), StoreKind.SQLITE


def _read_spec(path: Path) -> CrawlSpec:
    try:
        return decode_spec(path.read_bytes())
    except FileNotFoundError:
        raise Unusable(f"{path} is missing: start the crawl with `orb crawl`") from None
    except msgspec.MsgspecError as error:
        raise Unusable(f"{path} is no crawl spec ({error}): start the crawl with `orb crawl`") from error


def _leaves(group: BaseExceptionGroup[Unusable]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def main() -> int:
    """Run from the process's environment."""
    settings = from_environment(MasterSettings)
    configure_logging(settings.log_level, settings.log_format, role="master")
    return uvloop.run(run(settings))


def cluster_main(settings: ClusterMasterSettings) -> int:
    """Run a master of a cluster."""
    configure_logging(settings.log_level, settings.log_format, role="master", master=settings.id)
    return uvloop.run(serve_cluster(settings))
