"""`orb master` and `orb worker`: one process of a cluster, until SIGTERM.

Flags go over `ORB_*` variables, these over a file (`--config`), and that over the defaults.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cli.effective import CONFIG, gathered, read
from shared.settings import PREFIX, ClusterMasterSettings, ClusterWorkerSettings

_SHARED: Final = {
    "--id": ("id", "NAME", "its name in the cluster: a second process of this name takes its place"),
    "--cluster": ("cluster", "NAME", "the cluster's name (default: orb)"),
    "--etcd": ("etcd", "URL[,URL]", "etcd's endpoints: http://, https:// or unix:"),
    "--etcd-user": ("etcd_user", "NAME", "who it is to etcd"),
    "--etcd-ca": ("etcd_ca", "FILE", "the CA that has signed etcd's certificate"),
    "--etcd-cert": ("etcd_cert", "FILE", "its own certificate for etcd"),
    "--etcd-key": ("etcd_key", "FILE", "and the key of that"),
    "--nats": ("nats_url", "URL[,URL]", "NATS's endpoints: nats://, or tls:// to be encrypted"),
    "--nats-ca": ("nats_ca", "FILE", "the CA that has signed NATS's certificates"),
    "--nats-cert": ("nats_cert", "FILE", "its own certificate for NATS"),
    "--nats-key": ("nats_key", "FILE", "and the key of that"),
    "--tls-cert": ("tls_cert", "FILE", "its certificate where it is asked over HTTP, which is then HTTPS"),
    "--tls-key": ("tls_key", "FILE", "and the key of that"),
    "--tls-client-ca": ("tls_client_ca", "FILE", "the CA whose certificates it demands there of everybody"),
    "--member-ttl-s": ("member_ttl_s", "S", "after so long a silence it counts as dead (default: 15)"),
    "--ack-wait-s": ("ack_wait_s", "S", "after so long NATS delivers a silent shard again (default: 30)"),
    "--metrics-crawls": ("metrics_crawls", "N", "crawls with metrics of their own (default: 50)"),
    "--memory-bytes": ("memory_bytes", "N", "at so much memory it takes on nothing new (default: a share of all)"),
    "--log-level": ("log_level", "LEVEL", "debug, info, warning or error (default: info)"),
    "--log-format": ("log_format", "FORMAT", "json or text (default: json)"),
}
_MASTER: Final = {
    "--database": ("database", "URL", "a path, sqlite: or postgresql: URL; all masters use the same"),
    "--http": ("http", "HOST:PORT", "where its API listens (default: 127.0.0.1:8081)"),
    "--address": ("address", "URL", "where the other masters reach its API, if that is another place"),
    "--tls-ca": ("tls_ca", "FILE", "the CA of the other masters' certificates (default: --tls-client-ca)"),
    "--nats-replicas": ("nats_replicas", "N", "NATS servers that keep every stream (default: 1; in a cluster: 3)"),
    "--archive": ("archive", "DIR", "the folder of the workers' segments (their --dir, then archive): serves pages"),
    "--pools": ("pools", "NAME[,NAME]", "the pools of workers (default: default)"),
    "--partitions": ("partitions", "N", "fixed when the cluster is first used (default: 64)"),
    "--grant-s": ("grant_s", "S", "how long a worker may fetch without asking again (default: 30)"),
    "--synchronous": ("synchronous", "MODE", "of SQLite: NORMAL, or FULL, which survives the loss of power"),
    "--metrics-s": ("metrics_s", "S", "how often metrics are read from SQL (default: 5)"),
    "--events-age-s": ("events_age_s", "S", "older events are forgotten (default: a week)"),
    "--events-bytes": ("events_bytes", "N", "the oldest events above this size are forgotten (default: 256 MiB)"),
    "--items-age-s": ("items_age_s", "S", "older items leave their stream (default: a week)"),
    "--items-bytes": ("items_bytes", "N", "above this size the oldest items leave their stream (default: 512 MiB)"),
    "--database-bytes": ("database_bytes", "N", "the size at which PostgreSQL counts as full (default: none)"),
    "--database-writers": ("database_writers", "N", "connections that write to PostgreSQL (default: 8)"),
    "--database-readers": ("database_readers", "N", "connections that read from PostgreSQL (default: 4)"),
    "--reports-bytes": ("reports_bytes", "N", "what reports may take in NATS (default: what it has)"),
    "--nats-store": ("nats_store", "DIR", "the folder of NATS's files, where it is on this machine: watches its disk"),
    "--event-streams": ("event_streams", "N", "clients that may follow events here at once (default: 64)"),
    "--exports": ("exports", "N", "clients that may be sent exports by this master at once (default: 16)"),
    "--body-bytes": ("body_bytes", "N", "what a request may have; seeds line by line are not bound (default: 4 MiB)"),
    "--http-connections": ("http_connections", "N", "connections to the API at once (default: 1000)"),
    "--pool-visits": ("pool_visits", "N", "URL shards that a pool may have in hand, all its workers (default: 20000)"),
    "--pool-workers": ("pool_workers", "N", "workers of a pool that may wait for work at once (default: 4096)"),
    "--reports-per-partition": ("reports_per_partition", "N", "of a kind, that may wait in NATS (default: 100000)"),
    "--robots-bytes": ("robots_bytes", "N", "of robots.txt that NATS keeps for all workers (default: 256 MiB)"),
}
_WORKER: Final = {
    "--dir": ("dir", "DIR", "where its archive is"),
    "--pool": ("pool", "NAME", "the pool it belongs to (default: default)"),
    "--visits": ("visits", "N", "URL shards in hand at once (default: 64)"),
    "--connections": ("connections", "N", "kept open at once, at least its visits (default: 512)"),
    "--report-s": ("report_s", "S", "longest time a finished page waits to be reported (default: 2)"),
    "--grace-s": ("grace_s", "S", "how long visits may go on after a stop (default: 10)"),
    "--extract-s": ("extract_s", "S", "processor time to take items out of one page (default: 2)"),
    "--extract-bytes": ("extract_bytes", "N", "memory to take items out of one page (default: 1 GiB)"),
    "--open-crawls": ("open_crawls", "N", "crawls with a WARC file open (default: 256)"),
    "--allow-net": (
        "allow_net",
        "CIDR[,CIDR]",
        "private networks that specs may open; may be repeated (default: none)",
    ),
    "--closed": ("closed", "HOST:PORT[,...]", "further servers that no crawl reaches, as members and engines"),
    "--metrics": ("metrics", "HOST:PORT", "where its metrics are served (default: nowhere)"),
}
_ROLES: Final = {"master": {**_SHARED, **_MASTER}, "worker": {**_SHARED, **_WORKER}}
"""A flag for each setting that is not a secret: those are said by variables or a file, which no other user reads."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "master" if parser.prog.endswith(" master") else "worker")


def add_flags(parser: argparse.ArgumentParser, role: str) -> None:
    """Declare the flags of a role."""
    parser.epilog = (
        f"Each is also a variable ({PREFIX}* of the setting's name: see docs/configuration.md) and a key of FILE. "
        f"Flags go first, then variables, then FILE. Passwords and tokens, not as flags: {PREFIX}NATS_TOKEN, "
        f"{PREFIX}ETCD_PASSWORD. `orb config show {role}` prints what holds."
    )
    parser.add_argument("--config", metavar="FILE", help=f"settings as YAML (or {CONFIG})")
    for flag, (name, metavar, text) in _ROLES[role].items():
        parser.add_argument(flag, dest=name, metavar=metavar, help=text, action=_Listed if "[," in metavar else "store")


class _Listed(argparse.Action):
    """Joins the values of a flag that is given several times by commas, as its setting has them."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, str(values) if before is None else f"{before},{values}")


def flags_of(role: str) -> dict[str, str]:
    """The flag of each setting of a role."""
    return {name: flag for flag, (name, _, _) in _ROLES[role].items()}


def explained(role: str, flag: str) -> tuple[str, str, str]:
    """The setting of a role's flag, the name of its value, and what it is for."""
    return _ROLES[role][flag]


def run(arguments: argparse.Namespace) -> int:
    if arguments.command == "master":
        settings = master_settings(arguments, os.environ)
        import api.main

        return api.main.cluster_main(settings)
    told = worker_settings(arguments, os.environ)
    import workers.main

    return workers.main.serve(told)


def master_settings(arguments: argparse.Namespace, environment: Mapping[str, str]) -> ClusterMasterSettings:
    """What a master is told. Usage with all that is missing or wrong."""
    flags = flags_of("master")
    return read(ClusterMasterSettings, gathered("master", flags, arguments, environment), flags)


def worker_settings(arguments: argparse.Namespace, environment: Mapping[str, str]) -> ClusterWorkerSettings:
    """What a worker is told. Usage with all that is missing or wrong."""
    flags = flags_of("worker")
    return read(ClusterWorkerSettings, gathered("worker", flags, arguments, environment), flags)
