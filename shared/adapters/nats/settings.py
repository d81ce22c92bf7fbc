"""The settings of the NATS adapter: login, bounds of the streams, and time limits of the connection."""

from dataclasses import dataclass, field

from msgspec import Struct

from shared.domain.errors import Unusable
from shared.settings import PREFIX, ClusterMasterSettings, ClusterWorkerSettings, MasterSettings, WorkerSettings
from shared.tls import TlsSettings, tls_files

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class NatsLogin:
    """The login of a process at NATS: a user and password, or a token.

    If all are None, a client certificate or the URL identifies the process.
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables (`ORB_NATS_...`) that pass this login to a master or worker, by name."""
        values = {"NATS_USER": self.user, "NATS_PASSWORD": self.password, "NATS_TOKEN": self.token}
        return {f"{PREFIX}{name}": value for name, value in values.items() if value is not None}


def login_of(settings: ClusterMasterSettings | MasterSettings | WorkerSettings) -> NatsLogin:
    """Return the login from the settings of a master or worker.

    Raise Unusable if only one of user and password is set, or both a user and a token.
    """
    user, password = settings.nats_user, settings.nats_password
    if (user is None) != (password is None):
        raise Unusable("nats_user and nats_password belong together: set both or neither")
    if user is not None and settings.nats_token is not None:
        raise Unusable("nats_user and nats_token exclude each other: set one of them")
    return NatsLogin(user, password, settings.nats_token)


class StreamSettings(Struct, frozen=True):
    """The settings of the streams in NATS, and the time limits of the connection.

    Durations are in seconds. Sizes are in bytes, and -1 means unbounded.

    - `replicas`: the number of servers that keep each stream, 1 on a single server. The number of an existing stream
      is never reduced.
    - `ack_wait_s`: a delivered shard is delivered again if its worker sends nothing about it for so long.
    - `max_ack_pending`: NATS delivers no further shard of a pool while so many are delivered and not acknowledged. It
      must exceed the number of visits of all workers of the pool together.
    - `max_waiting`: NATS refuses further pulls of a pool's shards while so many are open. It must exceed the number of
      open pulls of all workers of the pool together.
    - `reports_per_subject`: the number of stored reports of one kind for a partition. It must be positive. At this
      number a publish is refused, and the worker keeps its report.
    - `robots_ttl_s`: how long robots.txt records are kept.
    - `items_age_s`, `items_bytes`, `events_age_s`, `events_bytes`, `events_count`: bounds of the streams of items and
      of events. The oldest messages are deleted first.
    - `events_per_subject`: the most events of one subject that are stored. With more, the oldest events of this subject
      are deleted. Without this limit, the many progress events of one crawl could displace all other events.
    - `reader_idle_s`: the server deletes a reader's cursor that is not used for so long.
    - `read_bytes`: the most bytes of messages that a reader keeps in memory. If one message may be larger than this
      (the broker's maximum size), the limit is the size of one such message.
    - `answer_s`, `connect_s`: how long a call, or connecting, may take. `reconnect_s`: the pause between attempts.
    - `unsent_bytes`: the number of unsent bytes at which a publish is refused.
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
    """Return the stream settings of a cluster from the settings of a master."""
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
    """Return the TLS files for connecting to NATS, from the settings of a master or worker.

    Return None if TLS is not configured, and for a local crawl, whose broker is on the loopback.
    """
    if isinstance(settings, ClusterMasterSettings | ClusterWorkerSettings):
        return tls_files(settings.nats_ca, settings.nats_cert, settings.nats_key)
    return None
