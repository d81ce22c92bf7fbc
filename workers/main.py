"""The worker's process: puts its parts together, runs them, and takes them down in the opposite order.

SIGTERM drains: no further shard is pulled, visits under way may go on for `grace_s`, then they end what is in flight
and hand back the rest, and all of it is reported. A second SIGTERM ends the visits at once: their shards are handed
back, and what they had not reported is fetched again. So it is, too, when NATS does not answer (`workers.draining`).
SIGINT drains, and once is as good as often: a terminal sends it to every process of a job.
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
from shared.adapters.local.private import closing, make_private
from shared.adapters.local.specs import LocalSpecs
from shared.adapters.local.suffixes import use_snapshot
from shared.adapters.nats import NatsBroker, StreamSettings
from shared.adapters.nats.settings import nats_tls_of
from shared.adapters.objects.local import LocalSegments
from shared.domain.config import WorkerTuning
from shared.domain.errors import Transient, Unusable, single
from shared.domain.software import NAME, VERSION
from shared.domain.tally import CrawlCounts
from shared.domain.watermarks import Watermarks
from shared.ports.broker import Broker
from shared.ports.specs import SpecSource
from shared.settings import ClusterWorkerSettings, WorkerSettings, from_environment, listed
from shared.stalls import ending_where_it_stands
from shared.supervise import Tasks, close_on_exec, failpoint_of, until_stopped
from shared.telemetry import configure_logging, set_log_level
from shared.tls import following, server_tls
from workers.archive import WarcArchive
from workers.crawls import Crawls
from workers.draining import cut_short
from workers.exposition import exposing
from workers.extract.extractor import Extractor
from workers.fetch.curl import CurlFetcher
from workers.fetch.egress import EgressRules
from workers.metrics import WorkerMetrics
from workers.outlinks import KnownLinks
from workers.owners import Owners
from workers.rationing import archive_disk, rationing_of
from workers.report import Reporter
from workers.reservations import Reservations
from workers.robots import RobotsCache
from workers.runtime import Identity, Runtime
from workers.tally import Tally
from workers.tuning import Tuning
from workers.visit import Equipment

if TYPE_CHECKING:
    from workers.member import Place

log = structlog.get_logger(__name__)

DRAINED: Final = 0
UNUSABLE: Final = 4


class Stop:
    """What the worker is asked for: to drain, or to end at once."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self.at_once = asyncio.Event()
        self._terminated = False

    def terminate(self) -> None:
        """The first time drain, the second time end at once."""
        if self._terminated:
            self.at_once.set()
        self._terminated = True
        self.draining.set()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT ask for it while open."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.terminate)
        loop.add_signal_handler(signal.SIGINT, self.draining.set)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            loop.remove_signal_handler(signal.SIGINT)


async def run(settings: WorkerSettings, stop: Stop) -> int:
    """Work until told to stop: 0 when drained, 4 when the environment does not carry us (the log says why: a
    `worker.unusable` by what no restart can help, else a `worker.gave_up`)."""
    use_snapshot(settings.dir)
    code, up = DRAINED, asyncio.Event()
    try:
        await until_stopped(_serve(settings, stop, up), stop.draining, up)
    except* Unusable as group:
        log.error("worker.unusable", error="; ".join(map(str, single(group))))
        code = UNUSABLE
    except* Transient as group:
        log.error("worker.gave_up", error="; ".join(map(str, single(group))))
        code = UNUSABLE
    if code == DRAINED:
        log.info("worker.ended")
    return code


async def _serve(settings: WorkerSettings, stop: Stop, up: asyncio.Event) -> None:
    async with _connected(settings) as broker:
        await _work(settings, broker, stop, up)


async def _work(settings: WorkerSettings, broker: Broker, stop: Stop, up: asyncio.Event) -> None:
    producer = f"{settings.id}.{secrets.token_hex(6)}"
    identity = Identity(settings.id, producer, settings.pool, os.getpid())
    clock, failpoint = SystemClock(), failpoint_of(os.environ)
    connections = max(settings.connections, settings.visits)
    tally = Tally(crawls=CrawlCounts(settings.metrics_crawls))

    async with (
        _archive(settings, clock) as archive,
        _extractor(settings) as extractor,
        _place(settings, clock) as place,
        _crawls(Crawls(_specs(settings, place), KnownLinks(), _fetchers(settings, place, connections))) as crawls,
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
            tally=tally,
            failpoint=failpoint,
        )
        marks: Callable[[], Watermarks] = Watermarks
        reservations = Reservations(archive_disk(settings), lambda: marks(), archive)
        equipment = Equipment(
            clock=clock,
            crawls=crawls,
            owners=Owners(broker, clock),
            robots=RobotsCache(broker, clock),
            archive=archive,
            extractor=extractor,
            reservations=reservations,
            reporter=reporter,
            ack_wait_s=settings.ack_wait_s,
            tally=tally,
            failpoint=failpoint,
        )
        runtime = Runtime(
            identity,
            broker=broker,
            crawls=crawls,
            equipment=equipment,
            tasks=visits,
            visits=settings.visits,
            most_open=settings.open_crawls,
        )
        if place is not None:
            tuning = _tuning(settings, place, runtime, reporter, most_visits=connections)
            background.start("tuning", tuning.run())
            marks = tuning.marks
        rationing = rationing_of(settings, reservations, marks, runtime.ration)
        await rationing.once()  # one that starts on a full disk pulls nothing
        background.start("rationing", rationing.run())
        background.start("reservations", reservations.run())
        background.start("report", reporter.run())
        background.start("heartbeat", runtime.heartbeat())
        background.start("follow", runtime.follow())
        background.start("tidy", runtime.tidy())
        pulling.start("pull", runtime.pull())
        registration = None if place is None else place.registration
        metrics = WorkerMetrics(
            runtime, reporter, archive, tally, clock, registration, rationing.shortages, broker.stores_nothing
        )
        async with _exposed(settings, metrics, place):
            up.set()
            log.info("worker.started", visits=settings.visits, pool=settings.pool, producer=producer)
            await stop.draining.wait()
            log.info("worker.drains", visits=len(visits))
            runtime.stop_pulling()
            short = cut_short(runtime, visits, broker, clock, grace_s=settings.grace_s)
            await _drain(visits, background, stop, short)
            await runtime.tell()


async def _drain(visits: Tasks, background: Tasks, stop: Stop, short: Coroutine[Any, Any, None]) -> None:
    """Wait for the visits: as `short` cuts them, and at once when that is asked for."""

    async def end_at_once() -> None:
        await stop.at_once.wait()
        visits.cancel()

    background.start("drain", short)
    background.start("end at once", end_at_once())
    await visits.ended()


@asynccontextmanager
async def _exposed(settings: WorkerSettings, metrics: WorkerMetrics, place: "Place | None") -> AsyncIterator[None]:
    """Serve the metrics where that is asked for; their library is not loaded where it is not."""
    if not settings.metrics:
        yield
        return
    tls = None
    if isinstance(settings, ClusterWorkerSettings):
        tls = server_tls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    async with exposing(settings.metrics, metrics.registry(), tls) as listening, Tasks() as beside:
        if place is not None:
            place.listens(listening)
        log.info("worker.metrics", address=listening, tls=tls is not None)
        beside.start("certificates", following(*(() if tls is None else (tls,))))
        yield


@asynccontextmanager
async def _connected(settings: WorkerSettings) -> AsyncIterator[Broker]:
    streams = StreamSettings(ack_wait_s=settings.ack_wait_s)
    broker = await NatsBroker.connect(
        listed(settings.nats_url),
        token=settings.nats_token,
        name=settings.id,
        settings=streams,
        tls=nats_tls_of(settings),
    )
    try:
        yield broker
    finally:
        await broker.close()


def _make_private(folder: Path) -> None:
    """Make the archive's folder now; where that is not possible yet, its first segment tries again."""
    try:
        make_private(folder)
        command = closing(folder)
    except OSError as error:
        log.warning("archive.not_made", folder=str(folder), error=error.strerror)
        return
    if command is not None:
        log.warning("archive.open_to_others", folder=str(folder), close_it=command)


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


@asynccontextmanager
async def _extractor(settings: WorkerSettings) -> AsyncIterator[Extractor]:
    extractor = Extractor(cpu_s=settings.extract_s, memory_bytes=settings.extract_bytes)
    try:
        yield extractor
    finally:
        await extractor.close()


def _tuning(
    settings: WorkerSettings, place: "Place", runtime: Runtime, reporter: Reporter, *, most_visits: int
) -> Tuning:
    """The worker's parts follow the hot configuration, beginning with how it is now: a drained worker that starts pulls
    nothing."""
    visits, draining = settings.visits, False

    def apply(tuning: WorkerTuning, revision: int) -> None:
        nonlocal visits
        visits = tuning.visits
        set_log_level(tuning.log_level)
        reporter.pace(tuning.report_s)
        runtime.tune(visits, revision)
        place.say(visits, draining)

    def drain(wanted: bool) -> None:
        nonlocal draining
        draining = wanted
        runtime.drain(draining)
        place.say(visits, draining)

    tuning = Tuning(
        place.configuration,
        place.keys,
        member=settings.id,
        pool=settings.pool,
        started=WorkerTuning(settings.visits, settings.report_s, settings.log_level),
        most_visits=most_visits,
        apply=apply,
        drain=drain,
    )
    tuning.follow(place.configuration.snapshot)
    return tuning


@asynccontextmanager
async def _place(settings: WorkerSettings, clock: SystemClock) -> "AsyncIterator[Place | None]":
    """The worker's place in a cluster; None in a local crawl."""
    if isinstance(settings, ClusterWorkerSettings):
        from workers.member import joined  # its libraries are loaded where they are needed

        async with joined(settings, clock) as place:
            yield place
    else:
        yield None


def _specs(settings: WorkerSettings, place: "Place | None") -> SpecSource:
    """Where the specs are: in the folder of a local crawl, or in the coordinator of a cluster."""
    return LocalSpecs(settings.dir / "specs") if place is None else place.specs


def _fetchers(
    settings: WorkerSettings, place: "Place | None", connections: int
) -> Callable[[EgressRules], CurlFetcher]:
    """Return what opens a fetcher under a crawl's egress rules, in a cluster within the operator's own bound."""

    def open_fetcher(rules: EgressRules) -> CurlFetcher:
        if place is not None and isinstance(settings, ClusterWorkerSettings):
            rules = replace(rules, bound=settings.allow_net.networks, closed=place.closed)
        return CurlFetcher(rules, max_connections=connections)

    return open_fetcher


@asynccontextmanager
async def _crawls(crawls: Crawls) -> AsyncIterator[Crawls]:
    try:
        yield crawls
    finally:
        await crawls.close()


def main() -> int:
    """Run a worker of a local crawl with the settings of the environment; the exit code."""
    return serve(from_environment(WorkerSettings))


def serve(settings: WorkerSettings) -> int:
    """Run a worker; the exit code."""
    close_on_exec()
    configure_logging(settings.log_level, settings.log_format, worker=settings.id)

    async def until_signalled() -> int:
        stop = Stop()
        with ending_where_it_stands(SystemClock()), stop.signals():
            return await run(settings, stop)

    return uvloop.run(until_signalled())


if __name__ == "__main__":
    raise SystemExit(main())
