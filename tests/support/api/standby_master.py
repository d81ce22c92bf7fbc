"""A master that takes over every partition of a frontier and works on it, with workers that answer at once.

The owners' own code runs, on a real database; only the broker is a double, which hands every shard straight to its
"worker" and keeps nothing.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

from api.frontier.capacity import BudgetReservation, PoolCapacity
from api.frontier.dispatch import Dispatch
from api.frontier.dispatch_crawls import DispatchCrawl, DispatchCrawls
from api.frontier.grants import GrantService
from api.frontier.ingest import Ingest
from api.frontier.owner import Owner
from api.frontier.ownership import FrontierSettings, Ownership
from api.frontier.stats import OwnerStats
from api.frontier.sweep import Sweep
from api.frontier.writer import PartitionWriter
from shared.adapters.local.clock import SystemClock
from shared.domain.crawl.spec import CrawlSpec, Politeness, Seed
from shared.domain.frontier.states import CrawlState, UrlEnd
from shared.domain.ids import CrawlId, Partition, Revision, Term
from shared.domain.web.url import fingerprint
from shared.ports.broker import Broker, Delivered, StreamState
from shared.ports.store import Store
from shared.wire.messages import (
    Begin,
    HostNote,
    Outcome,
    Record,
    UrlOutcome,
    UrlShard,
    WorkerStatus,
    decode_shard,
    encode,
)
from tests.support.database.scaled_frontier import PARTITIONS, STREAM_NS

SPEC: Final = CrawlSpec(seeds=(Seed(url="https://www.site-0.com/"),), politeness=Politeness(delay_s=1.0))
_TAKEN: Final = 4
_LONGEST_S: Final = 120.0
STEPS: Final = ("sweep", "lease", "grant", "outcomes")
"""What a partition's owner does in a turn, in this order."""

_TURN_S: Final = 2.0
"""In which a host has rested, and a partition settles some 640 URLs."""


class SinkBroker:
    """The broker: takes every shard, and has no reports of its own."""

    def __init__(self) -> None:
        self.shards: list[UrlShard] = []
        self.published: dict[Partition, float] = {}
        self._news = asyncio.Event()

    async def publish_shard(self, pool: str, partition: Partition, host_id: int, slot: int, data: bytes) -> bool:
        self.shards.append(decode_shard(data))
        self.published.setdefault(partition, time.perf_counter())
        self._news.set()
        return True

    async def all_published(self, partitions: int) -> None:
        """Wait until so many partitions have published something."""
        while len(self.published) < partitions:
            self._news.clear()
            await self._news.wait()

    async def reports_state(self) -> StreamState:
        return StreamState(STREAM_NS, 1 << 60)

    async def report_at(self, sequence: int) -> None:
        return None

    async def last_report(self, partition: Partition, kind: str) -> int:
        return 0

    async def queued_visits(self, partition: Partition) -> Sequence[Any]:
        return []

    async def purge_reports(self, partition: Partition, kind: str, through: int) -> None:
        return None

    async def read_reports(self, partition: Partition, kind: str, after: int, at_ns: int | None = None) -> "SinkBroker":
        return self

    async def continues(self, sequence: int, at_ns: int) -> bool:
        return True

    async def purge(self, through: int) -> bool:
        return True

    async def read(self, max_count: int, wait_s: float) -> Sequence[Delivered]:
        await asyncio.Event().wait()
        return []

    async def close(self) -> None:
        return None

    @asynccontextmanager
    async def answer(self, partition: Partition, reply: Callable[[bytes], Awaitable[bytes | None]]) -> Any:
        yield


class Turned:
    """A clock that is turned by hand, from the present."""

    def __init__(self) -> None:
        self._elapsed, self._unix_ms = 1_000_000.0, time.time_ns() // 1_000_000

    def turn(self, seconds: float) -> None:
        self._elapsed += seconds
        self._unix_ms += int(seconds * 1000)

    def elapsed(self) -> float:
        return self._elapsed

    def unix_ms(self) -> int:
        return self._unix_ms


def crawls_of(crawl_id: CrawlId, running: int = 1) -> DispatchCrawls:
    """The crawl, as an owner sees it, and others with nothing in the frontier, `running` together."""
    crawls = DispatchCrawls()
    for other in range(1, running):
        idle = CrawlId(crawl_id + other)
        crawls.put(
            DispatchCrawl(
                idle, f"idle{other}", Revision(1), SPEC, CrawlState.RUNNING, BudgetReservation(None, None, {})
            )
        )
    crawls.put(
        DispatchCrawl(crawl_id, "scale", Revision(1), SPEC, CrawlState.RUNNING, BudgetReservation(None, None, {}))
    )
    return crawls


def _room(now: float) -> PoolCapacity:
    """Workers that take all that is given them, whatever an earlier owner has given, for longer than a takeover."""
    room = PoolCapacity()
    room.worker_reported(WorkerStatus("w1", "default", 100_000, 0), now + 3600)
    return room


@dataclass(frozen=True, slots=True)
class Takeover:
    """Seconds from the start of one partition's owner to its first shard; of all at once, to the last one's first, and
    this process's CPU. A second of each is the hosts' own rest."""

    one_s: float
    all_s: float
    all_cpu_s: float
    hosts: int


async def take_over(store: Store, crawl_id: CrawlId, first: Term) -> Takeover:
    """One partition is taken over alone, then all at once, as when the master that had them died."""
    one_s, _ = await _owned(store, crawl_id, first, 1)
    cpu = time.process_time()
    all_s, hosts = await _owned(store, crawl_id, Term(first + 1), PARTITIONS)
    return Takeover(one_s, all_s, time.process_time() - cpu, hosts)


async def _owned(store: Store, crawl_id: CrawlId, term: Term, partitions: int) -> tuple[float, int]:
    clock, sink, crawls = SystemClock(), SinkBroker(), crawls_of(crawl_id)
    owners = [
        Owner(
            Partition(number), term, store=store, broker=cast(Broker, sink), clock=clock, crawls=crawls,
            capacity=_room(clock.elapsed()),
            settings=FrontierSettings(partitions=PARTITIONS, dispatch_batch_size=_TAKEN),
        )
        for number in range(partitions)
    ]  # fmt: skip
    begun = time.perf_counter()
    running = [asyncio.ensure_future(owner.run()) for owner in owners]
    everything = asyncio.ensure_future(sink.all_published(partitions))
    try:
        await asyncio.wait([everything, *running], timeout=_LONGEST_S, return_when=asyncio.FIRST_COMPLETED)
        if not everything.done():
            raise RuntimeError(f"only {sorted(sink.published)} have dispatched; {owners} {running}")
        held = sum(len(owner.ownership.hosts) for owner in owners if owner.ownership is not None)
        return max(sink.published.values()) - begun, held
    finally:
        for task in (everything, *running):
            task.cancel()
        await asyncio.gather(everything, *running, return_exceptions=True)


class Standby:
    """Owners of all partitions that work in turns, on a clock that the turns move on."""

    def __init__(self, store: Store, crawl_id: CrawlId, *, shards: int, running: int = 1) -> None:
        self.clock = Turned()
        self._running = running
        self._store, self._crawl_id, self._shards = store, crawl_id, shards
        self._owned: list[_Owned] = []

    async def claim(self, term: Term) -> None:
        """Own everything, with what SQL has for the front."""
        for number in range(PARTITIONS):
            claimed = await self._store.claim(Partition(number), term)
            sink = SinkBroker()
            own = Ownership(
                claimed, crawls=crawls_of(self._crawl_id, self._running), capacity=PoolCapacity(),
                settings=FrontierSettings(partitions=PARTITIONS, dispatch_batch_size=self._shards),
                now=self.clock.elapsed(),
            )  # fmt: skip
            own.hosts.mark_incomplete(self._crawl_id)
            writer = PartitionWriter(own, claimed.fence, store=self._store, clock=self.clock, stats=OwnerStats())
            owned = _Owned(writer, sink)
            await owned.sweep()
            self._owned.append(owned)

    def hosts(self) -> int:
        """Hosts in memory."""
        return sum(len(owned.own.hosts) for owned in self._owned)

    def turn(self) -> None:
        """Time passes, and the workers have room again."""
        self.clock.turn(_TURN_S)
        for owned in self._owned:
            owned.own.capacity.worker_reported(
                WorkerStatus("w1", "default", self._shards // 2, 0), self.clock.elapsed()
            )

    def step(self, partition: int, name: str) -> Callable[[], Awaitable[int]]:
        """One of STEPS of a partition; its result is the URLs that it was done with."""
        owned = self._owned[partition]
        return {"sweep": owned.sweep, "lease": owned.lease, "grant": owned.grant, "outcomes": owned.settle}[name]


class _Owned:
    def __init__(self, writer: PartitionWriter, sink: SinkBroker) -> None:
        self.own, self.sink, self._clock = writer.own, sink, writer.clock
        broker = cast(Broker, sink)
        self._dispatch, self._granting = Dispatch(writer, broker), GrantService(writer, broker)
        self._ingest = Ingest(writer, broker)
        self._sweep = Sweep(writer, broker, self._ingest, self._dispatch)
        self._reports = 0

    async def sweep(self) -> int:
        await self._sweep.once()
        return 0

    async def lease(self) -> int:
        self.sink.shards.clear()
        await self._dispatch.once()
        return sum(len(shard.urls) for shard in self.sink.shards)

    async def grant(self) -> int:
        asked = (encode(Begin(shard.lease, 1, "w1")) for shard in self.sink.shards)
        answers = await asyncio.gather(*map(self._granting.answer, asked))
        return len(answers)

    async def settle(self) -> int:
        """Every URL was a page, and every visit is over."""
        at_ms = self._clock.unix_ms()
        reports = []
        for shard in self.sink.shards:
            self._reports += 1
            results = [answered_page(url.url, at_ms, self._reports) for url in shard.urls]
            outcome = Outcome(
                shard.lease, shard.crawl, 1, shard.host_id, results, final=True, quiet_ms=0,
                note=HostNote(latency_ms=80, ip="192.0.2.7"),
            )  # fmt: skip
            reports.append(Delivered(self._reports, at_ms * 1_000_000, encode(outcome)))
        if reports:
            await self._ingest.outcomes(reports)
        return sum(len(shard.urls) for shard in self.sink.shards)


def answered_page(url: str, at_ms: int, number: int) -> UrlOutcome:
    """Return the outcome of a stored page with all that real ones have."""
    return UrlOutcome(
        fingerprint(url), UrlEnd.ANSWERED, at_ms, 200, latency_ms=80, size=30_000, mime="text/html",
        digest=fingerprint(url) + b"sha1", record=Record("7-20231114221320-w1-0001.warc.gz", number * 9_000, 9_000),
        etag='"5e1f-60a3c8b1"', title=f"All about number {number}, and more", links=60,
    )  # fmt: skip
