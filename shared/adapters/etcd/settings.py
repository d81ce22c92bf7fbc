"""What the etcd adapter is told: where the members are, how to log in, how patient to be."""

from dataclasses import dataclass, field

from shared.settings import ClusterMasterSettings, ClusterWorkerSettings, listed
from shared.tls import TlsSettings, told


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """`endpoints`: `http://host:port`, `https://host:port` or `unix:/path/of/socket`, any number of members.

    `attempt_s`: how long one member may take to answer; `answer_s`: all attempts of a call that may be repeated.
    `resync_s`: a view is compared with a fresh list so often. `page`: keys in one answer of a list.
    `user` and `password` are sent over TLS or within this machine only. Where `tls` has a certificate of ours, its
    common name is the user: it needs no password and has no token that expires.
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
    return EtcdSettings(
        listed(settings.etcd),
        user=settings.etcd_user,
        password=settings.etcd_password,
        tls=told(settings.etcd_ca, settings.etcd_cert, settings.etcd_key),
    )
