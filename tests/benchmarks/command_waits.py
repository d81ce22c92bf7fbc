"""`orb bench command_waits`: how long outcomes of one crawl wait behind commands on millions of URLs of another.

    orb bench command_waits [--urls 2000000] [--leases 64] [--database sqlite | postgresql | postgresql://...]
        [--dir DIR] [--json]

The owners of all partitions run their own code: ingest, dispatch, grants and the command runners, which share one turn.
A small outcome of a crawl beside falls due every 10 ms, on each partition in turn. It waits from then until its
transaction has committed. First no command runs. Then `retry_failed` queues all URLs of the large crawl again, the
deletion of all seeds takes them out, with `--leases` shards a partition that no worker began, and DELETE removes them
all, with as many. The extra wait is a percentile behind a command less the same without one.
"""

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import structlog
from sqlalchemy import text

from api.frontier.capacity import BudgetReservation, PoolCapacity
from api.frontier.command_runner import CommandRunner
from api.frontier.dispatch import Dispatch
from api.frontier.dispatch_crawls import DispatchCrawl, DispatchCrawls
from api.frontier.grants import GrantService
from api.frontier.ingest import Ingest
from api.frontier.ownership import FrontierSettings, Ownership
from api.frontier.stats import OwnerStats
from api.frontier.sweep import Sweep
from api.frontier.writer import PartitionWriter
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.states import CrawlState, UrlEnd, UrlState
from shared.domain.frontier.store_model import Claimed
from shared.domain.ids import CrawlId, Partition, Revision, Term
from shared.domain.web.url import fingerprint
from shared.ports.broker import Broker, Delivered
from shared.wire.messages import Begin, Command, Outcome, UrlOutcome, UrlShard, WorkerStatus, encode
from shared.wire.subjects import command
from tests.benchmarks.frontier_scale import database_of, opened
from tests.support.api.standby_master import SPEC, SinkBroker, Turned
from tests.support.database.owner_cost import Step
from tests.support.database.scaled_frontier import PARTITIONS, URLS_A_HOST, GrowingFrontier

WANTED_MS: Final = 500.0
_EVERY_S: Final = 0.01
_ALONE_S: Final = 20.0
_REST_S: Final = 2.0
"""After which no host rests."""

_HOSTS_BESIDE: Final = 600
"""Of the crawl beside, in each partition, each with some ten pages: for as long as the longest command takes."""

_LARGE, _BESIDE = "large", "beside"
_COMMANDS: Final[Sequence[tuple[CommandKind, dict[str, Any], UrlState]]] = (
    (CommandKind.RETRY_FAILED, {}, UrlState.FAILED),
    (CommandKind.DELETE_SEEDS, {"all": True, "places": []}, UrlState.QUEUED),
    (CommandKind.DELETE, {}, UrlState.QUEUED),
)
"""Each with its arguments and the state that every URL of the large crawl has before it."""

_CHUNK: Final = 1_000
"""Hosts that one statement prepares, so that it stays below the limit of a statement's time."""

_HOSTS = " WHERE crawl_id = :crawl_id AND host_id >= :first AND host_id < :last"
_SET_STATE = "UPDATE urls SET state = :state, reason = :reason, via_host = NULL, via = NULL" + _HOSTS
_SET_QUEUES = (
    "UPDATE queues SET queued = CASE WHEN :state > 0 THEN 0 ELSE (SELECT count(*) FROM urls u"
    " WHERE u.crawl_id = queues.crawl_id AND u.host_id = queues.host_id) END, waiting = 0" + _HOSTS
)


@dataclass(slots=True)
class Waits:
    """Milliseconds for which outcomes waited, and the seconds in which they fell due."""

    each_ms: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def percentile(self, part: float) -> float:
        return Step(each_ms=self.each_ms).percentile(part)


class _Partition:
    """An owner of a partition, less its loops: they are called in the bench's own order."""

    def __init__(
        self, store: SqlStore, claimed: Claimed, crawls: DispatchCrawls, clock: Turned, turn: asyncio.Lock
    ) -> None:
        self.sink = SinkBroker()
        self.own = Ownership(
            claimed, crawls=crawls, capacity=PoolCapacity(), settings=FrontierSettings(partitions=PARTITIONS),
            now=clock.elapsed(),
        )  # fmt: skip
        self.own.capacity.watch(self.own.leases)
        self._clock, broker = clock, cast(Broker, self.sink)
        writer = PartitionWriter(self.own, claimed.fence, store=store, clock=clock, stats=OwnerStats())
        self.runner = CommandRunner(writer, broker, turn)
        self._dispatch, self._granting = Dispatch(writer, broker), GrantService(writer, broker)
        self._ingest = Ingest(writer, broker)
        self._sweep = Sweep(writer, broker, self._ingest, self._dispatch)
        self._pages: Iterator[Outcome] = iter(())
        self._due: deque[tuple[float, Outcome | Command]] = deque()
        self._more, self._idle = asyncio.Event(), asyncio.Event()

    async def load(self, crawl_id: CrawlId) -> None:
        """Read the queues of the crawl."""
        self.own.hosts.mark_incomplete(crawl_id)
        await self._sweep.once()

    async def lease(self, crawl_id: CrawlId, shards: int) -> Sequence[UrlShard]:
        """Send out so many shards of the crawl."""
        own = self.own
        self.sink.shards.clear()
        own.capacity.shards_per_visit = 1
        own.capacity.worker_reported(WorkerStatus("w1", "default", shards, 0), self._clock.elapsed())
        while await self._dispatch.once():
            pass
        own.capacity.worker_reported(WorkerStatus("w1", "default", 0, 0), self._clock.elapsed())
        return [shard for shard in self.sink.shards if shard.crawl == crawl_id]

    async def begin(self, shards: Sequence[UrlShard]) -> None:
        """Grant the shards; their pages are what this partition will have to report."""
        for shard in shards:
            await self._granting.answer(encode(Begin(shard.lease, 1, "w1")))
        self._pages = (_page(shard, at, self._clock.unix_ms()) for shard in shards for at in range(len(shard.urls)))

    def report(self, due: float, command: Command | None = None) -> bool:
        """Let the next page, or a command, fall due. Return False if no page is left."""
        message = command or next(self._pages, None)
        if message is None:
            return False
        self._due.append((due, message))
        self._idle.clear()
        self._more.set()
        return True

    async def applied(self) -> None:
        """Wait until all that fell due is applied."""
        await self._idle.wait()

    async def apply(self, waits: Waits) -> None:
        """Apply what falls due, as an owner's reader does, until cancelled."""
        own = self.own
        while True:
            await self._more.wait()
            self._more.clear()
            await asyncio.sleep(own.settings.linger_s)
            some = [self._due.popleft() for _ in range(min(len(self._due), own.settings.batch))]
            if self._due:
                self._more.set()
            reports: list[Delivered] = []
            for _, message in some:
                sequence = own.position.outcome_seq + len(reports) + 1
                of = command(own.partition) if isinstance(message, Command) else ""
                reports.append(Delivered(sequence, self._clock.unix_ms() * 1_000_000, encode(message), of))
            await self._ingest.outcomes(reports)
            now = time.perf_counter()
            waits.each_ms += [(now - due) * 1000 for due, message in some if isinstance(message, Outcome)]
            if not self._due:
                self._idle.set()


class Cluster:
    """The owners of all partitions of one master."""

    def __init__(self, store: SqlStore, large: CrawlId, beside: CrawlId) -> None:
        self.store, self.large, self.beside = store, large, beside
        self._crawls, self._clock = DispatchCrawls(), Turned()
        self._partitions: list[_Partition] = []

    async def claim(self, term: Term) -> None:
        """Own everything, and begin on the crawl beside."""
        turn = asyncio.Lock()
        self._crawls.put(_crawl(self.beside, _BESIDE))
        for number in range(PARTITIONS):
            claimed = await self.store.claim(Partition(number), term)
            self._partitions.append(_Partition(self.store, claimed, self._crawls, self._clock, turn))
        for one, shards in zip(self._partitions, await self._lease(self.beside, _HOSTS_BESIDE), strict=True):
            await one.begin(shards)
        self._crawls.put(_crawl(self.large, _LARGE))

    async def lease(self, shards: int) -> int:
        """Send out shards of the large crawl, which no worker begins."""
        return sum(map(len, await self._lease(self.large, shards)))

    async def _lease(self, crawl_id: CrawlId, shards: int) -> list[Sequence[UrlShard]]:
        for one in self._partitions:
            await one.load(crawl_id)
        self._clock.turn(_REST_S)
        return [await one.lease(crawl_id, shards) for one in self._partitions]

    async def measure(self, command: Command | None) -> Waits:
        """Report pages until the command is applied everywhere; without one for a while."""
        waits = Waits()
        running = [
            asyncio.ensure_future(task) for one in self._partitions for task in (one.apply(waits), one.runner.run())
        ]
        begun = time.perf_counter()
        try:
            if command is not None:
                for one in self._partitions:
                    one.report(begun, command)
            number, due = 0, begun
            while due < begun + 2 or (self._in_progress() if command is not None else due < begun + _ALONE_S):
                if not any(self._partitions[(number + more) % PARTITIONS].report(due) for more in range(PARTITIONS)):
                    raise SystemExit("the crawl beside has no page left to report: the command takes too long")
                number, due = number + 1, due + _EVERY_S
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                for task in running:
                    if task.done():
                        task.result()
            waits.seconds = time.perf_counter() - begun
            for one in self._partitions:
                await one.applied()
        finally:
            for task in running:
                task.cancel()
            for task in running:
                with suppress(asyncio.CancelledError):
                    await task
        return waits

    def _in_progress(self) -> bool:
        return any(len(one.own.commands) for one in self._partitions)


def _crawl(crawl_id: CrawlId, name: str) -> DispatchCrawl:
    return DispatchCrawl(crawl_id, name, Revision(1), SPEC, CrawlState.RUNNING, BudgetReservation(None, None, {}))


def _page(shard: UrlShard, at: int, at_ms: int) -> Outcome:
    url = fingerprint(shard.urls[at].url)
    result = UrlOutcome(url, UrlEnd.ANSWERED, at_ms, 200, latency_ms=80, size=30_000, mime="text/html", links=60)
    return Outcome(shard.lease, shard.crawl, 1, shard.host_id, [result], final=at == len(shard.urls) - 1, quiet_ms=0)


async def _grow(store: SqlStore, crawl_id: CrawlId, urls: int) -> int:
    growing = GrowingFrontier(store, crawl_id, hosts=max(2, min(100, urls // 1_000)))
    await growing.claim(Term(await store.newest_term() + 1))
    which = 0
    while growing.rows < urls:
        await growing.batch(which)
        which += 1
        if which % 200 == 0:
            print(f"  {growing.rows:,} URLs", file=sys.stderr, flush=True)
    return growing.rows


async def _prepare(store: SqlStore, crawl_id: CrawlId, state: UrlState) -> None:
    """Give every URL of the crawl this state, as one that no page led to."""
    keys = {"crawl_id": crawl_id, "state": int(state), "reason": "dns" if state is UrlState.FAILED else None}
    hosts = await store.executor.read(
        lambda connection: connection.execute(text("SELECT max(host_id) FROM queues")).scalar_one()
    )
    for first in range(0, hosts + 1, _CHUNK):
        for statement in (_SET_STATE, _SET_QUEUES):
            chunk = keys | {"first": first, "last": first + _CHUNK}
            await store.executor.write(lambda c, sql=statement, these=chunk: c.execute(text(sql), these))  # type: ignore[misc]  # bound now


async def _run(database: str, urls: int, leases: int) -> list[dict[str, Any]]:
    store = await opened(database)
    await store.open_cluster(PARTITIONS, "", 1)
    large, _ = await store.put_crawl(_LARGE, "{}", 1)
    beside, _ = await store.put_crawl(_BESIDE, "{}", 1)
    await _grow(store, beside.crawl_id, PARTITIONS * _HOSTS_BESIDE * URLS_A_HOST)
    grown = await _grow(store, large.crawl_id, urls)
    cluster = Cluster(store, large.crawl_id, beside.crawl_id)
    await cluster.claim(Term(await store.newest_term() + 1))
    alone = await cluster.measure(None)
    rows = [_row("none", 0, 0, alone, alone)]
    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    for kind, args, before in _COMMANDS:
        await _prepare(store, large.crawl_id, before)
        out = await cluster.lease(leases) if before is UrlState.QUEUED else 0
        waits = await cluster.measure(Command(f"bench-{kind}", large.crawl_id, kind, args))
        rows.append(_row(kind, grown, out, waits, alone))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    await store.close()
    return rows


def _row(kind: str, urls: int, shards: int, waits: Waits, alone: Waits) -> dict[str, Any]:
    return {
        "command": kind,
        "URLs": urls,
        "shards out": shards,
        "seconds": round(waits.seconds, 1),
        "outcomes": len(waits.each_ms),
        **{f"p{part} ms": round(waits.percentile(part / 100), 1) for part in (50, 99)},
        "longest ms": round(max(waits.each_ms), 1),
        "extra wait p99 ms": round(waits.percentile(0.99) - alone.percentile(0.99), 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="command_waits", description="What outcomes wait behind large commands.")
    parser.add_argument("--urls", type=int, default=2_000_000, help="URLs of the crawl that commands are for")
    parser.add_argument("--leases", type=int, default=64, help="its shards a partition that no worker began")
    parser.add_argument("--dir", type=Path, help="an empty folder, where SQLite's file stays (else a temporary one)")
    parser.add_argument("--database", default="sqlite", help="sqlite, postgresql, or an empty database's URL")
    parser.add_argument("--json", action="store_true", help="print one JSON object a row")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with ExitStack() as stack:
        folder = options.dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        database, _ = stack.enter_context(database_of(options.database, folder))
        rows = asyncio.run(_run(database, options.urls, options.leases))
    if options.json:
        print("\n".join(map(json.dumps, rows)))
        return
    print("| " + " | ".join(rows[0]) + " |\n|---|" + "--:|" * (len(rows[0]) - 1))
    for row in rows:
        print("| " + " | ".join(f"{value:,}" if not isinstance(value, str) else value for value in row.values()) + " |")


if __name__ == "__main__":
    main()
