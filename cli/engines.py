"""The engines of a cluster, for commands that look after it: told as to a master, by flags, `ORB_*` and a file."""

import argparse
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from cli.cluster_folder import ClusterFolder, database_of
from cli.effective import CONFIG, gathered, read
from cli.exits import Environment, Usage
from cli.member import flags_of
from shared.settings import PREFIX, ClusterMasterSettings, Origin, Said, listed

if TYPE_CHECKING:
    from shared.adapters.nats.broker import NatsBroker
    from shared.adapters.sql.store import Executor

_DATABASE: Final = ("--database",)
_NATS: Final = ("--nats", "--nats-ca", "--nats-cert", "--nats-key", "--nats-replicas", "--pools")
_ETCD: Final = ("--etcd", "--etcd-user", "--etcd-ca", "--etcd-cert", "--etcd-key", "--cluster")
_NOBODY: Final = {
    "id": Said("operator", Origin.DEFAULT, ""),
    "etcd": Said("", Origin.DEFAULT, ""),
    "nats_url": Said("", Origin.DEFAULT, ""),
    "database": Said("", Origin.DEFAULT, ""),
}
"""What a master must be told, and such a command need not."""


def add_database_flag(parser: argparse.ArgumentParser) -> None:
    """Declare how the database is told."""
    _add(parser, _DATABASE)
    _add_folder(parser, "the folder of `orb up`, instead")


def add_engine_flags(parser: argparse.ArgumentParser, *, folder: str = "the folder of `orb up`, instead") -> None:
    """Declare how database, NATS and etcd are told. `folder`: what `--dir` means."""
    _add(parser, _DATABASE + _NATS + _ETCD)
    _add_folder(parser, folder)


def add_etcd_flags(parser: argparse.ArgumentParser) -> None:
    """Declare how etcd is named, for commands that name databases by flags of their own."""
    _add(parser, _ETCD)
    parser.set_defaults(up=None)


def _add_folder(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--dir", dest="up", type=Path, metavar="DIR", help=text)


def _add(parser: argparse.ArgumentParser, flags: tuple[str, ...]) -> None:
    from cli.member import explained

    parser.add_argument("--config", metavar="FILE", help=f"settings of a master as YAML (or {CONFIG})")
    for flag in flags:
        name, metavar, text = explained("master", flag)
        parser.add_argument(flag, dest=name, metavar=metavar, help=text)


def told(arguments: argparse.Namespace, environment: Mapping[str, str], *needed: str) -> ClusterMasterSettings:
    """What is told of the engines. Usage when one that is needed is not: `database`, `nats_url`, `etcd`."""
    return _read(_said(arguments, environment, *needed))


def told_database(arguments: argparse.Namespace, environment: Mapping[str, str]) -> tuple[str, str]:
    """The database, and the flag, variable or line of a file that tells it. Usage when nothing does."""
    said = _said(arguments, environment, "database")
    return _read(said).database, said["database"].place


def _read(said: Mapping[str, Said]) -> ClusterMasterSettings:
    return read(ClusterMasterSettings, {**_NOBODY, **said}, flags_of("master"))


def _said(arguments: argparse.Namespace, environment: Mapping[str, str], *needed: str) -> Mapping[str, Said]:
    said = gathered("master", flags_of("master"), arguments, environment)
    if arguments.up is not None:
        said |= in_folder(ClusterFolder(arguments.up), said.get("database"))
    for name in needed:
        if name not in said:
            flag = flags_of("master")[name]
            raise Usage(f"{name} is not told: say {flag}, or {PREFIX}{name.upper()}.")
    return said


def in_folder(folder: ClusterFolder, database: Said | None) -> dict[str, Said]:
    """What the folder of `orb up` says of its engines. `database`: as told beside it; the folder keeps no password."""
    remembered = folder.remembered()
    if remembered is None:
        raise Usage(f"{folder.path} is no cluster's folder.")
    elsewhere = remembered.database.startswith(("postgresql:", "postgres:"))
    beside = database if elsewhere else None
    here = {
        "database": database_of(folder, None if beside is None else beside.text),
        "etcd": "",
        "nats_url": f"nats://127.0.0.1:{remembered.nats}",
    }
    try:
        here["nats_token"] = msgspec.json.decode((folder.nats / "nats.conf").read_bytes())["authorization"]["token"]
    except (OSError, msgspec.DecodeError, LookupError, TypeError) as error:
        raise Environment(
            f"cannot read {folder.nats / 'nats.conf'}: {error}; start the cluster with `orb up`."
        ) from error
    found = {name: Said(text, Origin.FLAG, "--dir") for name, text in here.items()}
    return found if beside is None else {**found, "database": beside}


@asynccontextmanager
async def executing(database: str) -> AsyncIterator["Executor"]:
    """The database as masters use it; nothing is migrated."""
    from shared.adapters.sql.snapshot import is_postgresql, no_database, sqlite_file

    executor: Executor
    if is_postgresql(database):
        from shared.adapters.sql.postgres import PostgresPool

        executor = PostgresPool(database)
    else:
        from shared.adapters.sql.engine import SqliteThreads

        path = sqlite_file(database)
        if not path.is_file():
            raise Usage(f"{no_database(path)}.")
        executor = SqliteThreads(path)
    try:
        yield executor
    finally:
        await executor.close()


@asynccontextmanager
async def broker_of(settings: ClusterMasterSettings) -> AsyncIterator["NatsBroker"]:
    """The cluster's broker. Transient while it is away, Unusable when it refuses us."""
    from shared.adapters.nats.broker import NatsBroker
    from shared.adapters.nats.settings import nats_tls_of, streams_of

    broker = await NatsBroker.connect(
        listed(settings.nats_url),
        token=settings.nats_token,
        name=f"orb-{settings.id}",
        settings=streams_of(settings),
        tls=nats_tls_of(settings),
    )
    try:
        yield broker
    finally:
        await broker.close()


async def registered(settings: ClusterMasterSettings) -> tuple[list[str], list[str]]:
    """Return the masters and the workers that are registered in etcd; none if no etcd is named."""
    from shared.wire.keys import Keys

    if not settings.etcd:
        return [], []
    keys, found = Keys(settings.cluster), await keys_of(settings)
    masters = sorted(name for key in found if (name := keys.master_of(key)))
    return masters, sorted(name for key in found if (name := keys.worker_of(key)))


async def keys_of(settings: ClusterMasterSettings) -> Mapping[str, bytes]:
    """What stands under the cluster's keys in etcd now."""
    from shared.adapters.etcd import EtcdCoordinator
    from shared.adapters.etcd.settings import etcd_of
    from shared.adapters.local.clock import SystemClock
    from shared.wire.keys import Keys

    coordinator = EtcdCoordinator(etcd_of(settings), SystemClock())
    try:
        found = await coordinator.list(Keys(settings.cluster).root)
        return {key: entry.value for key, entry in found.entries.items()}
    finally:
        await coordinator.close()
