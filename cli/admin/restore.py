"""`orb restore`: make a new cluster from a backup. The new cluster continues the crawls of the backup.

Reports are stored in NATS first. Only then can other processes see the new database. So no master can start after an
interrupted restore, and the restore can be repeated. If the interrupted restore has left reports in NATS, the
repetition needs `--again`.
"""

import argparse
import asyncio
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cli.admin.backup_folder import Backup, Part
from cli.admin.engines import add_engine_flags, broker_of, engine_settings, registered
from cli.admin.stream_copy import patiently, publish_events, publish_items, publish_reports
from cli.local.cluster_folder import ClusterFolder, Remembered, database_of, shown
from cli.terminal.display_rates import count
from cli.terminal.exits import Environment, Exit, Usage
from cli.terminal.progress import say
from shared.settings import ClusterMasterSettings, listed
from shared.telemetry import configure_logging

if TYPE_CHECKING:
    from shared.adapters.sql.admin.load import DatabaseLoad

_EPILOG: Final = """\
The database must be new (a file that does not exist, an empty PostgreSQL database) and NATS empty. Start masters and
workers afterwards. With --etcd the command fails while masters are registered there. It writes nothing to etcd: the
first leader restores that from the database. Exit codes: 2 wrong command, 4 an engine does not answer, or has data."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("folder", type=Path, metavar="DIR", help="the backup")
    add_engine_flags(parser, folder="a new folder of `orb up` instead; then run `orb up --dir DIR`")
    parser.add_argument(
        "--again", action="store_true", help="continue after an interrupted restore, which left data in NATS"
    )
    parser.add_argument("--check", action="store_true", help="only verify the checksums of the backup")


def run(arguments: argparse.Namespace) -> int:
    configure_logging("warning", "text")
    backup = Backup(arguments.folder)
    if arguments.check:
        backup.verify()
        say(f"the backup {backup.manifest.id} is complete")
        return Exit.OK
    if arguments.up is not None:
        into_folder(backup, ClusterFolder(arguments.up), arguments.database)
    else:
        settings = engine_settings(arguments, os.environ, "database", "nats_url")
        asyncio.run(restore(backup, settings, again=arguments.again))
    rows = sum(part.values for part in backup.manifest.tables.values())
    say(
        f"restored {count(rows)} rows, {count(backup.manifest.reports.values)} reports and "
        f"{count(backup.manifest.events.values)} events; start masters and workers now"
    )
    return Exit.OK


async def restore(backup: Backup, settings: ClusterMasterSettings, *, again: bool = False) -> None:
    """Load the backup into the database and NATS that `settings` name.

    Raise Environment if NATS has reports, if members are registered, or if the backup is damaged. Raise Unusable if the
    database has a cluster already. `again`: True to accept reports in NATS, which an interrupted restore of this backup
    left there.
    """
    from shared.adapters.sql.admin.load import begin_anew, filling, place_commands

    manifest = backup.manifest
    backup.verify()
    await _refuse_members(settings)
    async with broker_of(settings) as broker, filling(settings.database, manifest.schema) as fresh:
        await patiently(partial(broker.declare, listed(settings.pools)))
        await patiently(broker.events.declare)
        stored = await patiently(broker.pending_reports)
        if stored and not again:
            raise Environment(
                f"NATS holds {stored} reports of another cluster, or of an interrupted restore (then set --again)."
            )
        await _tables(backup, fresh)
        await fresh.write(begin_anew)
        name = f"restore-{manifest.id}"
        reports, items = manifest.reports, manifest.items
        stored, places = await publish_reports(broker, name, backup.frames(reports))
        _stored_all(reports, stored)
        if not again:  # An interrupted restore may have stored the same discoveries at smaller sequences.
            await fresh.write(partial(place_commands, places=places))
        _stored_all(items, await publish_items(broker, name, backup.frames(items)))
        await publish_events(broker.events, name, backup.frames(manifest.events))


def into_folder(backup: Backup, folder: ClusterFolder, database: str | None) -> None:
    """Restore the backup into `folder`, a new folder of `orb up`. NATS runs there during the restore.

    `database` is a PostgreSQL URL, or None for a SQLite file in the folder. Raise Usage if the folder has a cluster
    already.

    If the restore fails, the files that it wrote are removed, and also the folder if it is new. For a
    PostgreSQL database:

    - If the restore fails before the rows are committed: the database stays as it was before.
    - If the restore fails later: the database keeps the rows.
    """
    # The commit comes after the reports, items and events are stored in NATS. The migration to the newest schema, and
    # the writing of cluster.json, come after the commit.
    from shared.adapters.nats import EmbeddedServer

    if folder.remembered() is not None:
        raise Usage(f"{folder.path} belongs to another cluster: name a new folder.")
    url = database_of(folder, database)
    folder.make()
    with folder.held() as lock:

        async def fill() -> None:
            server = EmbeddedServer(folder.nats, inherit=(lock,))
            endpoint = await server.start()
            try:
                login = endpoint.master
                here = ClusterMasterSettings(
                    id="operator",
                    etcd="",
                    nats_url=endpoint.url,
                    nats_user=login.user,
                    nats_password=login.password,
                    database=url,
                )
                await restore(backup, here)
            finally:
                await server.stop()

        with folder.begun():
            asyncio.run(fill())
            folder.remember(Remembered(database=shown(folder, url)))


async def _refuse_members(settings: ClusterMasterSettings) -> None:
    masters, workers = await registered(settings)
    if living := sorted(masters + workers):
        raise Environment(f"members of the cluster {settings.cluster} are running: {', '.join(living)}.")


async def _tables(backup: Backup, fresh: "DatabaseLoad") -> None:
    """Write the rows of every table into the new database. Raise Environment if not all rows of a table were written.

    Set the new database to generate only ids that are greater than all ids of the source, including deleted rows.
    """
    from shared.adapters.sql.admin import dump as rows
    from shared.adapters.sql.admin.load import SKIPPED_CRAWLS

    for table, part in backup.manifest.tables.items():
        for page in backup.frames(part):
            await fresh.write(partial(rows.put, table=table, columns=part.columns, rows=page))
        _stored_all(part, await fresh.write(partial(rows.count, table=table)))
    numbers = backup.manifest.numbers
    await fresh.write(lambda c: rows.give_beyond(c, {**numbers, "crawls": numbers["crawls"] + SKIPPED_CRAWLS}))


def _stored_all(part: Part, stored: int) -> None:
    if stored != part.values:
        raise Environment(f"{part.file} has {part.values} entries, but {stored} were stored.")
