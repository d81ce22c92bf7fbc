"""`orb master` and `orb worker`: one process of a cluster, until SIGTERM. What no flag says, `ORB_*` variables do."""

import argparse
import os
from collections.abc import Mapping
from typing import Final

from shared.settings import PREFIX, ClusterMasterSettings, ClusterWorkerSettings, from_environment

_SHARED: Final = {
    "--id": ("id", "NAME", "its name in the cluster: a second process of this name takes its place"),
    "--cluster": ("cluster", "NAME", "the cluster's name (default: orb)"),
    "--etcd": ("etcd", "URL[,URL]", "etcd's endpoints: http://, https:// or unix:"),
    "--nats": ("nats_url", "URL[,URL]", "NATS's endpoints"),
    "--log-level": ("log_level", "LEVEL", "debug, info, warning or error (default: info)"),
    "--log-format": ("log_format", "FORMAT", "json or text (default: json)"),
}
_MASTER: Final = {
    "--database": ("database", "URL", "a path, sqlite: or postgresql: URL; all masters use the same"),
    "--http": ("http", "HOST:PORT", "where its API listens (default: 127.0.0.1:8081)"),
    "--address": ("address", "URL", "where the other masters reach its API, if that is another place"),
    "--pools": ("pools", "NAME[,NAME]", "the pools of workers (default: default)"),
    "--partitions": ("partitions", "N", "fixed when the cluster is first used (default: 64)"),
}
_WORKER: Final = {
    "--dir": ("dir", "DIR", "where its archive is"),
    "--pool": ("pool", "NAME", "the pool it belongs to (default: default)"),
    "--visits": ("visits", "N", "URL shards in hand at once (default: 64)"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """A flag for each setting that is not a secret: those are told by the environment, which no other user reads."""
    role = _MASTER if parser.prog.endswith(" master") else _WORKER
    parser.epilog = "Passwords and tokens: ORB_NATS_TOKEN, ORB_ETCD_USER, ORB_ETCD_PASSWORD; more settings as ORB_*."
    for flag, (name, metavar, text) in {**_SHARED, **role}.items():
        parser.add_argument(flag, dest=name, metavar=metavar, help=text)


def run(arguments: argparse.Namespace) -> int:
    environment = told(arguments, os.environ)
    if arguments.command == "master":
        import api.main

        return api.main.cluster_main(from_environment(ClusterMasterSettings, environment))
    import workers.main

    return workers.main.serve(from_environment(ClusterWorkerSettings, environment))


def told(arguments: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment, and over it what the flags say."""
    names = {name for flags in (_SHARED, _MASTER, _WORKER) for name, _, _ in flags.values()}
    said = {name: getattr(arguments, name, None) for name in names}
    return {**environment, **{PREFIX + name.upper(): value for name, value in said.items() if value is not None}}
