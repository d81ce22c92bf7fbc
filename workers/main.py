"""The worker's process: builds its parts, runs them, and closes them in the opposite order.

- SIGTERM drains: the worker pulls no further shard, and visits under way may continue for `grace_s`. After that they
  cancel requests in flight, hand back the remaining URLs and report their results.
- A second SIGTERM ends the visits at once: their shards are handed back, and unreported URLs are fetched again. The
  same happens if NATS does not answer (`workers.drain`).
- SIGINT drains as well. A second SIGINT has no effect.
"""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvloop

from shared.adapters.local.clock import SystemClock
from shared.adapters.local.private_folder import closing, make_private
from shared.adapters.local.specs import LOOK_S, LocalSpecs
from shared.adapters.local.suffixes import use_snapshot
from shared.adapters.nats import NatsBroker, StreamSettings
from shared.adapters.nats.settings import login_of, nats_tls_of
from shared.adapters.objects.local import LocalSegments
from shared.domain.errors import Transient, Unusable, single
from shared.domain.ops.counts import CrawlCounts
from shared.domain.ops.watermarks import Watermarks
from shared.domain.software import NAME, VERSION
from shared.ports.broker import Broker
from shared.ports.specs import SpecSource
from shared.runtime.garbage import collecting_when_idle
from shared.runtime.stalls import ending_where_it_stands
from shared.runtime.supervise import Tasks, close_on_exec, failpoint_of, until_stopped
from shared.settings import ClusterWorkerSettings, WorkerSettings, from_environment, listed
from shared.telemetry import configure_logging
from shared.tls import following, server_tls
from workers.archive import WarcArchive
from workers.disk_reservations import DiskReservations, archive_disk, pressure_monitor_of
from workers.drain import cut_short
from workers.extract.extractor import Extractor
from workers.fetch.curl import CurlFetcher
from workers.fetch.egress import EgressRules
from workers.fetch.names import Names
from workers.known_links import KnownLinks
from workers.metrics import WorkerMetrics
from workers.metrics_server import exposing
from workers.owner_client import OwnerClient
from workers.parse.scanner import CHOICE
from workers.report import Reporter
from workers.request_slots import Requests
from workers.robots import RobotsCache
from workers.runtime import Runtime, WorkerIdentity
from workers.stats import WorkerStats
from workers.visit import VisitContext
from workers.visit_crawls import VisitCrawls

if TYPE_CHECKING:
    from workers.membership import WorkerMembership

log = structlog.get_logger(__name__)

DRAINED: Final = 0
UNUSABLE: Final = 4


class StopRequest:
    """A request to the worker to stop. `draining` is set for a drain, `at_once` for an immediate end."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self.at_once = asyncio.Event()
        self._terminated = False

    def terminate(self) -> None:
        """Set `draining` at the first call, and `at_once` at the second."""
        if self._terminated:
            self.at_once.set()
        self._terminated = True
        self.draining.set()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Call `terminate` for each SIGTERM, and set `draining` for a SIGINT, until the `with` block ends."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.terminate)
        loop.add_signal_handler(signal.SIGINT, self.draining.set)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            loop.remove_signal_handler(signal.SIGINT)


async def run(settings: WorkerSettings, stop: StopRequest) -> int:
    """Run the worker until `stop`. Return the exit code: 0 when drained, 4 if the environment is unusable.

    Before it returns 4, it logs `worker.failed` if a restart cannot help, else `worker.disconnected`.
    """
    use_snapshot(settings.dir)
    code, up = DRAINED, asyncio.Event()
    try:
        await until_stopped(_serve(settings, stop, up), stop.draining, up)
    except* Unusable as group:
        log.error("worker.failed", error="; ".join(map(str, single(group))))
        code = UNUSABLE
    except* Transient as group:
        log.error("worker.disconnected", error="; ".join(map(str, single(group))))
        code = UNUSABLE
    if code == DRAINED:
        log.info("worker.stopped")
    return code


async def _serve(settings: WorkerSettings, stop: StopRequest, up: asyncio.Event) -> None:
    async with _connected(settings) as broker:
        await _work(settings, broker, stop, up)


async def _work(settings: WorkerSettings, broker: Broker, stop: StopRequest, up: asyncio.Event) -> None:
    producer = f"{settings.id}.{secrets.token_hex(6)}"
    identity = WorkerIdentity(settings.id, producer, settings.pool, os.getpid())
    clock, failpoint = SystemClock(), failpoint_of(os.environ)
    connections = max(settings.connections, settings.max_requests)
    stats = WorkerStats(crawls=CrawlCounts(settings.metrics_crawls))

    async with (
        _archive(settings, clock) as archive,
        _extractor(settings) as extractor,
        _place(settings, clock) as place,
        _crawls(_visit_crawls(settings, place, connections)) as crawls,
        Tasks() as background,
        Tasks() as visits,
        Tasks() as pulling,
    ):
        reporter = Reporter(
            broker=broker,
            archive=archive,
            clock=clock,
            producer=producer,
            report_s=settings.report_s,
            stats=stats,
            failpoint=failpoint,
        )
        reservations = DiskReservations(archive_disk(settings), Watermarks, archive)
        equipment = VisitContext(
            clock=clock,
            crawls=crawls,
            owners=OwnerClient(broker, clock),
            robots=RobotsCache(broker, clock),
            archive=archive,
            extractor=extractor,
            reservations=reservations,
            requests=Requests(settings.max_requests, clock.elapsed),
            reporter=reporter,
            ack_wait_s=settings.ack_wait_s,
            stats=stats,
            failpoint=failpoint,
        )
        runtime = Runtime(
            identity,
            broker=broker,
            crawls=crawls,
            equipment=equipment,
            tasks=visits,
            visits=settings.max_visits,
            max_open=settings.open_crawls,
        )
        if place is not None:
            tuning = place.tuning(settings, runtime, reporter)
            background.start("tuning", tuning.run())
            background.start("exclusions", place.exclusions.run())
            background.start("repair", _repair(archive, settings.dir / "archive"))
            reservations.marks = lambda: tuning.current.storage
        rationing = pressure_monitor_of(settings, reservations, runtime.set_pressure)
        await rationing.once()  # a worker that starts on a full disk must pull nothing
        background.start("rationing", rationing.run())
        background.start("reservations", reservations.run())
        background.start("report", reporter.run())
        background.start("heartbeat", runtime.heartbeat())
        background.start("follow", runtime.follow())
        background.start("tidy", runtime.tidy())
        pulling.start("pull", runtime.pull())
        registration = None if place is None else place.registration
        metrics = WorkerMetrics(
            runtime, reporter, archive, stats, clock, registration, rationing.shortages, broker.stores_nothing
        )
        async with _exposed(settings, metrics, place):
            up.set()
            log.info(
                "worker.started",
                max_visits=settings.max_visits,
                pool=settings.pool,
                producer=producer,
                tag_scanner=str(CHOICE),
            )
            await stop.draining.wait()
            log.info("stop.requested", visits=len(visits))
            runtime.stop_pulling()
            short = cut_short(runtime, visits, broker, clock, grace_s=settings.grace_s)
            await _drain(visits, background, stop, short)
            await runtime.tell()


async def _drain(visits: Tasks, background: Tasks, stop: StopRequest, short: Coroutine[Any, Any, None]) -> None:
    """Wait until all `visits` have ended. Meanwhile, run two tasks that can end the visits early.

    - One task runs the coroutine `short`, which stops the visits when the time for the drain is over.
    - The other task waits until `stop.at_once` is set, and then cancels the visits immediately.

    `background`: the task group in which both tasks are started.
    """

    async def end_at_once() -> None:
        await stop.at_once.wait()
        visits.cancel()

    background.start("drain", short)
    background.start("end at once", end_at_once())
    await visits.ended()


@asynccontextmanager
async def _exposed(
    settings: WorkerSettings, metrics: WorkerMetrics, place: "WorkerMembership | None"
) -> AsyncIterator[None]:
    """Serve the metrics until the `with` block ends, if `settings` enable them. Load the metrics library only then."""
    if not settings.metrics:
        yield
        return
    tls = None
    if isinstance(settings, ClusterWorkerSettings):
        tls = server_tls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    async with exposing(settings.metrics, metrics.registry(), tls) as listening, Tasks() as beside:
        if place is not None:
            place.listens(listening)
        log.info("metrics.exposed", address=listening, tls=tls is not None)
        beside.start("certificates", following(*(() if tls is None else (tls,))))
        yield


@asynccontextmanager
async def _connected(settings: WorkerSettings) -> AsyncIterator[Broker]:
    streams = StreamSettings(ack_wait_s=settings.ack_wait_s)
    broker = await NatsBroker.connect(
        listed(settings.nats_url),
        login=login_of(settings),
        name=settings.id,
        settings=streams,
        tls=nats_tls_of(settings),
    )
    try:
        yield broker
    finally:
        await broker.close()


def _make_private(folder: Path) -> None:
    """Create the archive's folder for this user only. Log a warning if that fails, or if other users may open it."""
    try:
        make_private(folder)
        command = closing(folder)
    except OSError as error:
        log.warning("archive_folder.postponed", path=str(folder), error=error.strerror)
        return
    if command is not None:
        log.warning("archive_folder.exposed", path=str(folder), advice=command)


@asynccontextmanager
async def _archive(settings: WorkerSettings, clock: SystemClock) -> AsyncIterator[WarcArchive]:
    private = isinstance(settings, ClusterWorkerSettings)  # the folder of a local crawl follows the umask
    if private:
        _make_private(settings.dir / "archive")
    archive = WarcArchive(
        LocalSegments(settings.dir / "archive", private=private),
        worker_id=settings.id,
        software=f"{NAME}/{VERSION}",
        wall_ms=clock.unix_ms,
    )
    try:
        yield archive
    finally:
        await archive.close()


async def _repair(archive: WarcArchive, folder: Path) -> None:
    """Complete the WARC files that earlier processes of this worker left unfinished, because they were killed.

    Files that other workers write into the same folder are not touched. On a network file system without locks, those
    of a living worker would look abandoned. After an error, log a warning. The next start tries that file again.
    """
    from shared.adapters.objects.repair import repair_segment, unfinished  # a local crawl must not load it

    for path in await asyncio.to_thread(unfinished, folder):
        if not archive.is_own(path.name):
            continue
        try:
            repaired = await asyncio.to_thread(repair_segment, path)
        except OSError as error:
            log.warning("segment_repair.postponed", path=str(path), error=str(error))
            continue
        if repaired is not None:
            log.info("segment.repaired", segment=repaired.segment, kept=repaired.kept, cut=repaired.cut)
            if repaired.damaged:
                log.warning("segment.damaged", segment=repaired.segment, ranges=repaired.damaged)


@asynccontextmanager
async def _extractor(settings: WorkerSettings) -> AsyncIterator[Extractor]:
    extractor = Extractor(cpu_s=settings.extract_s, memory_bytes=settings.extract_bytes)
    try:
        yield extractor
    finally:
        await extractor.close()


@asynccontextmanager
async def _place(settings: WorkerSettings, clock: SystemClock) -> "AsyncIterator[WorkerMembership | None]":
    """Yield the worker's membership of a cluster, or None in a local crawl."""
    if isinstance(settings, ClusterWorkerSettings):
        from workers.membership import joined  # a local crawl must not load its libraries

        async with joined(settings, clock) as place:
            yield place
    else:
        yield None


def _visit_crawls(settings: WorkerSettings, place: "WorkerMembership | None", connections: int) -> VisitCrawls:
    """Return the cache of crawls for the visits.

    - In a cluster (`place` is given), visits also obey the cluster's present exclusions.
    - In a local crawl (`place` is None), visits obey only the rules of the spec.

    `connections`: the maximum number of open connections of each fetcher.
    """
    specs, fetchers = _specs(settings, place), _fetchers(settings, place, connections)
    if place is None:
        return VisitCrawls(specs, KnownLinks(), fetchers)
    exclusions = place.exclusions
    exclusions.follow(place.configuration.snapshot)  # before the first visit
    return VisitCrawls(specs, KnownLinks(), fetchers, lambda: exclusions.current)


def _specs(settings: WorkerSettings, place: "WorkerMembership | None") -> SpecSource:
    """Return the source of specs: the folder of a local crawl, or the etcd of a cluster."""
    return LocalSpecs(settings.dir / "specs", look_s=LOOK_S) if place is None else place.specs


def _fetchers(
    settings: WorkerSettings, place: "WorkerMembership | None", connections: int
) -> Callable[[EgressRules], CurlFetcher]:
    """Return a function that opens a fetcher under a crawl's egress rules.

    In a cluster, a spec's `egress.allow` opens only networks that `--allow-net` contains as well.
    """

    names = Names()

    def open_fetcher(rules: EgressRules) -> CurlFetcher:
        if place is not None and isinstance(settings, ClusterWorkerSettings):
            rules = replace(rules, bound=settings.allow_net.networks, closed=place.closed)
        return CurlFetcher(rules, max_connections=connections, names=names)

    return open_fetcher


@asynccontextmanager
async def _crawls(crawls: VisitCrawls) -> AsyncIterator[VisitCrawls]:
    try:
        yield crawls
    finally:
        await crawls.close()


def main() -> int:
    """Run a worker of a local crawl with the settings of the environment. Return the exit code."""
    return serve(from_environment(WorkerSettings))


def serve(settings: WorkerSettings) -> int:
    """Set up the process (logging, signals, event loop) and run a worker in it. Return the exit code."""
    close_on_exec()
    configure_logging(settings.log_level, settings.log_format, worker=settings.id)

    async def until_signalled() -> int:
        stop = StopRequest()
        with ending_where_it_stands(SystemClock()), collecting_when_idle(), stop.signals():
            return await run(settings, stop)

    return uvloop.run(until_signalled())


if __name__ == "__main__":
    raise SystemExit(main())
