"""A broker in memory with JetStream's behaviour, each of whose operations is a step of a simulated world.

Visits: a work queue with one message a subject, a count of deliveries, redelivery after `ACK_WAIT_S`; an ack of any
delivery removes the message. Reports: sequences and times over all subjects, message ids remembered for two minutes,
purge by subject. Questions go to every owner that listens, and the first answer counts.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from shared.domain.errors import StreamReplaced, TooLarge, Transient
from shared.domain.ids import CrawlId, Partition
from shared.ports.broker import (
    Broker,
    Delivered,
    ItemsState,
    QueuedVisit,
    ReportKind,
    ReportReader,
    StoredVisit,
    StreamState,
    VisitMessage,
)
from shared.wire import subjects
from shared.wire.items import decode_items
from tests.support.simulation.world import Process, World

T = TypeVar("T")

ACK_WAIT_S: Final = 30.0
DEDUP_S: Final = 120.0
NOISE: Final = b"\xc1"
"""A message that no reader can decode."""
_CREATED_NS: Final = 1_700_000_000_000_000_000


@dataclass(eq=False)
class Visit:
    """A message of the work queue; it is not delivered before `visible_at`."""

    subject: str
    data: bytes
    visible_at: float
    sequence: int
    delivery: int = 0


@dataclass(frozen=True)
class Stored:
    subject: str
    report: Delivered


@dataclass(eq=False)
class SimBroker:
    """The server. `client` is what a process uses. `items`: of which pages (crawl and
    fingerprint) items were ever stored. `dropped` hears of each shard that is dropped by its sequence."""

    world: World
    created_ns: int = _CREATED_NS
    sequence: int = 0
    incarnation: int = 0
    reports: list[Stored] = field(default_factory=list)
    visits: dict[str, Visit] = field(default_factory=dict)
    owners: list["_Answering"] = field(default_factory=list)
    robots: dict[str, bytes] = field(default_factory=dict)
    history: list[tuple[str, bytes]] = field(default_factory=list)
    items: set[tuple[int, bytes]] = field(default_factory=set)
    dropped: Callable[["Visit"], None] = lambda visit: None
    queued: int = 0
    max_payload: int = 1 << 20
    _ids: dict[str, tuple[int, float]] = field(default_factory=dict)
    _waiting: dict["asyncio.Future[None]", None] = field(default_factory=dict)

    def client(self, process: Process) -> Broker:
        return _Client(self, process)

    def publish(self, subject: str, data: bytes, message_id: str) -> int:
        """Store a report, once per message id."""
        now = self.world.now
        if (known := self._ids.get(message_id)) is not None and now - known[1] < DEDUP_S:
            return known[0]
        self.sequence += 1
        self._ids[message_id] = (self.sequence, now)
        at_ns = _CREATED_NS + int(now * 1e9) + self.sequence
        self.reports.append(Stored(subject, Delivered(self.sequence, at_ns, data, subject)))
        self.history.append((subject, data))
        self.news()
        return self.sequence

    def last(self, which: Collection[str]) -> int:
        return max((stored.report.sequence for stored in self.reports if stored.subject in which), default=0)

    def purge(self, which: Collection[str], through: int) -> None:
        self.reports = [each for each in self.reports if each.subject not in which or each.report.sequence > through]

    def wipe(self) -> None:
        """The broker lost its disk: streams are made anew, and count from 1."""
        self.created_ns += 1_000_000_000
        self.sequence = 0
        self.reports.clear()
        self.visits.clear()
        self._ids.clear()
        self.news()

    def put_back(self, messages: int) -> None:
        """The broker was killed, and comes back with a store that is so many reports older."""
        self.incarnation += 1
        self.sequence = max(0, self.sequence - messages)
        self.reports = [stored for stored in self.reports if stored.report.sequence <= self.sequence]
        self._ids = {name: known for name, known in self._ids.items() if known[0] <= self.sequence}
        self.news()

    def continues(self, sequence: int, at_ns: int) -> bool:
        """See Broker.continues."""
        before = [each.report for each in self.reports if each.report.sequence <= sequence]
        return all(each.at_ns == at_ns if each.sequence == sequence else each.at_ns <= at_ns for each in before)

    def redeliver(self, choice: int) -> None:
        """Something made the broker believe that a delivery failed."""
        if self.visits:
            list(self.visits.values())[choice % len(self.visits)].visible_at = self.world.now
            self.news()

    def spoil(self, choice: int) -> None:
        """A shard that stands in its queue cannot be read any more."""
        if self.visits:
            list(self.visits.values())[choice % len(self.visits)].data = NOISE

    def news(self) -> None:
        for waiting in list(self._waiting):
            if not waiting.done():
                waiting.set_result(None)

    async def until_news(self, until: float) -> None:
        """Wait for something new, or until the time has come."""
        waiting: asyncio.Future[None] = self.world.loop.create_future()
        self._waiting[waiting] = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await waiting
        finally:
            del self._waiting[waiting]


@dataclass(eq=False)
class _Answering:
    partition: Partition
    process: Process
    reply: Callable[[bytes], Awaitable[bytes | None]]
    open: dict["asyncio.Task[None]", None] = field(default_factory=dict)

    def ended(self, task: "asyncio.Task[None]") -> None:
        self.open.pop(task, None)


class _Visit:
    """A delivery in a worker's hands."""

    def __init__(self, client: "_Client", message: Visit) -> None:
        self._client = client
        self._message = message
        self.data = message.data
        self.delivery = message.delivery
        self.origin = subjects.visit_origin(message.subject, message.sequence)

    async def ack(self) -> None:
        await self._client.io("visit.ack", self._ack)

    async def nak(self, delay_s: float) -> None:
        await self._client.io("visit.nak", lambda: self._show(delay_s))

    async def working(self) -> None:
        await self._client.io("visit.working", lambda: self._show(ACK_WAIT_S))

    def _ack(self) -> None:
        server = self._client.server
        if server.visits.get(self._message.subject) is self._message:
            del server.visits[self._message.subject]
            server.news()

    def _show(self, delay_s: float) -> None:
        self._message.visible_at = self._client.server.world.now + delay_s
        self._client.server.news()


class _Reader:
    def __init__(self, client: "_Client", which: Collection[str], after: int, at_ns: int | None) -> None:
        self._client = client
        self._which = which
        self._position = after
        self._at_ns = at_ns
        self._created_ns = client.server.created_ns
        self._compare()

    def _compare(self) -> None:
        """Compare the stream with the position, as whenever a cursor is placed."""
        server = self._client.server
        self._incarnation = server.incarnation
        shorter = server.sequence < self._position or (
            self._at_ns is not None and self._position and not server.continues(self._position, self._at_ns)
        )
        if self._created_ns != server.created_ns or shorter:
            raise StreamReplaced("the stream is another one, or shorter", retry_in=0.1)

    async def read(self, max_count: int, wait_s: float) -> Sequence[Delivered]:
        server, until = self._client.server, self._client.server.world.now + wait_s
        while True:
            found = await self._client.io("reports.read", lambda: self._take(max_count))
            if found:
                # Only what is handed over is behind us: an answer that was lost is read again.
                self._position = found[-1].sequence
                self._at_ns = found[-1].at_ns
                return found
            if server.world.now >= until:
                return found
            if not self._there(1):
                await server.until_news(until)

    def _there(self, max_count: int) -> list[Delivered]:
        return [
            stored.report
            for stored in self._client.server.reports
            if stored.subject in self._which and stored.report.sequence > self._position
        ][:max_count]

    def _take(self, max_count: int) -> list[Delivered]:
        server = self._client.server
        if (self._created_ns, self._incarnation) != (server.created_ns, server.incarnation):
            self._compare()
        return self._there(max_count)

    async def purge(self, through: int) -> bool:
        server, incarnation = self._client.server, self._incarnation

        def purge() -> bool:
            if (self._created_ns, incarnation) != (server.created_ns, server.incarnation):
                return False  # it was asked over a connection that is gone
            server.purge(self._which, through)
            return True

        return await self._client.io("reports.purge", purge)

    async def close(self) -> None:
        """A cursor leaves nothing behind."""


class _Client:
    """`shared.ports.broker.Broker` of one process."""

    def __init__(self, server: SimBroker, process: Process) -> None:
        self.server = server
        self.process = process

    async def io(self, what: str, effect: Callable[[], T], *, may_be_late: bool = False) -> T:
        return await self.server.world.io(self.process, what, effect, may_be_late=may_be_late)

    async def declare(self, pools: Sequence[str]) -> None:
        """Everything is there."""

    def stores_nothing(self) -> bool:
        return False

    async def publish_shard(self, pool: str, partition: Partition, host_id: int, slot: int, data: bytes) -> bool:
        if len(data) > self.server.max_payload:
            raise TooLarge(f"a message of {len(data)} bytes exceeds the broker's limit of {self.server.max_payload}")
        subject = subjects.visit(pool, partition, host_id, slot)

        def publish() -> bool:
            if subject in self.server.visits:
                return False
            self.server.queued += 1
            self.server.visits[subject] = Visit(subject, data, self.server.world.now, self.server.queued)
            self.server.news()
            return True

        return await self.io("visit.publish", publish, may_be_late=True)

    async def publish_report(self, partition: Partition, kind: ReportKind, data: bytes, message_id: str) -> int:
        publish = partial(self.server.publish, subjects.report(partition, kind), data, message_id)
        return await self.io(f"publish.{kind}", publish, may_be_late=True)

    async def publish_command(self, partition: Partition, data: bytes, message_id: str) -> int:
        publish = partial(self.server.publish, subjects.command(partition), data, message_id)
        return await self.io("publish.command", publish, may_be_late=True)

    async def pull_visits(self, pool: str, max_count: int, wait_s: float) -> Sequence[VisitMessage]:
        server, until = self.server, self.server.world.now + wait_s

        def mine() -> list[Visit]:
            return [visit for visit in server.visits.values() if visit.subject.startswith(f"visits.{pool}.")]

        def take() -> list[_Visit]:
            now = server.world.now
            found = [visit for visit in mine() if visit.visible_at <= now][:max_count]
            for visit in found:
                visit.delivery, visit.visible_at = visit.delivery + 1, now + ACK_WAIT_S
            return [_Visit(self, visit) for visit in found]

        while True:
            await server.world.gate(self.process, "visits.pull")
            taken = take()
            if taken or server.world.now >= until:
                await server.world.gate(self.process, "visits.pull.answer")
                return taken
            await server.until_news(min([until, *(visit.visible_at for visit in mine())]))

    async def read_reports(
        self, partition: Partition, kind: ReportKind, after: int, at_ns: int | None = None
    ) -> ReportReader:
        return await self.io("reports.open", lambda: _Reader(self, subjects.reports(partition, kind), after, at_ns))

    async def reports_state(self) -> StreamState:
        return await self.io("reports.state", lambda: StreamState(self.server.created_ns, self.server.sequence))

    async def last_report(self, partition: Partition, kind: ReportKind) -> int:
        return await self.io("reports.last", lambda: self.server.last(subjects.reports(partition, kind)))

    async def last_command(self, partition: Partition) -> int:
        return await self.io("commands.last", lambda: self.server.last((subjects.command(partition),)))

    async def continues(self, sequence: int, at_ns: int, stream: str = "reports") -> bool:
        return await self.io("reports.at", lambda: self.server.continues(sequence, at_ns))

    async def purge_reports(self, partition: Partition, kind: ReportKind, through: int) -> None:
        await self.io("reports.purge", lambda: self.server.purge(subjects.reports(partition, kind), through))

    async def publish_items(self, crawl_id: CrawlId, data: bytes, message_id: str) -> int:
        """Stored at once: the steps before and after it are those at which the world may turn."""
        of, pages = decode_items(data)
        assert of == crawl_id
        self.server.items.update((of, page.fingerprint) for page in pages)
        return len(self.server.items)

    async def read_items(self, after: int, at_ns: int | None = None) -> ReportReader:
        raise NotImplementedError("items are not read in this world: they are judged where they lie")

    async def items_state(self) -> ItemsState:
        raise NotImplementedError("items are not read in this world: they are judged where they lie")

    async def queued_visits(self, partition: Partition) -> Sequence[QueuedVisit]:
        def places() -> list[QueuedVisit]:
            here = [subject for subject in self.server.visits if subject.split(".")[2] == str(partition)]
            return [place for place in map(subjects.queued_visit, here) if place is not None]

        return await self.io("visit.list", places)

    async def visit_at(self, partition: Partition, place: QueuedVisit) -> StoredVisit | None:
        subject = subjects.visit(place.pool, partition, place.host_id, place.slot)

        def look() -> StoredVisit | None:
            visit = self.server.visits.get(subject)
            return None if visit is None else StoredVisit(visit.sequence, visit.data)

        return await self.io("visit.look", look)

    async def visit_waits(self, partition: Partition, place: QueuedVisit) -> bool:
        subject = subjects.visit(place.pool, partition, place.host_id, place.slot)

        def look() -> bool:
            visit = self.server.visits.get(subject)
            return visit is not None and visit.delivery == 0

        return await self.io("visit.waits", look)

    async def drop_visit(
        self, pool: str, partition: Partition, host_id: int, slot: int, *, through: int | None = None
    ) -> None:
        subject = subjects.visit(pool, partition, host_id, slot)

        def drop() -> None:
            visit = self.server.visits.get(subject)
            if visit is None or (through is not None and visit.sequence > through):
                return
            del self.server.visits[subject]
            if through is not None:
                self.server.dropped(visit)

        await self.io("visit.drop", drop)

    async def pending_reports(self) -> int:
        return len(self.server.reports)

    async def fullness(self, kind: ReportKind) -> float:
        return 0.0  # its subjects have no bound

    async def ask(self, partition: Partition, data: bytes, wait_s: float) -> bytes:
        world = self.server.world
        answer: asyncio.Future[bytes] = world.loop.create_future()
        until = world.now + wait_s
        with_whom = await self.io("ask", lambda: self._put(partition, data, answer))
        try:
            async with asyncio.timeout_at(until):
                reply = await answer
        except TimeoutError as error:
            raise Transient(f"none of {with_whom} answered", retry_in=0.5) from error
        await world.gate(self.process, "answer.arrives")
        return reply

    def _put(self, partition: Partition, data: bytes, answer: "asyncio.Future[bytes]") -> int:
        asked = [owner for owner in self.server.owners if owner.partition == partition and not owner.process.dead]
        for owner in asked:
            task = self.server.world.spawn(owner.process, self._answer(owner, data, answer), "answer")
            owner.open[task] = None
            task.add_done_callback(owner.ended)
        return len(asked)

    async def _answer(self, owner: _Answering, data: bytes, answer: "asyncio.Future[bytes]") -> None:
        world = self.server.world
        await world.gate(owner.process, "question.arrives")
        reply = await owner.reply(data)
        await world.gate(owner.process, "answer.leaves")
        if reply is not None and not answer.done():
            answer.set_result(reply)

    def answer(
        self, partition: Partition, reply: Callable[[bytes], Awaitable[bytes | None]]
    ) -> AbstractAsyncContextManager[None]:
        return self._answering(_Answering(partition, self.process, reply))

    @asynccontextmanager
    async def _answering(self, owner: _Answering) -> AsyncIterator[None]:
        self.server.owners.append(owner)
        try:
            yield
        finally:
            self.server.owners.remove(owner)
            for task in list(owner.open):
                task.cancel()
            await asyncio.gather(*owner.open, return_exceptions=True)

    async def get_robots(self, key: str) -> bytes | None:
        return await self.io("robots.get", lambda: self.server.robots.get(key))

    async def put_robots(self, key: str, value: bytes) -> None:
        await self.io("robots.put", lambda: self.server.robots.__setitem__(key, value))

    async def tell(self, subject: str, data: bytes) -> None:
        """Do nothing: there is no listener."""

    def listen(self, subject: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise NotImplementedError("nothing is told in this world")

    async def close(self) -> None:
        """The server stays for the others."""
