"""Logging and metrics of a process.

A log line on stderr is one event with its fields (docs/logs.md). At each scrape, metrics are computed from numbers that
the process keeps. Only processes that expose metrics import the metrics library.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, assert_never

import msgspec
import structlog

from shared.domain.ops.counts import Histogram
from shared.domain.ops.watermarks import PressureState

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

_now = structlog.processors.TimeStamper(fmt="iso", utc=True)
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _Threshold:
    """A structlog processor that drops log lines below `level`, which may change while the process runs."""

    def __init__(self, level: int) -> None:
        self.level = level

    def __call__(self, _logger: Any, method: str, event: Any) -> Any:
        if _LEVELS.get(method, logging.ERROR) < self.level:
            raise structlog.DropEvent
        return event


_threshold = _Threshold(logging.INFO)


class LogStream:
    """A stream for log lines that never raises, even on a full disk or a closed pipe.

    It counts the lines whose write failed. These lines may appear late, or are lost. When writing works again, it first
    writes a line `log_lines.delayed` with the count as `lines`.
    """

    def __init__(self, stream: TextIO, rendered: Callable[[Any, str, Any], Any]) -> None:
        self._stream = stream
        self._rendered = rendered
        self._unwritten = 0

    def write(self, text: str) -> None:
        try:
            if self._unwritten:
                gap = {"event": "log_lines.delayed", "lines": self._unwritten, "level": "warning"}
                self._stream.write(f"{self._rendered(None, 'warning', _now(None, 'warning', gap))}\n")
                self._stream.flush()
                self._unwritten = 0
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._unwritten += 1

    def flush(self) -> None:
        """Do nothing, because `write` flushes each line."""


def configure_logging(level: str, form: str, **fields: Any) -> None:
    """Make structlog and the standard library's logging write to stderr.

    - `level`: the lowest level to write: debug, info, warning or error.
    - `form`: "json" writes each line as JSON, anything else as text.
    - `fields`: fields to add to every line.

    Logging does not raise if stderr cannot be written.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _now,
        structlog.processors.format_exc_info,
    ]
    renderer: Any = _as_json if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    lines: Any = LogStream(sys.stderr, renderer)
    structlog.configure(
        processors=[_threshold, *shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(lines),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**fields)
    handler = logging.StreamHandler(lines)
    processors = [_without_meta, renderer]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=processors, foreign_pre_chain=shared))
    logging.basicConfig(handlers=[handler], force=True)
    set_log_level(level)


_encoder = msgspec.json.Encoder(enc_hook=repr)


def _as_json(_logger: Any, _method: str, event: Any) -> str:
    """Return a log line as JSON. This is a structlog processor.

    Values that msgspec refuses (numbers beyond 64 bits, lone surrogates) are encoded by `json`, so that no line is
    lost.
    """
    try:
        return _encoder.encode(event).decode()
    except (TypeError, ValueError, OverflowError):
        return json.dumps(event, default=repr, skipkeys=True)


def set_log_level(level: str) -> None:
    """Write only log lines of `level` and above from now on.

    Of the lines of other libraries, only warnings and errors are written.
    """
    _threshold.level = _LEVELS[level]
    logging.getLogger().setLevel(max(_LEVELS[level], logging.WARNING))


def _without_meta(_logger: Any, _method: str, event: Any) -> Any:
    return structlog.stdlib.ProcessorFormatter.remove_processors_meta(_logger, _method, event)


# --- metrics ----------------------------------------------------------------------------------------------------------


class Metric(msgspec.Struct, frozen=True):
    """The description of a metric: its name without the prefix `orb_`, its type, its help text, and its label names."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()


# The metrics LEASE, LOST, USED, LIMIT and SHORT are published by masters and by workers.
LEASE: Final = Metric(
    "member_lease_seconds", "gauge", "Time until the lease of this member expires; it is renewed at a third of it."
)
LOST: Final = Metric(
    "member_sessions_lost_total", "counter", "Leases of this member that expired; it registered anew each time."
)
USED: Final = Metric("resource_used_bytes", "gauge", "Bytes used of a resource that may fill up.", ("resource",))
LIMIT: Final = Metric(
    "resource_limit_bytes", "gauge", "Size of that resource, or its ceiling; 0 if it has none.", ("resource",)
)
SHORT: Final = Metric(
    "resource_pressure", "gauge", "1 while the resource is so full that the member takes on no new work.", ("resource",)
)
"""For each resource: 1 if it is under pressure (nearly full), else 0."""

Values = Mapping[Any, float | Histogram]
"""The values of a metric: a mapping from label values (a tuple of text, () without labels) to a number or histogram."""

Readings = Iterable[tuple[Metric, Values]]


def pressure_readings(shortages: PressureState) -> "Readings":
    """Yield the metrics USED, LIMIT and SHORT with their values for each resource, as of its last check."""
    levels = shortages.levels.items()
    yield USED, {(str(place),): level.used for place, level in levels}
    yield LIMIT, {(str(place),): max(0, level.capacity) for place, level in levels}
    yield SHORT, {(str(place),): int(shortages.full(place)) for place, _ in levels}


def registry_of(described: Sequence[Metric], read: Callable[[], Readings]) -> "CollectorRegistry":
    """Return a Prometheus registry of the metrics in `described`, and of metrics of the Python process.

    `read` is called at each scrape and returns the values of the described metrics. It is called on the event loop, so
    it must be quick.
    """
    from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

    class Reader:
        def describe(self) -> "list[Family]":
            return [_family(metric, {}) for metric in described]

        def collect(self) -> "list[Family]":
            return [_family(metric, values) for metric, values in read()]

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(Reader())
    return registry


def exposed(registry: "CollectorRegistry", accept: str = "") -> tuple[bytes, str]:
    """Return the registry's metrics as text, and the media type of the text.

    `accept`: the Accept header of the request, which selects the format.
    """
    from prometheus_client.exposition import choose_encoder

    encode, media_type = choose_encoder(accept)
    return encode(registry), media_type


def _family(metric: Metric, values: Values) -> "Family":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.utils import floatToGoString

    name = f"orb_{metric.name}"
    match metric.kind:
        case "histogram":
            histogram = HistogramMetricFamily(name, metric.text, labels=metric.labels)
            for labels, counted in values.items():
                assert isinstance(counted, Histogram)
                bounds = [*map(floatToGoString, counted.bounds), "+Inf"]
                histogram.add_metric(labels, list(zip(bounds, counted.cumulative(), strict=True)), counted.total)
            return histogram
        case "counter" | "gauge":
            family = (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(
                name, metric.text, labels=metric.labels
            )
            for labels, value in values.items():
                assert not isinstance(value, Histogram)
                family.add_metric(labels, value)
            return family
        case never:
            assert_never(never)
