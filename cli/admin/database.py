"""`orb db`: check a cluster's database, or copy it to a new SQLite or PostgreSQL database."""

import argparse
import asyncio
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Final

from cli.admin.engines import add_database_flag, add_etcd_flags, database_setting, engine_settings, registered
from cli.admin.key_issue import database_errors
from cli.terminal.display_rates import count
from cli.terminal.exits import Environment, Exit
from cli.terminal.progress import say
from shared.domain.ops.integrity import MEANINGS, Findings
from shared.settings import is_postgresql, sqlite_file, without_password
from shared.telemetry import configure_logging

if TYPE_CHECKING:
    from shared.adapters.sql.admin.load import DatabaseLoad
    from shared.adapters.sql.engine.snapshot import DatabaseSnapshot
    from shared.settings import ClusterMasterSettings

_CHECK: Final = """\
Read-only, a view of one moment, beside a running cluster. Memory does not grow with the database. Exit codes: 0 the
database is consistent, 1 it is not, 2 wrong command, 4 the database cannot be read."""
_COPY: Final = """\
Stop all masters first, and start them with the new database afterwards, on the same NATS and etcd: nothing else
changes. The command ends with exit code 4 if a master has the old database open, is registered in etcd (with --etcd),
or wrote to the old database between the first row and the last. Then no new database remains."""
_STOP: Final = "stop all masters, then run the same command again"


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    check = actions.add_parser(
        "check", help="check the database for inconsistencies", allow_abbrev=False, epilog=_CHECK
    )
    add_database_flag(check)
    check.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    copy = actions.add_parser("copy", help="copy every row to a new database", allow_abbrev=False, epilog=_COPY)
    copy.add_argument("--from", dest="source", metavar="URL", required=True, help="a path, sqlite: or postgresql: URL")
    copy.add_argument(
        "--to", dest="target", metavar="URL", required=True, help="a path, sqlite: or postgresql: URL of a new database"
    )
    add_etcd_flags(copy)


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "copy":
        configure_logging("warning", "text")
        rows = asyncio.run(copied(arguments.source, arguments.target, engine_settings(arguments, os.environ)))
        say(f"copied {count(rows)} rows; start the masters with the new database now")
        return Exit.OK
    database, by = database_setting(arguments, os.environ)
    with database_errors(database, by):
        findings = asyncio.run(examined(database))
    print(json.dumps(_object(findings)) if arguments.json else _text(findings))
    return Exit.OK if findings.sound else Exit.FAILED


# --- check ------------------------------------------------------------------------------------------------------------


async def examined(database: str) -> Findings:
    """Check a cluster's database for inconsistencies and return the findings. `database` is its path or URL.

    Raise the database's Unusable or Transient error if it cannot be read.
    """
    from shared.adapters.local.suffixes import use_list, use_snapshot
    from shared.adapters.sql.admin.integrity_check import examine
    from shared.adapters.sql.engine.snapshot import snapshot
    from shared.adapters.sql.frontier import crawl_rows as crawls
    from shared.domain.web.url import partition_of

    async with snapshot(database) as taken:
        kept = await taken.read(crawls.public_suffixes)
        if "\n" in kept:
            use_list(kept)
        else:  # a name: the folder of `orb crawl` has the list itself, beside the database
            use_snapshot(sqlite_file(database).parent)
        return await examine(taken, partition_of)


def _text(findings: Findings) -> str:
    lines = [f"checked {', '.join(f'{count(n)} {table}' for table, n in sorted(findings.looked_at.items()))}"]
    for damage, meaning in MEANINGS.items():
        wrong = findings.counts[damage]
        lines.append(f"{'ok' if not wrong else f'{count(wrong)} wrong':<12}{damage:<15}{meaning}")
        shown = [finding for finding in findings.shown if finding.damage is damage]
        lines += [f"            {finding.where}: {finding.text}" for finding in shown]
        if wrong > len(shown):
            lines.append(f"            and {count(wrong - len(shown))} more")
    return "\n".join(lines)


def _object(findings: Findings) -> dict[str, object]:
    return {
        "sound": findings.sound,
        "looked_at": dict(findings.looked_at),
        "counts": {damage: findings.counts[damage] for damage in MEANINGS},
        "findings": [
            {"damage": finding.damage, "where": finding.where, "text": finding.text} for finding in findings.shown
        ],
    }


# --- copy -------------------------------------------------------------------------------------------------------------


async def copied(source: str, target: str, cluster: "ClusterMasterSettings | None" = None) -> int:
    """Copy every row of a cluster's database into the new database `target`. Return the number of rows.

    The source must not be in use. Raise Environment in these cases, and then create no database:

    - A master has the source open.
    - A master is registered in the etcd of `cluster`. If `cluster` is None, etcd is not checked.
    - A master wrote to the source during the copy.
    """
    from shared.adapters.sql.admin import dump as rows
    from shared.adapters.sql.admin.load import filling
    from shared.adapters.sql.engine.snapshot import snapshot

    total = 0
    of_source, of_target = partial(database_errors, source, "--from"), partial(database_errors, target, "--to")
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
            await fresh.migrate_and_sync()
            with of_source():
                await _refuse_masters(source, cluster)
                async with snapshot(source) as later:
                    if await later.read(rows.version) != before:
                        raise Environment(
                            f"a master wrote to {_shown(source)} while it was copied: {_STOP}; nothing was copied."
                        )
    return total


async def _refuse_masters(source: str, cluster: "ClusterMasterSettings | None") -> None:
    """Raise Environment if a master has the database open, or is registered in the etcd of `cluster`.

    `cluster` None: do not check etcd. This process must not have the database open, because that would count as a
    master.
    """
    from shared.adapters.sql.admin.in_use import user_of

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
    """Return a phrase that names the database in messages, with its path or its URL without a password."""
    return f"the database {without_password(database) if is_postgresql(database) else sqlite_file(database).absolute()}"


async def _table(
    taken: "DatabaseSnapshot", fresh: "DatabaseLoad", table: str, of_target: Callable[[], AbstractContextManager[None]]
) -> int:
    """Copy all rows of a table and return their number. Raise Environment if not all of them were written.

    - `taken`: a snapshot of the source database.
    - `fresh`: the new database.
    - `of_target`: returns a context manager, which converts errors of the new database to messages for the user.
    """
    from shared.adapters.sql.admin import dump as rows

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
