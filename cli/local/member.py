"""`orb master` and `orb worker`: run a master or worker of a cluster until SIGTERM.

Flags override `ORB_*` variables, which override a file (`--config`), which overrides the defaults.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cli.terminal.settings import CONFIG, gathered, read
from shared.settings import PREFIX, ClusterMasterSettings, ClusterWorkerSettings

_SHARED: Final = {
    "id": ("NAME", "its name in the cluster: a second process of this name takes its place"),
    "cluster": ("NAME", "the cluster's name (default: orb)"),
    "etcd": ("URL[,URL]", "etcd's endpoints: http://, https:// or unix:"),
    "etcd_user": ("NAME", "user name for etcd"),
    "etcd_ca": ("FILE", "the CA that has signed etcd's certificate"),
    "etcd_cert": ("FILE", "its own certificate for etcd"),
    "etcd_key": ("FILE", "the key of that certificate"),
    "nats_url": ("URL[,URL]", "NATS's endpoints: nats://, or tls:// to be encrypted"),
    "nats_user": ("NAME", "user name for NATS"),
    "nats_ca": ("FILE", "the CA that has signed NATS's certificates"),
    "nats_cert": ("FILE", "its own certificate for NATS"),
    "nats_key": ("FILE", "the key of that certificate"),
    "tls_cert": ("FILE", "certificate of its HTTP server, which then serves HTTPS"),
    "tls_key": ("FILE", "the key of that certificate"),
    "tls_client_ca": ("FILE", "the CA of client certificates, which its HTTP server then requires"),
    "member_ttl_s": ("S", "seconds of silence after which it counts as dead (default: 15)"),
    "ack_wait_s": ("S", "seconds of silence after which NATS redelivers a shard (default: 30)"),
    "metrics_crawls": ("N", "crawls with metrics of their own (default: 50)"),
    "memory_bytes": ("N", "memory above which it accepts no new work (default: a share of all)"),
    "log_level": ("LEVEL", "debug, info, warning or error (default: info)"),
    "log_format": ("FORMAT", "json or text (default: json)"),
}
_MASTER: Final = {
    "database": ("URL", "a path, sqlite: or postgresql: URL; all masters use the same"),
    "http": ("HOST:PORT", "where its API listens (default: 127.0.0.1:8081)"),
    "address": ("URL", "where the other masters reach its API, if it differs from --http"),
    "tls_ca": ("FILE", "the CA of the other masters' certificates (default: --tls-client-ca)"),
    "nats_replicas": ("N", "NATS servers that keep every stream (default: 1; in a cluster: 3)"),
    "archive": ("DIR", "the folder of the workers' segments (archive in their --dir), to serve pages"),
    "pools": ("NAME[,NAME]", "the pools of workers (default: default)"),
    "partitions": ("N", "fixed when the cluster is first used (default: 64)"),
    "grant_s": ("S", "seconds that a worker may fetch before it renews its grant (default: 30)"),
    "synchronous": ("MODE", "SQLite's mode: NORMAL, or FULL, which survives a power failure"),
    "metrics_s": ("S", "how often metrics are read from SQL (default: 5)"),
    "events_age_s": ("S", "older events are deleted (default: a week)"),
    "events_bytes": ("N", "above this size the oldest events are deleted (default: 256 MiB)"),
    "items_age_s": ("S", "older items are deleted from their stream (default: a week)"),
    "items_bytes": ("N", "above this size the oldest items are deleted (default: 512 MiB)"),
    "database_bytes": ("N", "the size at which PostgreSQL counts as full (default: none)"),
    "database_writers": ("N", "connections that write to PostgreSQL (default: 8)"),
    "database_readers": ("N", "connections that read from PostgreSQL (default: 4)"),
    "reports_bytes": ("N", "space of reports in NATS (default: all it has)"),
    "nats_store": ("DIR", "the folder of NATS's files, if on this machine, to watch its disk"),
    "event_streams": ("N", "clients that may follow events here at once (default: 64)"),
    "exports": ("N", "exports that this master sends at once (default: 16)"),
    "body_bytes": ("N", "size limit of a request; line-by-line seeds have none (default: 4 MiB)"),
    "http_connections": ("N", "connections to the API at once (default: 1000)"),
    "key_reads": ("N", "reads of an API key a second; 0: no limit (default: 1000)"),
    "key_writes": ("N", "writes of an API key a second; 0: no limit (default: 500)"),
    "key_bulk": ("N", "streams, exports and uploads of an API key a second; 0: no limit (default: 100)"),
    "wrong_keys": ("N", "wrong API keys of an address a minute; 0: no limit (default: 60)"),
    "pool_visits": ("N", "URL shards that all workers of a pool may hold (default: 100000)"),
    "pool_workers": ("N", "workers of a pool that may wait for work at once (default: 4096)"),
    "reports_per_partition": ("N", "reports of a kind in NATS (default: 100000)"),
    "robots_bytes": ("N", "robots.txt files that NATS keeps for all workers (default: 256 MiB)"),
}
_WORKER: Final = {
    "dir": ("DIR", "the folder that contains its archive"),
    "pool": ("NAME", "the pool it belongs to (default: default)"),
    "max_visits": ("N", "URL shards that it holds at once, waiting for hosts or not (default: 1024)"),
    "max_requests": ("N", "requests under way at once (default: 128)"),
    "connections": ("N", "connections kept open at once, at least max_requests (default: 512)"),
    "report_s": ("S", "longest time a finished page waits to be reported (default: 2)"),
    "grace_s": ("S", "how long visits may go on after a stop (default: 10)"),
    "extract_s": ("S", "processor time to extract items from one page (default: 2)"),
    "extract_bytes": ("N", "memory to extract items from one page (default: 1 GiB)"),
    "open_crawls": ("N", "crawls with a WARC file open (default: 256)"),
    "allow_net": ("CIDR[,CIDR]", "private networks that specs may open; repeatable (default: none)"),
    "closed": ("HOST:PORT[,...]", "further servers that crawls may not reach, as members and engines"),
    "metrics": ("HOST:PORT", "where its metrics are served (default: nowhere)"),
}
_ROLES: Final = {"master": {**_SHARED, **_MASTER}, "worker": {**_SHARED, **_WORKER}}
"""The placeholder and the help of each setting's flag, by role and setting. Secrets have no flags, because
other users can see a command line. They come from variables or a file."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "master" if parser.prog.endswith(" master") else "worker")


def add_flags(parser: argparse.ArgumentParser, role: str) -> None:
    """Declare the flags of `orb master` or `orb worker`. `role` is `master` or `worker`."""
    parser.epilog = (
        f"Each is also a variable ({PREFIX}* and the setting's name: see docs/configuration.md) and a key of FILE. "
        f"Flags override variables, which override FILE. Passwords and tokens have no flags: {PREFIX}NATS_PASSWORD, "
        f"{PREFIX}NATS_TOKEN, {PREFIX}ETCD_PASSWORD. `orb config show {role}` prints the effective settings."
    )
    parser.add_argument("--config", metavar="FILE", help=f"settings as YAML (or {CONFIG})")
    for name, (metavar, text) in _ROLES[role].items():
        action = _Listed if "[," in metavar else "store"
        parser.add_argument(_flag(name), dest=name, metavar=metavar, help=text, action=action)


def _flag(name: str) -> str:
    """Return the command-line flag of the setting `name`, such as `--max-visits` for `max_visits`."""
    return "--nats" if name == "nats_url" else f"--{name.replace('_', '-')}"


class _Listed(argparse.Action):
    """An argparse action for a flag that may be repeated: it joins the values with commas."""

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
    """Return the flag of each setting that has one, by the setting's name. `role` is `master` or `worker`."""
    return {name: _flag(name) for name in _ROLES[role]}


def explained(role: str, name: str) -> tuple[str, str]:
    """Return the placeholder and the help text of the flag that sets `name`. `role` is `master` or `worker`."""
    return _ROLES[role][name]


def run(arguments: argparse.Namespace) -> int:
    if arguments.command == "master":
        master = master_settings(arguments, os.environ)
        import api.cluster_main

        return api.cluster_main.cluster_main(master)
    worker = worker_settings(arguments, os.environ)
    import workers.main

    return workers.main.serve(worker)


def master_settings(arguments: argparse.Namespace, environment: Mapping[str, str]) -> ClusterMasterSettings:
    """Return the settings of a master, from flags, variables and file.

    Raise Usage if settings are missing or invalid. The message names them all.
    """
    flags = flags_of("master")
    return read(ClusterMasterSettings, gathered("master", flags, arguments, environment), flags)


def worker_settings(arguments: argparse.Namespace, environment: Mapping[str, str]) -> ClusterWorkerSettings:
    """Return the settings of a worker, from flags, variables and file.

    Raise Usage if settings are missing or invalid. The message names them all.
    """
    flags = flags_of("worker")
    return read(ClusterWorkerSettings, gathered("worker", flags, arguments, environment), flags)
