"""`orb db`: a cluster's database looked at, or moved to another engine."""

import argparse
import asyncio
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Final

from cli.cluster_folder import without_password
from cli.engines import add_database_flag, add_etcd_flags, registered, told, told_database
from cli.exits import Environment, Exit
from cli.issuing import said_of, sqlite_path
from cli.pace import count
from cli.watch import say
from shared.domain.soundness import MEANINGS, Findings
from shared.telemetry import configure_logging

if TYPE_CHECKING:
    from shared.adapters.sql.filling import Filling
    from shared.adapters.sql.snapshot import Snapshot
    from shared.settings import ClusterMasterSettings

_CHECK: Final = """\
Read-only, of one moment, and beside a running cluster; memory does not grow with the database. Exit codes: 0 all is as
it must be, 1 it is not, 2 wrong command, 4 the database cannot be read."""
_COPY: Final = """\
Stop all masters first, and start them with the new database afterwards, on the same NATS and etcd: nothing else
changes. The command ends with exit code 4 if a master has the old database open, is registered in etcd (with --etcd),
or wrote to the old database between the first row and the last. The new database has no rows then."""
_STOP: Final = "stop all masters, then run the same command again"


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    check = actions.add_parser("check", help="look for what must not be", allow_abbrev=False, epilog=_CHECK)
    add_database_flag(check)
    check.add_argument("--json", action="store_true", help="the findings as one JSON object")
    copy = actions.add_parser("copy", help="every row into a new database", allow_abbrev=False, epilog=_COPY)
    copy.add_argument("--from", dest="source", metavar="URL", required=True, help="a path, sqlite: or postgresql: URL")
    copy.add_argument("--to", dest="target", metavar="URL", required=True, help="the same, of one that is new")
    add_etcd_flags(copy)


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "copy":
        configure_logging("warning", "text")
        rows = asyncio.run(copied(arguments.source, arguments.target, told(arguments, os.environ)))
        say(f"copied {count(rows)} rows; start the masters with the new database now")
        return Exit.OK
    database, by = told_database(arguments, os.environ)
    with said_of(database, by):
        found = asyncio.run(examined(database))
    print(json.dumps(_object(found)) if arguments.json else _text(found))
    return Exit.OK if found.sound else Exit.FAILED


# --- check ------------------------------------------------------------------------------------------------------------


async def examined(database: str) -> Findings:
    """What is wrong with a cluster's database."""
    from shared.adapters.local.suffixes import use_list, use_snapshot
    from shared.adapters.sql import crawls
    from shared.adapters.sql.snapshot import snapshot, sqlite_file
    from shared.adapters.sql.soundness import examine
    from shared.domain.url import partition_of

    async with snapshot(database) as taken:
        kept = await taken.read(crawls.public_suffixes)
        if "\n" in kept:
            use_list(kept)
        else:  # the name of one: the folder of `orb crawl` has the list itself, beside its database
            use_snapshot(sqlite_file(database).parent)
        return await examine(taken, partition_of)


def _text(found: Findings) -> str:
    lines = [f"looked at {', '.join(f'{count(n)} {table}' for table, n in sorted(found.looked_at.items()))}"]
    for damage, meaning in MEANINGS.items():
        wrong = found.counts[damage]
        lines.append(f"{'ok' if not wrong else f'{count(wrong)} wrong':<12}{damage:<15}{meaning}")
        shown = [finding for finding in found.shown if finding.damage is damage]
        lines += [f"            {finding.where}: {finding.text}" for finding in shown]
        if wrong > len(shown):
            lines.append(f"            and {count(wrong - len(shown))} more")
    return "\n".join(lines)


def _object(found: Findings) -> dict[str, object]:
    return {
        "sound": found.sound,
        "looked_at": dict(found.looked_at),
        "counts": {damage: found.counts[damage] for damage in MEANINGS},
        "findings": [
            {"damage": finding.damage, "where": finding.where, "text": finding.text} for finding in found.shown
        ],
    }


# --- copy -------------------------------------------------------------------------------------------------------------


async def copied(source: str, target: str, cluster: "ClusterMasterSettings | None" = None) -> int:
    """Copy every row of a cluster's database into a new one, and return their number.

    Environment while a master has the source open or is registered in the etcd of `cluster`, and when the fence of a
    partition moved while rows were read. Both are looked at once more when nothing is left but to publish the target.
    """
    from shared.adapters.sql import rows
    from shared.adapters.sql.filling import filling
    from shared.adapters.sql.snapshot import snapshot

    total = 0
    of_source, of_target = partial(said_of, source, "--from"), partial(said_of, target, "--to")
    with of_source():
        await _refuse_masters(source, cluster)
    with of_target():
        async with filling(target) as fresh:
            with of_source():
                async with snapshot(source) as taken:
                    before = await taken.read(rows.version)
                    for table in rows.TABLES:
                        total += await _table(taken, fresh, table, of_target)
                    numbers = await taken.read(rows.numbers)
            await fresh.write(lambda c: rows.give_beyond(c, numbers))
            await fresh.settle()
            with of_source():
                await _refuse_masters(source, cluster)
                async with snapshot(source) as later:
                    if await later.read(rows.version) != before:
                        raise Environment(
                            f"a master wrote to {_shown(source)} while it was copied: {_STOP}; the new database has no "
                            "rows."
                        )
    return total


async def _refuse_masters(source: str, cluster: "ClusterMasterSettings | None") -> None:
    """Environment while a master may work on the database. This process must not have it open."""
    from shared.adapters.sql.in_use import user_of

    if user := await user_of(source):
        raise Environment(f"{_shown(source)} is in use, {user}: {_STOP}; nothing was copied.")
    if cluster is None:
        return
    masters, _ = await registered(cluster)
    if masters:
        raise Environment(
            f"masters of the cluster {cluster.cluster} are registered in etcd: {', '.join(masters)}. "
            f"{_STOP.capitalize()} (a killed one stays registered for {cluster.member_ttl_s:g} s); nothing was copied."
        )


def _shown(database: str) -> str:
    """Return the database in words, without a password."""
    from shared.adapters.sql.snapshot import is_postgresql

    return f"the database {without_password(database) if is_postgresql(database) else sqlite_path(database).absolute()}"


async def _table(
    taken: "Snapshot", fresh: "Filling", table: str, of_target: Callable[[], AbstractContextManager[None]]
) -> int:
    """The rows of a table, copied; how many."""
    from shared.adapters.sql import rows

    columns, read = rows.columns_of(table), 0
    async for page in rows.pages(taken, table):
        with of_target():
            await fresh.write(partial(rows.put, table=table, columns=columns, rows=page))
        read += len(page)
    with of_target():
        written = await fresh.write(partial(rows.count, table=table))
    if written != read:
        raise Environment(f"{read} rows of {table} were read, and {written} written.")
    return read
