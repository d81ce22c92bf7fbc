"""Settings of a cluster's engines (database, NATS, etcd) and connections to them, for admin commands.

The settings are given as for a master: by flags, `ORB_*` variables or a file.
"""

import argparse
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cli.local.cluster_folder import ClusterFolder, database_of
from cli.local.member import flags_of
from cli.terminal.exits import Environment, Usage
from cli.terminal.settings import CONFIG, gathered, read
from shared.settings import (
    PREFIX,
    ClusterMasterSettings,
    SettingOrigin,
    SettingValue,
    is_postgresql,
    sqlite_file,
)

if TYPE_CHECKING:
    from shared.adapters.nats.broker import NatsBroker
    from shared.adapters.sql.engine.executor import Executor

_DATABASE: Final = ("database",)
_NATS: Final = ("nats_url", "nats_user", "nats_ca", "nats_cert", "nats_key", "nats_replicas", "pools")
_ETCD: Final = ("etcd", "etcd_user", "etcd_ca", "etcd_cert", "etcd_key", "cluster")
_OPTIONAL: Final = {
    "id": SettingValue("operator", SettingOrigin.DEFAULT, ""),
    "etcd": SettingValue("", SettingOrigin.DEFAULT, ""),
    "nats_url": SettingValue("", SettingOrigin.DEFAULT, ""),
    "database": SettingValue("", SettingOrigin.DEFAULT, ""),
}
"""Values for settings that the user has not set. A master requires these settings; some admin commands do not."""


def add_database_flag(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that name a cluster's database, by its path or URL or by a folder of `orb up`."""
    _add(parser, _DATABASE)
    _add_folder(parser, "the folder of `orb up` instead of the flags above")


def add_engine_flags(
    parser: argparse.ArgumentParser, *, folder: str = "the folder of `orb up` instead of the flags above"
) -> None:
    """Declare the flags that name a cluster's database, NATS and etcd. `folder` is the help text of `--dir`."""
    _add(parser, _DATABASE + _NATS + _ETCD)
    _add_folder(parser, folder)


def add_etcd_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that name etcd, for a command that declares its own flags for the database."""
    _add(parser, _ETCD)
    parser.set_defaults(up=None)


def _add_folder(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--dir", dest="up", type=Path, metavar="DIR", help=text)


def _add(parser: argparse.ArgumentParser, names: tuple[str, ...]) -> None:
    from cli.local.member import explained

    parser.add_argument("--config", metavar="FILE", help=f"settings of a master as YAML (or {CONFIG})")
    for name in names:
        metavar, text = explained("master", name)
        parser.add_argument(flags_of("master")[name], dest=name, metavar=metavar, help=text)


def engine_settings(
    arguments: argparse.Namespace, environment: Mapping[str, str], *needed: str
) -> ClusterMasterSettings:
    """Return the settings of the cluster's database, NATS and etcd, from flags, variables and file.

    `needed` are the settings that must be set: `database`, `nats_url` or `etcd`. Raise Usage if one of them is missing
    or any setting is invalid.
    """
    return _read(_gathered(arguments, environment, *needed))


def database_setting(arguments: argparse.Namespace, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the database's path or URL, and the place that sets it: a flag, a variable or a line of a file.

    Raise Usage if the database is not set.
    """
    values = _gathered(arguments, environment, "database")
    return _read(values).database, values["database"].place


def _read(values: Mapping[str, SettingValue]) -> ClusterMasterSettings:
    return read(ClusterMasterSettings, {**_OPTIONAL, **values}, flags_of("master"))


def _gathered(
    arguments: argparse.Namespace, environment: Mapping[str, str], *needed: str
) -> Mapping[str, SettingValue]:
    values = gathered("master", flags_of("master"), arguments, environment)
    if arguments.up is not None:
        values = {name: value for name, value in values.items() if name != "nats_token"}
        values |= in_folder(ClusterFolder(arguments.up), values.get("database"))
    for name in needed:
        if name not in values:
            flag = flags_of("master")[name]
            raise Usage(f"no {name} given: set {flag} or {PREFIX}{name.upper()}.")
    return values


def in_folder(folder: ClusterFolder, database: SettingValue | None) -> dict[str, SettingValue]:
    """Return the settings that connect to the cluster in `folder`, a folder of `orb up`. The key is a setting's name.

    The settings name the database and NATS. The setting `etcd` is empty, so etcd is not used.

    `database`: the user's setting from flags, variables or a file, None if it is not set.

    - If the cluster uses SQLite: `database` is ignored.
    - If the cluster uses PostgreSQL: `database` is required, because the folder does not store the password. Raise
      Usage if `database` is None or names another database.

    Raise Usage if the folder has no cluster. Raise Environment if the login of NATS cannot be read.
    """
    from shared.adapters.nats.server import master_login

    remembered = folder.remembered()
    if remembered is None:
        raise Usage(f"{folder.path} is not the folder of a cluster.")
    on_server = is_postgresql(remembered.database)
    given = database if on_server else None
    here = {
        "database": database_of(folder, None if given is None else given.text),
        "etcd": "",
        "nats_url": f"nats://127.0.0.1:{remembered.nats}",
    }
    try:
        login = master_login(folder.nats / "nats.conf")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise Environment(
            f"cannot read {folder.nats / 'nats.conf'}: {error}; start the cluster with `orb up`."
        ) from error
    here |= {"nats_user": login.user or "", "nats_password": login.password or ""}
    values = {name: SettingValue(text, SettingOrigin.FLAG, "--dir") for name, text in here.items()}
    return values if given is None else {**values, "database": given}


@asynccontextmanager
async def executing(database: str) -> AsyncIterator["Executor"]:
    """Open the database at this path or URL until the `with` block ends. Raise Usage if a SQLite file does not exist.

    No migrations are applied.
    """
    from shared.adapters.sql.engine.snapshot import no_database

    executor: Executor
    if is_postgresql(database):
        from shared.adapters.sql.engine.postgres import PostgresPool

        executor = PostgresPool(database)
    else:
        from shared.adapters.sql.engine.sqlite import SqliteThreads

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
    """Connect to the cluster's NATS, and close the connection when the `with` block ends.

    Raise Transient if NATS does not answer, Unusable if it rejects the connection.
    """
    from shared.adapters.nats.broker import NatsBroker

    broker = await NatsBroker.of_master(settings, f"orb-{settings.id}")
    try:
        yield broker
    finally:
        await broker.close()


async def registered(settings: ClusterMasterSettings) -> tuple[list[str], list[str]]:
    """Return the ids of the masters, and the ids of the workers, that are registered in etcd.

    Both lists are empty if no etcd is configured.
    """
    from shared.wire.keys import Keys

    if not settings.etcd:
        return [], []
    keys, entries = Keys(settings.cluster), await keys_of(settings)
    masters = sorted(name for key in entries if (name := keys.master_of(key)))
    return masters, sorted(name for key in entries if (name := keys.worker_of(key)))


async def keys_of(settings: ClusterMasterSettings) -> Mapping[str, bytes]:
    """Return all keys of the cluster in etcd, with their values."""
    from shared.adapters.etcd import EtcdCoordinator
    from shared.adapters.etcd.settings import etcd_of
    from shared.adapters.local.clock import SystemClock
    from shared.wire.keys import Keys

    coordinator = EtcdCoordinator(etcd_of(settings), SystemClock())
    try:
        view = await coordinator.list(Keys(settings.cluster).root)
        return {key: entry.value for key, entry in view.entries.items()}
    finally:
        await coordinator.close()
