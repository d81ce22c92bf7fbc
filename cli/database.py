"""`orb db`: a cluster's database looked at, or moved to another engine."""

import argparse
import asyncio
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Final

from cli.engines import add_database_flag, told_database
from cli.exits import Environment, Exit
from cli.issuing import said_of
from cli.pace import count
from cli.watch import say
from shared.domain.soundness import MEANINGS, Findings

if TYPE_CHECKING:
    from shared.adapters.sql.filling import Filling
    from shared.adapters.sql.snapshot import Snapshot

_CHECK: Final = """\
Read-only, of one moment, and beside a running cluster; memory does not grow with the database. Exit codes: 0 all is as
it must be, 1 it is not, 2 wrong command, 4 the database cannot be read."""
_COPY: Final = """\
Stop all masters first, and start them with the new database afterwards, on the same NATS and etcd: nothing else
changes. What is written to the old one meanwhile is noticed, and nothing is left in the new one then."""


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    check = actions.add_parser("check", help="look for what must not be", allow_abbrev=False, epilog=_CHECK)
    add_database_flag(check)
    check.add_argument("--json", action="store_true", help="the findings as one JSON object")
    copy = actions.add_parser("copy", help="every row into a new database", allow_abbrev=False, epilog=_COPY)
    copy.add_argument("--from", dest="source", metavar="URL", required=True, help="a path, sqlite: or postgresql: URL")
    copy.add_argument("--to", dest="target", metavar="URL", required=True, help="the same, of one that is new")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "copy":
        rows = asyncio.run(copied(arguments.source, arguments.target))
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


async def copied(source: str, target: str) -> int:
    """Every row of a cluster's database into a new one; how many. Environment when somebody wrote to it meanwhile."""
    from shared.adapters.sql import rows
    from shared.adapters.sql.filling import filling
    from shared.adapters.sql.snapshot import snapshot

    total = 0
    of_source, of_target = partial(said_of, source, "--from"), partial(said_of, target, "--to")
    with of_target():
        async with filling(target) as fresh:
            with of_source():
                async with snapshot(source) as taken:
                    before = await taken.read(rows.version)
                    for table in rows.TABLES:
                        total += await _table(taken, fresh, table, of_target)
                    numbers = await taken.read(rows.numbers)
            await fresh.write(lambda c: rows.give_beyond(c, numbers))
            with of_source():
                async with snapshot(source) as later:
                    if await later.read(rows.version) != before:
                        raise Environment("somebody writes to the database that is copied: stop all masters first.")
    return total


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
