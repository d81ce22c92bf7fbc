"""An owner that does what a test says: publishes shards, answers Begin and Extend, and reads what is reported."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from shared.adapters.local.specs import LOOK_S, LocalSpecs
from shared.adapters.nats import NatsBroker
from shared.domain.crawl.spec import CrawlSpec
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.errors import Transient
from shared.domain.ids import CrawlId, Fingerprint, Partition, Revision, numbered
from shared.domain.web.url import fingerprint, host_of
from shared.ports.broker import ReportKind, ReportReader
from shared.ports.specs import PublishedSpec
from shared.runtime.supervise import Tasks, dying_with
from shared.settings import WorkerSettings
from shared.wire.messages import (
    Answer,
    Begin,
    Command,
    Discoveries,
    Extend,
    Go,
    Gone,
    Outcome,
    ShardUnreadable,
    ShardUrl,
    UrlOutcome,
    UrlShard,
    decode_discoveries,
    decode_question,
    decode_report,
    encode,
)
from tests.support.engines.nats_server import POOL, BrokerServer
from workers.main import StopRequest, run

PARTITION: Final = Partition(0)
CRAWL: Final = CrawlId(1)
UNREADABLE: Final = b"\xc1"
"""A message that no version can read."""

ROOT: Final = Path(__file__).resolve().parents[3]


class ScriptedOwner:
    """The owner of the only partition. `on_begin` and `on_extend` decide, None keeps silent; by default all is granted.

    `questions` are those asked so far, `outcomes`, `discoveries` and `unreadable` the reports read so far.
    """

    def __init__(self, broker: NatsBroker, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.grant_ms = 30_000
        self.rest_ms = 0
        self.on_begin: Callable[[Begin], Answer | None] = self.go
        self.on_extend: Callable[[Extend], Answer | None] = lambda question: Go(question.grant, self.grant_ms)
        self.questions: list[Begin | Extend] = []
        self.outcomes: list[Outcome] = []
        self.discoveries: list[Discoveries] = []
        self.unreadable: list[ShardUnreadable] = []
        self.shards: dict[int, UrlShard] = {}
        self._read_up_to: dict[ReportKind, int] = {"outcome": 0, "discovery": 0}
        self._news = asyncio.Condition()

    def go(self, question: Begin) -> Answer:
        """Grant what is not settled."""
        shard = self.shards.get(question.lease)
        if shard is None or any(outcome.final for outcome in self.outcomes if outcome.lease == question.lease):
            return Gone()
        settled = {result.fingerprint for result in self.results(question.lease)}
        remaining = [at for at, url in enumerate(shard.urls) if fingerprint(url.url) not in settled]
        grants = sum(isinstance(asked, Begin) and asked.lease == question.lease for asked in self.questions)
        return Go(grants, self.grant_ms, self.rest_ms, remaining)

    async def publish_spec(
        self, spec: CrawlSpec, *, revision: int = 1, gone: bool = False, paused: bool = False
    ) -> None:
        """Make the crawl known to workers. They have seen it by the end."""
        published = PublishedSpec(CRAWL, Revision(revision), spec, 1, gone, paused)
        await LocalSpecs(self.folder / "specs").publish(published)
        await asyncio.sleep(LOOK_S)

    async def send(self, *urls: str | ShardUrl, delay_ms: int = 0, slot: int = 0) -> int:
        """Lease URLs of one host; the lease."""
        entries = [url if isinstance(url, ShardUrl) else ShardUrl(url, 1) for url in urls]
        lease = numbered(len(self.shards) + 1, PARTITION)
        host = host_of(entries[0].url)
        shard = UrlShard(lease, CRAWL, 1, numbered(1, PARTITION), host, slot, delay_ms, entries)
        self.shards[lease] = shard
        while not await self.broker.publish_shard(POOL, PARTITION, shard.host_id, slot, encode(shard)):  # noqa: ASYNC110  until it is free
            await asyncio.sleep(0.01)
        return lease

    def results(self, lease: int) -> list[UrlOutcome]:
        """What was reported of the lease's URLs."""
        return [result for outcome in self.outcomes if outcome.lease == lease for result in outcome.results]

    def links(self) -> list[str]:
        """The URLs discovered so far."""
        return [link.url for message in self.discoveries for origin in message.origins for link in origin.links]

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until it is true after a question or a report."""
        async with asyncio.timeout(60), self._news:
            await self._news.wait_for(true)

    async def ended(self, lease: int) -> Outcome:
        """Wait for the outcome that ends the lease, and for every discovery stored before it: they come by a reader of
        their own, which may be behind."""
        await self.until(lambda: any(outcome.final and outcome.lease == lease for outcome in self.outcomes))
        await self.caught_up()
        return next(outcome for outcome in self.outcomes if outcome.final and outcome.lease == lease)

    async def caught_up(self) -> None:
        """Wait until every outcome stored by now is read, and every discovery stored before it."""
        kinds: tuple[ReportKind, ...] = ("outcome", "discovery")
        last = {kind: await self._last(kind) for kind in kinds}
        await self.until(lambda: all(self._read_up_to[kind] >= last[kind] for kind in kinds))

    async def _last(self, kind: ReportKind) -> int:
        """The last report of the kind, from a broker that may have come back a moment ago."""
        async with asyncio.timeout(60):
            while True:
                try:
                    return await self.broker.last_report(PARTITION, kind)
                except Transient:
                    await asyncio.sleep(0.01)

    async def purge_read(self, kind: ReportKind) -> None:
        """Make room in the stream, of the reports that were read."""
        await self.broker.purge_reports(PARTITION, kind, self._read_up_to[kind])

    async def slot_free(self, slot: int = 0) -> None:
        """Wait until the message of the slot is acknowledged: then another fits."""
        async with asyncio.timeout(60):
            while not await self.broker.publish_shard(POOL, PARTITION, numbered(1, PARTITION), slot, UNREADABLE):  # noqa: ASYNC110  until it is free
                await asyncio.sleep(0.01)

    async def _answer(self, data: bytes) -> bytes | None:
        question = decode_question(data)
        self.questions.append(question)
        answer = self.on_begin(question) if isinstance(question, Begin) else self.on_extend(question)
        async with self._news:
            self._news.notify_all()
        return None if answer is None else encode(answer)

    async def _read(self, kind: ReportKind) -> None:
        reader: ReportReader | None = None
        while True:
            try:
                reader = reader or await self.broker.read_reports(PARTITION, kind, 0)
                reports = await reader.read(100, 1.0)
            except Transient:
                await asyncio.sleep(0.05)
                continue
            for report in reports:
                self._read_up_to[kind] = report.sequence
                if report.data != UNREADABLE:
                    self._take(report.data, kind)
            async with self._news:
                self._news.notify_all()

    def _take(self, data: bytes, kind: ReportKind) -> None:
        if kind == "discovery":
            self.discoveries.append(decode_discoveries(data))
            return
        outcome = decode_report(data)
        assert not isinstance(outcome, Command)
        if isinstance(outcome, ShardUnreadable):
            self.unreadable.append(outcome)
        else:
            self.outcomes.append(outcome)

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Answer questions while open."""
        async with self.broker.answer(PARTITION, self._answer):
            yield

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read reports while open."""
        async with Tasks() as tasks:
            tasks.start("outcomes", self._read("outcome"))
            tasks.start("discoveries", self._read("discovery"))
            yield


def spec_for(*seeds: str, **sections: dict[str, Any]) -> CrawlSpec:
    """A spec that may reach loopback; `sections` overrides its sections."""
    return parse_spec({"seeds": list(seeds), "egress": {"allow": ["127.0.0.0/8"]}, **sections})


@asynccontextmanager
async def owner_of(server: BrokerServer, folder: Path, spec: CrawlSpec, **stream: Any) -> AsyncIterator[ScriptedOwner]:
    """An owner that answers and reads, of a crawl that is published."""
    async with server.broker(**stream) as broker:
        owner = ScriptedOwner(broker, folder)
        await owner.publish_spec(spec)
        async with owner.answering(), owner.reading():
            yield owner


def settings_for(server: BrokerServer, folder: Path, **changes: Any) -> WorkerSettings:
    """A worker's settings for this broker; `changes` are fields."""
    fields = {
        "id": "w1",
        "dir": folder,
        "nats_url": server.endpoint.url,
        "nats_user": server.login("worker").user,
        "nats_password": server.login("worker").password,
        "report_s": 0.05,
        "grace_s": 5.0,
        "max_visits": 8,
        **changes,
    }
    return WorkerSettings(**fields)


@asynccontextmanager
async def worker(server: BrokerServer, folder: Path, **changes: Any) -> AsyncIterator[StopRequest]:
    """A worker in this process, drained at the end unless it ended before."""
    stop = StopRequest()
    async with Tasks() as tasks:
        running = tasks.start("worker", run(settings_for(server, folder, **changes), stop))
        yield stop
        stop.draining.set()
        assert await running == 0


@contextmanager
def worker_process(server: BrokerServer, folder: Path, *under: str, **environment: str) -> Any:
    """A worker in a process of its own, killed at the end; `under` are arguments to the interpreter before `-m`."""
    process = subprocess.Popen(
        [*dying_with(os.getpid()), sys.executable, *under, "-m", "workers.main"],
        cwd=ROOT,
        env={
            **os.environ,
            "ORB_ID": "w1",
            "ORB_DIR": str(folder),
            "ORB_NATS_URL": server.endpoint.url,
            **server.login("worker").environment,
            "ORB_REPORT_S": "0.05",
            **environment,
        },
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()


async def exit_of(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the process's end."""
    return await asyncio.to_thread(process.wait, 90)


def paths(results: Sequence[UrlOutcome], urls: Sequence[str]) -> list[str]:
    """The URLs of results, in their order."""
    known = {fingerprint(url): url for url in urls}
    return [known[Fingerprint(result.fingerprint)] for result in results]
