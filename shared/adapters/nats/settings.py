"""The settings of the NATS adapter: bounds of the streams and time limits of the connection."""

from dataclasses import dataclass, field

from shared.domain.errors import Unusable
from shared.settings import PREFIX, ClusterMasterSettings, ClusterWorkerSettings, MasterSettings, WorkerSettings
from shared.tls import TlsSettings, tls_files

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class NatsLogin:
    """What a process proves its identity by: a user and password, or a token.

    Without either, it is a client certificate, or what the URL contains.
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a master or worker gets this login."""
        values = {"NATS_USER": self.user, "NATS_PASSWORD": self.password, "NATS_TOKEN": self.token}
        return {f"{PREFIX}{name}": value for name, value in values.items() if value is not None}


def login_of(settings: ClusterMasterSettings | MasterSettings | WorkerSettings) -> NatsLogin:
    """Return the user and password, or the token, in the settings of a master or worker.

    Raise Unusable if a user has no password, a password has no user, or there is a token, too.
    """
    user, password = settings.nats_user, settings.nats_password
    if (user is None) != (password is None):
        raise Unusable("nats_user and nats_password belong together: set both or neither")
    if user is not None and settings.nats_token is not None:
        raise Unusable("nats_user and nats_token exclude each other: set one of them")
    return NatsLogin(user, password, settings.nats_token)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Settings of the streams in NATS, and time limits of the client.

    Durations are in seconds. Sizes are in bytes, -1 means unbounded.

    - `replicas`: 1 on a single server and 3 in a cluster. A stream with more keeps them.
    - `ack_wait_s`: how long a delivered shard may go without a sign of work before it is delivered again.
    - `max_ack_pending`: must exceed the visits of all workers of a pool together.
    - `max_waiting`: must exceed the open pulls of all workers of a pool together.
    - `reports_per_subject`: bounds each partition's backlog, and must be positive. Above it a producer is refused and
      keeps its reports.
    - `items_age_s`, `items_bytes`: bound the items in the stream. The oldest are deleted first.
    - `events_per_subject`: bounds, for example, the progress events of one crawl, so that they do not displace others.
    - `read_bytes`: bounds the memory of a report reader. One message of the broker's maximum size always fits.
    """

    replicas: int = 1
    ack_wait_s: float = 30.0
    max_ack_pending: int = 100_000
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
    """Return the settings of the streams, taken from those of a master in a cluster."""
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
    """Return the TLS files for NATS of a master or worker in a cluster.

    Return None if TLS is not configured, and in a local crawl, whose broker is on the loopback.
    """
    if isinstance(settings, ClusterMasterSettings | ClusterWorkerSettings):
        return tls_files(settings.nats_ca, settings.nats_cert, settings.nats_key)
    return None
