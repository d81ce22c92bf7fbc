"""A worker's metrics: their descriptions, and their values at each scrape."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from shared.domain.ops.watermarks import PressureState
from shared.domain.software import VERSION
from shared.domain.web.fetch import FailureKind
from shared.ports.clock import Clock
from shared.runtime.registration import Registration
from shared.telemetry import LEASE, LOST, SHORT, USED, Metric, Readings, Values, pressure_readings, registry_of
from shared.telemetry import LIMIT as LIMIT_OF_ROOM
from workers.archive import WarcArchive
from workers.report import Reporter
from workers.runtime import Runtime, VisitAbandoned, VisitHandedBack, VisitSettled
from workers.stats import WorkerStats

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

WORKER = Metric(
    "worker_info", "gauge", "Always 1; labels name the worker, its pool and its version.", ("worker", "pool", "version")
)
OPEN = Metric("visits_open", "gauge", "URL shards in hand.")
LIMIT = Metric("visits_limit", "gauge", "URL shards that it may have in hand.")
PULLING = Metric("worker_pulling", "gauge", "1 while it takes further shards, 0 while it drains.")
VISITS = Metric("visits_total", "counter", "Visits by result.", ("result",))
MALFORMED = Metric("shards_malformed_total", "counter", "URL shards that could not be read.")
FETCHES = Metric("fetches_total", "counter", "URLs requested, by class of status.", ("crawl", "status"))
FETCHED = Metric("fetched_bytes_total", "counter", "Payload bytes of the responses.", ("crawl",))
DENIED = Metric("urls_denied_total", "counter", "URLs not requested, as a rule forbids it.", ("crawl", "reason"))
DURATION = Metric(
    "fetch_duration_seconds", "histogram", "Time from the start of a request to its end, whatever the result."
)
FAILURES = Metric("fetch_failures_total", "counter", "Fetches that got no response.", ("kind",))
WAITS = Metric("politeness_wait_seconds", "histogram", "Time that a request waited for the delay of its host.")
ARCHIVED = Metric("archive_pages_total", "counter", "Pages written to WARC segments.")
ARCHIVED_BYTES = Metric(
    "archive_bytes_total", "counter", "Compressed bytes of the records of pages and robots.txt files."
)
COMMITS = Metric("archive_commit_duration_seconds", "histogram", "Time to make written records durable.")
COMMIT_FAILURES = Metric(
    "archive_commit_failures_total", "counter", "Attempts to make records durable that failed; they are repeated."
)
BUFFERED = Metric("archive_buffered_bytes", "gauge", "Bytes written and not durable yet.")
PUBLISHED = Metric("reports_published_total", "counter", "Reports that NATS acknowledged.", ("kind",))
LINKS = Metric("links_published_total", "counter", "Links in these reports.")
UNREPORTED = Metric("pages_unreported", "gauge", "Fetched pages that no acknowledged report has yet.")
UNREPORTED_LINKS = Metric("links_unreported", "gauge", "Links of these pages.")
FLUSHES = Metric(
    "report_flush_duration_seconds", "histogram", "Time from the archive's sync to the last acknowledgement of a flush."
)
UNSTORED = Metric("nats_storage_failing", "gauge", "1 while NATS answers and stores no report.")
FLUSHING = Metric("report_flush_running_seconds", "gauge", "Time since the present flush began; 0 if there is none.")

ITEMS = Metric("items_total", "counter", "Items taken from pages and acknowledged by NATS.", ("crawl",))
REFUSED_ITEMS = Metric(
    "items_rejected_total", "counter", "Matches of item rules that gave no item.", ("crawl", "reason")
)

METRICS: Final = (
    WORKER, OPEN, LIMIT, PULLING, VISITS, MALFORMED, FETCHES, FETCHED, DENIED, DURATION, FAILURES, WAITS, ARCHIVED,
    ARCHIVED_BYTES, COMMITS, COMMIT_FAILURES, BUFFERED, PUBLISHED, LINKS, UNREPORTED, UNREPORTED_LINKS, FLUSHES,
    FLUSHING, UNSTORED, ITEMS, REFUSED_ITEMS, LEASE, LOST, USED, LIMIT_OF_ROOM, SHORT,
)  # fmt: skip

_ENDS: Final = {
    "settled": VisitSettled.__name__,
    "handed_back": VisitHandedBack.__name__,
    "abandoned": VisitAbandoned.__name__,
}
_KINDS: Final = ("outcome", "discovery", "items")


class WorkerMetrics:
    """Reads the present values of a worker's metrics from its parts. `registration` is None in a local crawl."""

    def __init__(
        self,
        runtime: Runtime,
        reporter: Reporter,
        archive: WarcArchive,
        stats: WorkerStats,
        clock: Clock,
        registration: Registration | None,
        shortages: PressureState,
        stores_nothing: Callable[[], bool],
    ) -> None:
        self._runtime = runtime
        self._reporter = reporter
        self._archive = archive
        self._stats = stats
        self._clock = clock
        self._registration = registration
        self._shortages = shortages
        self._stores_nothing = stores_nothing

    def __repr__(self) -> str:
        return f"<WorkerMetrics {self._runtime!r}>"

    def registry(self) -> "CollectorRegistry":
        """Return a Prometheus registry that reads the metrics of this process at each scrape."""
        return registry_of(METRICS, self.read)

    def read(self) -> Readings:
        """Yield the present value of every metric of the worker."""
        yield from self._load()
        yield from self._fetched()
        yield from self._kept()
        yield from pressure_readings(self._shortages)

    def _load(self) -> Iterator[tuple[Metric, Values]]:
        status, stats = self._runtime.status(), self._stats
        yield WORKER, {(status.worker, status.pool, VERSION): 1}
        yield OPEN, {(): status.busy}
        yield LIMIT, {(): status.visits}
        yield PULLING, {(): int(status.pulling and not status.draining)}
        yield VISITS, {(end,): stats.visits[settlement] for end, settlement in _ENDS.items()}
        yield MALFORMED, {(): stats.malformed}
        if self._registration is not None:
            yield LEASE, {(): self._registration.left_s(self._clock.elapsed())}
            yield LOST, {(): self._registration.lost}

    def _fetched(self) -> Iterator[tuple[Metric, Values]]:
        stats = self._stats
        kinds = ("status", "denied", "bytes", "items", "refused_items")
        by_kind: dict[str, dict[tuple[str, ...], float]] = {kind: {} for kind in kinds}
        for crawl, counts in stats.crawls.named().items():
            for (kind, key), n in counts.items():
                by_kind[kind][(crawl, key) if key else (crawl,)] = n
        yield FETCHES, by_kind["status"]
        yield FETCHED, by_kind["bytes"]
        yield DENIED, by_kind["denied"]
        yield ITEMS, by_kind["items"]
        yield REFUSED_ITEMS, by_kind["refused_items"]
        yield DURATION, {(): stats.fetches}
        yield FAILURES, {(kind,): stats.failures[kind] for kind in FailureKind}
        yield WAITS, {(): stats.waits}

    def _kept(self) -> Iterator[tuple[Metric, Values]]:
        stats, archived, reporter = self._stats, self._archive.stats, self._reporter
        yield ARCHIVED, {(): archived.pages}
        yield ARCHIVED_BYTES, {(): archived.bytes}
        yield COMMITS, {(): archived.commits}
        yield COMMIT_FAILURES, {(): archived.failures}
        yield BUFFERED, {(): self._archive.buffered()}
        yield PUBLISHED, {(kind,): stats.reports[kind] for kind in _KINDS}
        yield LINKS, {(): stats.links}
        pages, links = reporter.unreported()
        yield UNREPORTED, {(): pages}
        yield UNREPORTED_LINKS, {(): links}
        yield FLUSHES, {(): stats.flushes}
        yield FLUSHING, {(): reporter.flushing_s()}
        yield UNSTORED, {(): int(self._stores_nothing())}
