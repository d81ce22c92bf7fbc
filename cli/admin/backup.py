"""`orb backup`: make a consistent copy of a running cluster.

The order of the steps ensures that nothing is lost:

1. A *hold* stops owners from purging reports.
2. A *snapshot* of the tables is taken.
3. The *reports* that are not applied in the snapshot are copied, up to the newest report. Then the hold ends.
4. The items and events are copied, and the tables are written from the snapshot.

So every report acknowledged before the snapshot is either applied in the tables or copied. Reports that arrive between
snapshot and copy are copied as well. A restored cluster applies them like all other reports.
"""

import argparse
import asyncio
import os
import uuid
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

from cli.admin.backup_folder import EVENTS, ITEMS, KEYS, REPORTS, Manifest, NewBackup, Part, new_backup
from cli.admin.engines import add_engine_flags, broker_of, engine_settings, executing, keys_of
from cli.admin.purge_hold import held
from cli.admin.stream_copy import read_events, read_items, read_stretch, unread
from cli.local.cluster_folder import ClusterFolder
from cli.local.folder_lock import owner_of
from cli.terminal.display_rates import amount, count
from cli.terminal.exits import Environment, Exit
from cli.terminal.progress import say
from shared.settings import ClusterMasterSettings, is_postgresql
from shared.telemetry import configure_logging

_EPILOG: Final = """\
The cluster goes on. While reports are copied, for some seconds, its masters keep applied reports in NATS. Every master
must run this release. Copy the archive after this command has ended: it only grows, and the backup refers to it. Exit
codes: 2 wrong command, 4 an engine does not answer, or the backup could not be completed."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder for the backup, which must not exist")
    add_engine_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    configure_logging("warning", "text")
    settings = engine_settings(arguments, os.environ, "database", "nats_url")
    if arguments.up is not None and owner_of(ClusterFolder(arguments.up).lock_file) is None:
        raise Environment(
            f"the cluster of {arguments.up} is not running, but a backup needs a running one: start it with "
            f"`orb up --dir {arguments.up}`, and run the same command again."
        )
    manifest = asyncio.run(take(settings, arguments.folder.absolute()))
    rows = sum(part.values for part in manifest.tables.values())
    size = sum(part.bytes for part in manifest.parts())
    say(
        f"backup {manifest.id} is in {arguments.folder}: {count(rows)} rows, {count(manifest.reports.values)} reports, "
        f"{count(manifest.events.values)} events, {amount(size)}"
    )
    return Exit.OK


async def take(settings: ClusterMasterSettings, folder: Path) -> Manifest:
    """Write a backup of the running cluster into `folder`, which is created if necessary. Return the backup's manifest.

    Raise Usage if the folder is not empty, Environment if it cannot be written. Raise Transient if an engine does not
    answer, or if the hold on the reports lapsed.
    """
    from shared.adapters.local.clock import SystemClock
    from shared.adapters.sql.admin import dump as rows
    from shared.adapters.sql.catalog import items
    from shared.adapters.sql.engine.migrate import HEAD
    from shared.adapters.sql.engine.snapshot import snapshot
    from shared.adapters.sql.frontier import commands
    from shared.adapters.sql.frontier import leader_state as control

    clock = SystemClock()
    async with AsyncExitStack() as stack:
        new = stack.enter_context(new_backup(folder))
        broker = await stack.enter_async_context(broker_of(settings))
        executor = await stack.enter_async_context(executing(settings.database))
        async with held(executor, clock) as hold:
            taken = await stack.enter_async_context(snapshot(settings.database))
            taken_at_ms = clock.unix_ms()
            positions = await taken.read(control.positions)
            # Reports that arrived after the snapshot may name leases or hosts that it lacks. A restored cluster never
            # reuses their ids (`shared.adapters.sql.admin.load.begin_anew`), and other effects are idempotent.
            with new.part(REPORTS) as part:
                for stretch in await unread(broker, positions):
                    runs = await taken.read(partial(commands.in_progress, partition=stretch.partition))
                    async for kind, batch in read_stretch(broker, stretch, runs):
                        part.add((stretch.partition, kind, batch), len(batch))
                hold.check()
                reports = part.end()
        position = await taken.read(items.position)
        with new.part(ITEMS) as part:
            async for messages in read_items(broker, position):
                part.add(messages, len(messages))
            items_part = part.end()
        with new.part(EVENTS) as part:
            async for events in read_events(broker):
                part.add(events, len(events))
            events_part = part.end()
        tables: dict[str, Part] = {}
        for table in rows.TABLES:
            with new.part(f"tables/{table}.gz", rows.columns_of(table)) as part:
                async for page in rows.pages(taken, table):
                    part.add(page, len(page))
                tables[table] = part.end()
        manifest = Manifest(
            id=uuid.uuid4().hex,
            cluster=settings.cluster,
            taken_at_ms=taken_at_ms,
            schema=HEAD,
            store="postgresql" if is_postgresql(settings.database) else "sqlite",
            epoch=await taken.read(control.epoch),
            partitions=len(positions),
            tables=tables,
            numbers=await taken.read(rows.numbers),
            reports=reports,
            events=events_part,
            items=items_part,
            keys=await _keys(settings, new),
        )
        new.finish(manifest)
    return manifest


async def _keys(settings: ClusterMasterSettings, new: NewBackup) -> Part | None:
    """Copy the contents of etcd to a file of the backup, for information only.

    Return the manifest's entry for the file, or None if no etcd is configured.
    """
    if not settings.etcd:
        return None
    with new.part(KEYS) as part:
        for key, value in (await keys_of(settings)).items():
            part.add((key, value))
        return part.end()
