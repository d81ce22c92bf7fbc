"""What the etcd adapter is told: where the members are, how to log in, how patient to be."""

from dataclasses import dataclass, field
from pathlib import Path

from shared.settings import ClusterMasterSettings, ClusterWorkerSettings, listed


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files. `ca` signs the members' certificates; with `cert` and `key` we show one of our own, whose common name
    is then the user: it needs no password and has no token that expires."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """`endpoints`: `http://host:port`, `https://host:port` or `unix:/path/of/socket`, any number of members.

    `attempt_s`: how long one member may take to answer; `answer_s`: all attempts of a call that may be repeated.
    `resync_s`: a view is compared with a fresh list so often. `page`: keys in one answer of a list.
    `user` and `password` are sent over TLS or within this machine only.
    """

    endpoints: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TlsSettings | None = None
    attempt_s: float = 2.0
    answer_s: float = 5.0
    resync_s: float = 30.0
    page: int = 500


def etcd_of(settings: ClusterMasterSettings | ClusterWorkerSettings) -> EtcdSettings:
    """The cluster's etcd, as a process is told of it."""
    files = (settings.etcd_ca, settings.etcd_cert, settings.etcd_key)
    return EtcdSettings(
        listed(settings.etcd),
        user=settings.etcd_user,
        password=settings.etcd_password,
        tls=TlsSettings(*files) if any(files) else None,
    )
