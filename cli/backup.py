"""`orb backup`: a consistent copy of a cluster that goes on working.

The order that loses nothing: a *hold* on the reports, so that owners purge none; then the *snapshot* of the tables;
then the *reports* behind the positions in the snapshot, up to the newest there was; then the hold is let go, and the
tables are written from the snapshot at leisure. So every report that was acknowledged before the snapshot is in its
effects or in the copy, and an outcome in either has its discoveries in either, too, since these were acknowledged
before it. What came between snapshot and copy is in the copy, harmless: a lease or a number that the snapshot does not
know is never given again (`shared.adapters.sql.filling.begin_anew`), and all else is idempotent.
Items are copied after the reports, so an outcome in either has its items in the table or in the copy, too.
"""

import argparse
import asyncio
import os
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from cli.backup_folder import EVENTS, ITEMS, KEYS, REPORTS, Manifest, NewBackup, Part, new_backup
from cli.cluster_folder import ClusterFolder
from cli.engines import add_engine_flags, broker_of, executing, keys_of, told
from cli.exits import Environment, Exit
from cli.hold import held
from cli.holding import owner_of
from cli.pace import amount, count
from cli.reports import read_events, read_items, read_stretch, unread
from cli.watch import say
from shared.settings import ClusterMasterSettings
from shared.telemetry import configure_logging

_EPILOG: Final = """\
The cluster goes on; for the seconds in which reports are copied its masters keep in NATS what they have applied. Every
master must run this release. Copy the archive after this has ended: it only grows, and what the copy names is in it.
Exit codes: 2 wrong command, 4 an engine is away, or the copy could not be made whole."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the backup goes: a folder that is not there")
    add_engine_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    configure_logging("warning", "text")
    settings = told(arguments, os.environ, "database", "nats_url")
    if arguments.up is not None and owner_of(ClusterFolder(arguments.up).lock_file) is None:
        raise Environment(
            f"the cluster of {arguments.up} does not run, and a backup is one of a cluster that runs: start it with "
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
    """Make the backup; what it is made of."""
    from shared.adapters.local.clock import SystemClock
    from shared.adapters.sql import control, items, rows
    from shared.adapters.sql.migrate import HEAD
    from shared.adapters.sql.snapshot import is_postgresql, snapshot

    clock = SystemClock()
    async with AsyncExitStack() as stack:
        new = stack.enter_context(new_backup(folder))
        broker = await stack.enter_async_context(broker_of(settings))
        executor = await stack.enter_async_context(executing(settings.database))
        async with held(executor, clock) as hold:
            taken = await stack.enter_async_context(snapshot(settings.database))
            taken_at_ms = clock.unix_ms()
            positions = await taken.read(control.positions)
            with new.part(REPORTS) as part:
                for stretch in await unread(broker, positions):
                    async for batch in read_stretch(broker, stretch):
                        part.add((stretch.partition, stretch.kind, batch), len(batch))
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
    """What stands in etcd, where that is told: all of it is made from the tables again."""
    if not settings.etcd:
        return None
    with new.part(KEYS) as part:
        for key, value in (await keys_of(settings)).items():
            part.add((key, value))
        return part.end()
