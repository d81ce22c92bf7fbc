"""What the broker adapter is told: bounds of the streams and patience of the connection."""

from dataclasses import dataclass

from shared.settings import ClusterMasterSettings, ClusterWorkerSettings, WorkerSettings
from shared.tls import TlsSettings, told

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Desired state of the streams, and how long the client waits.

    Durations are seconds; sizes are bytes, -1 unbounded. `replicas` is 1 on a single server and 3 in a cluster; a
    stream that has more keeps them.
    `ack_wait_s`: how long a shard in hand may stay silent before it is delivered again.
    `max_ack_pending` must exceed the visits of all workers of a pool together, `max_waiting` their open pulls.
    `reports_per_subject` bounds each partition's backlog: above it a producer is refused and holds what it has; it
    must be positive.
    `items_age_s`, `items_bytes`: how long items stay in the stream, and how many bytes of them; the oldest go first.
    `events_per_subject` bounds what is kept of one crawl's progress, say, so that it cannot push out all else.
    `read_bytes` bounds what a report reader holds in memory (but one message of the broker's maximum size always fits).
    """

    replicas: int = 1
    ack_wait_s: float = 30.0
    max_ack_pending: int = 20_000
    max_waiting: int = 4_096
    visits_bytes: int = -1
    reports_per_subject: int = 100_000
    reports_bytes: int = -1
    robots_bytes: int = 256 * MIB
    robots_ttl_s: float = 24 * 3600.0
    events_age_s: float = 7 * 24 * 3600.0
    events_bytes: int = 256 * MIB
    events_count: int = 1_000_000
    events_per_subject: int = 10_000
    items_age_s: float = 7 * 24 * 3600.0
    items_bytes: int = 512 * MIB
    reader_idle_s: float = 30.0
    read_bytes: int = 8 * MIB
    answer_s: float = 5.0
    connect_s: float = 10.0
    reconnect_s: float = 0.25
    unsent_bytes: int = 64 * MIB


def streams_of(settings: ClusterMasterSettings) -> StreamSettings:
    """As a master of a cluster is told them."""
    return StreamSettings(
        replicas=settings.nats_replicas,
        ack_wait_s=settings.ack_wait_s,
        max_ack_pending=settings.pool_visits,
        max_waiting=settings.pool_workers,
        reports_per_subject=settings.reports_per_partition,
        reports_bytes=settings.reports_bytes or -1,
        robots_bytes=settings.robots_bytes,
        events_age_s=settings.events_age_s,
        events_bytes=settings.events_bytes,
        items_age_s=settings.items_age_s,
        items_bytes=settings.items_bytes,
    )


def nats_tls_of(settings: ClusterMasterSettings | WorkerSettings) -> TlsSettings | None:
    """What a process of a cluster is told of TLS to NATS; None in a local crawl, whose broker is on the loopback."""
    if isinstance(settings, ClusterMasterSettings | ClusterWorkerSettings):
        return told(settings.nats_ca, settings.nats_cert, settings.nats_key)
    return None
