"""The settings of the etcd adapter: its members, the login, and time limits."""

from dataclasses import dataclass, field

from shared.settings import ClusterMasterSettings, ClusterWorkerSettings, listed
from shared.tls import TlsSettings, tls_files


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """The settings of a connection to an etcd cluster.

    `endpoints`: `http://host:port`, `https://host:port` or `unix:/path/of/socket`, any number of members. `attempt_s`
    limits one member's answer, `answer_s` all attempts of a repeatable call. `resync_s`: how often a view is compared
    with a fresh list. `page`: keys in one answer of a list. `user` and `password` are sent only over TLS or within this
    machine. If `tls` has a client certificate, its common name is the user. That needs no password, and no token can
    expire.
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
    """Return the settings of the cluster's etcd, taken from those of a master or worker."""
    return EtcdSettings(
        listed(settings.etcd),
        user=settings.etcd_user,
        password=settings.etcd_password,
        tls=tls_files(settings.etcd_ca, settings.etcd_cert, settings.etcd_key),
    )
