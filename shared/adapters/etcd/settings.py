"""The settings of the etcd adapter: endpoints, login and time limits."""

from dataclasses import dataclass, field

from shared.settings import ClusterMasterSettings, ClusterWorkerSettings, listed
from shared.tls import TlsSettings, tls_files


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """The settings of a connection to an etcd cluster.

    - `endpoints`: one or more members, each as `http://host:port`, `https://host:port` or `unix:/path/of/socket`.
    - `user`, `password`: the login. The password is sent only over TLS or within this machine.
    - `tls`: files for TLS. If they have a client certificate, its common name is the user. No password is needed then.
    - `attempt_s`: how many seconds one member may take to answer.
    - `answer_s`: how many seconds all attempts of a repeatable call may take.
    - `resync_s`: the interval in seconds at which a copy of watched keys in memory is compared with a fresh list.
    - `page`: the number of keys in one answer of a list.
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
    """Return the connection settings for the cluster's etcd from the settings of a master or worker."""
    return EtcdSettings(
        listed(settings.etcd),
        user=settings.etcd_user,
        password=settings.etcd_password,
        tls=tls_files(settings.etcd_ca, settings.etcd_cert, settings.etcd_key),
    )
