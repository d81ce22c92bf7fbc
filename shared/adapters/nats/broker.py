"""The message broker on NATS JetStream: URL shards to workers, reports and items from them, and requests to owners."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from msgspec.structs import replace

from shared.adapters.nats import requests, streams
from shared.adapters.nats.connection import NatsConnection, Unanswered, status_of
from shared.adapters.nats.events import NatsEvents
from shared.adapters.nats.jetstream import API, NO_MESSAGE, SECOND_NS, ApiError, call, demand, failure, store, unix_ns
from shared.adapters.nats.queued_visits import listed_visits, stored_visit, waits
from shared.adapters.nats.reader import StreamReader, continues, stream_state
from shared.adapters.nats.settings import NatsLogin, StreamSettings, login_of, nats_tls_of, streams_of
from shared.adapters.nats.storage import StorageHealth, fullest
from shared.adapters.nats.visits import NatsVisit, VisitQueue
from shared.domain.errors import Transient
from shared.domain.frontier.lag import Waiting
from shared.domain.frontier.states import Position
from shared.domain.ids import CrawlId, Partition
from shared.domain.ops.watermarks import FillLevel
from shared.ports.broker import ItemsState, QueuedVisit, ReportKind, StoredVisit, StreamState, TimedStream
from shared.settings import ClusterMasterSettings, listed
from shared.tls import TlsSettings
from shared.wire import subjects
from shared.wire.items import EVERY_ITEM, ITEMS, items_subject

_CONCURRENCY: Final = 16
"""How many subjects are queried at once."""


class NatsBroker:
    """One connection to NATS, over which masters and workers exchange messages (`shared.ports.broker.Broker`).

    Each request to NATS takes at most the call's `wait_s`, or `settings.answer_s` seconds if the call has none.
    """

    def __init__(self, connection: NatsConnection, settings: StreamSettings) -> None:
        self.events = NatsEvents(connection, settings)
        """The stream of events, over the same connection."""
        self._connection = connection
        self._settings = settings
        self._queues: dict[str, VisitQueue] = {}
        self._storage_health = StorageHealth()
        self._refused = False
        connection.watch(self._storage_health.forget_failures)

    @classmethod
    async def of_master(cls, settings: ClusterMasterSettings, name: str) -> "NatsBroker":
        """Connect to the NATS of a cluster with a master's settings.

        `name` is the name under which this process receives answers. Raise Transient if no server answers, and Unusable
        if one refuses the login or a file of the settings is invalid.
        """
        return await cls.connect(
            listed(settings.nats_url),
            login=login_of(settings),
            name=name,
            settings=streams_of(settings),
            tls=nats_tls_of(settings),
        )

    @classmethod
    async def connect(
        cls,
        urls: Sequence[str],
        *,
        login: NatsLogin | None = None,
        name: str,
        settings: StreamSettings,
        tls: TlsSettings | None = None,
    ) -> "NatsBroker":
        """Connect to one of the servers at `urls` within `settings.connect_s` seconds.

        The connection reconnects for ever.

        - `login`: the user and password, or token. None: the URL or a client certificate identifies this process.
        - `name`: the name under which this process receives answers (`subjects.inbox`).
        - `tls`: files for TLS. If they are given, or if a URL begins with `tls://`, nothing is sent in clear text.

        Raise Transient if no server answers, and Unusable if one refuses the login or a file is invalid.
        """
        connection = await NatsConnection.open(urls, login=login, name=name, settings=settings, tls=tls)
        return cls(connection, settings)

    async def declare(self, pools: Sequence[str]) -> None:
        await streams.declare(self._connection, list(pools), self._settings)

    async def storage(self) -> FillLevel | None:
        """Return how full the storage of NATS is: the level of the account or stream that is fullest.

        The field `refused` of the result is True while publishes to a stream fail.

        If neither the account nor a stream has a limit, no level can be measured. The result then depends on publishes:

        1. While no call of this method has ever found that publishes fail: None.
        2. While publishes fail: `FillLevel(0, 0, refused=True)`. The capacity 0 means that no limit is known.
        3. After such a failure has ended: `FillLevel(0, 0, refused=False)`. The result is never None again.
        """
        try:
            level = await fullest(self._connection, self._settings.answer_s)
        except Transient:
            self._storage_health.forget_failures()
            raise
        refuses = self.stores_nothing()
        self._refused = self._refused or refuses
        if level is None:
            return FillLevel(0, 0, refused=refuses) if self._refused else None
        return replace(level, refused=refuses)

    def stores_nothing(self) -> bool:
        return self._storage_health.refuses(asyncio.get_running_loop().time())

    # --- visits -------------------------------------------------------------------------------------------------------

    async def publish_shard(self, pool: str, partition: Partition, host_id: int, slot: int, data: bytes) -> bool:
        subject = subjects.visit(pool, partition, host_id, slot)
        stored = await self._store(subject, data)
        if isinstance(stored, ApiError):
            if stored.occupied:
                return False
            raise failure(stored, f"cannot queue a shard on {subject}")
        return True

    async def pull_visits(self, pool: str, max_count: int, wait_s: float) -> Sequence[NatsVisit]:
        queue = self._queues.get(pool)
        if queue is None:
            queue = self._queues[pool] = VisitQueue(self._connection, pool, self._settings)
        return await queue.pull(max_count, wait_s)

    async def queued_visits(self, partition: Partition) -> Sequence[QueuedVisit]:
        return await listed_visits(self._connection, partition, self._settings.answer_s)

    async def visit_at(self, partition: Partition, place: QueuedVisit) -> StoredVisit | None:
        return await stored_visit(self._connection, partition, place, self._settings.answer_s)

    async def visit_waits(self, partition: Partition, place: QueuedVisit) -> bool:
        return await waits(self._connection, partition, place, self._settings.answer_s)

    async def drop_visit(
        self, pool: str, partition: Partition, host_id: int, slot: int, *, through: int | None = None
    ) -> None:
        what: dict[str, Any] = {"filter": subjects.visit(pool, partition, host_id, slot)}
        if through is not None:
            what["seq"] = through + 1
        await self._purge(subjects.visits_stream(pool), what)

    # --- reports ------------------------------------------------------------------------------------------------------

    async def publish_report(self, partition: Partition, kind: ReportKind, data: bytes, message_id: str) -> int:
        subject = subjects.report(partition, kind)
        stored = await self._store(subject, data, {"Nats-Msg-Id": message_id})
        if isinstance(stored, ApiError):
            raise failure(stored, f"cannot store a report on {subject}")
        return stored

    async def publish_command(self, partition: Partition, data: bytes, message_id: str) -> int:
        subject = subjects.command(partition)
        stored = await self._store(subject, data, {"Nats-Msg-Id": message_id})
        if isinstance(stored, ApiError):
            raise failure(stored, f"cannot store a command on {subject}")
        return stored

    async def read_reports(
        self, partition: Partition, kind: ReportKind, after: int, at_ns: int | None = None
    ) -> StreamReader:
        which = subjects.reports(partition, kind)
        reader = StreamReader(self._connection, subjects.REPORTS, which, after, self._settings, at_ns=at_ns)
        await reader.open()
        return reader

    async def reports_state(self) -> StreamState:
        return await stream_state(self._connection, subjects.REPORTS, self._settings.answer_s)

    async def last_report(self, partition: Partition, kind: ReportKind) -> int:
        which = subjects.reports(partition, kind)
        found = await asyncio.gather(*(self._report({"last_by_subj": subject}) for subject in which))
        return max((int(report["seq"]) for report in found if report is not None), default=0)

    async def last_command(self, partition: Partition) -> int:
        found = await self._report({"last_by_subj": subjects.command(partition)})
        return 0 if found is None else int(found["seq"])

    async def report_at(self, sequence: int) -> int | None:
        report = await self._report({"seq": sequence}) if sequence > 0 else None
        return None if report is None else unix_ns(report["time"])

    async def continues(self, sequence: int, at_ns: int, stream: TimedStream = "reports") -> bool:
        name = ITEMS if stream == "items" else subjects.REPORTS
        return await continues(self._connection, name, sequence, at_ns, self._settings.answer_s)

    async def purge_reports(self, partition: Partition, kind: ReportKind, through: int) -> None:
        if through > 0:
            for subject in subjects.reports(partition, kind):
                await self._purge(subjects.REPORTS, {"filter": subject, "seq": through + 1})

    async def pending_reports(self) -> int:
        info = await demand(self._connection, f"STREAM.INFO.{subjects.REPORTS}", None, self._settings.answer_s)
        return int(info["state"]["messages"])

    async def unapplied(self, positions: Mapping[Partition, Position]) -> Waiting:
        """Return about how many stored reports are not applied yet, and the age of the oldest by the broker's clock.

        `positions` maps a partition to the position up to which its reports are applied. The number may be too high: it
        can include applied reports that are not purged yet.
        """
        every = {"subjects_filter": ">"}
        info = await demand(self._connection, f"STREAM.INFO.{subjects.REPORTS}", every, self._settings.answer_s)
        created_ns, now_ns = unix_ns(info["created"]), unix_ns(info["ts"])
        stored: dict[str, int] = info["state"].get("subjects") or {}
        gate = asyncio.Semaphore(_CONCURRENCY)

        async def oldest_ns(subject: str) -> int | None:
            partition, kind = subjects.reported(subject)
            position = positions.get(partition, Position())
            applied = position.of(kind) if position.stream_created_ns == created_ns else 0
            async with gate:
                return await _next_ns(self._connection, subject, applied, self._settings.answer_s)

        times = await asyncio.gather(*map(oldest_ns, stored))
        waiting = {subject: at_ns for subject, at_ns in zip(stored, times, strict=True) if at_ns is not None}
        if not waiting:
            return Waiting(0, None)
        age_s = max(0.0, (now_ns - min(waiting.values())) / SECOND_NS)
        return Waiting(sum(stored[subject] for subject in waiting), age_s)

    async def fullness(self, kind: ReportKind) -> float:
        every = {"subjects_filter": f"reports.*.{kind}"}
        info = await demand(self._connection, f"STREAM.INFO.{subjects.REPORTS}", every, self._settings.answer_s)
        waiting: dict[str, int] = info["state"].get("subjects") or {}
        return max(waiting.values(), default=0) / self._settings.reports_per_subject

    async def _report(self, which: dict[str, Any]) -> dict[str, Any] | None:
        """Return the stored report that `which` selects, as JetStream describes it, or None if there is none.

        `which` is the body of JetStream's call STREAM.MSG.GET.
        """
        # The stream's leader answers. A replica might not have the newest message yet.
        verb = f"STREAM.MSG.GET.{subjects.REPORTS}"
        answer = await call(self._connection, verb, which, self._settings.answer_s)
        if isinstance(answer, ApiError):
            if answer.err_code == NO_MESSAGE:
                return None
            raise failure(answer, verb)
        message: dict[str, Any] = answer["message"]
        return message

    async def _store(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> int | ApiError:
        """Store a message in its stream. Also record in `_storage_health` whether the stream stored it or refused it.

        Return the message's sequence or the server's error. Raise Transient if the server does not answer.
        """
        try:
            stored = await store(self._connection, subject, data, self._settings.answer_s, headers)
        except Unanswered:
            self._storage_health.record_failure(subject, asyncio.get_running_loop().time())
            raise
        if isinstance(stored, ApiError) and stored.unstored:
            self._storage_health.record_failure(subject, asyncio.get_running_loop().time())
        else:
            self._storage_health.record_working(subject)
        return stored

    async def _purge(self, stream: str, what: dict[str, Any]) -> None:
        await demand(self._connection, f"STREAM.PURGE.{stream}", what, self._settings.answer_s)

    # --- items --------------------------------------------------------------------------------------------------------

    async def publish_items(self, crawl_id: CrawlId, data: bytes, message_id: str) -> int:
        subject, wait_s = items_subject(crawl_id), self._settings.answer_s
        stored = await store(self._connection, subject, data, wait_s, headers={"Nats-Msg-Id": message_id})
        if isinstance(stored, ApiError):
            raise failure(stored, f"cannot store items on {subject}")
        return stored

    async def read_items(self, after: int, at_ns: int | None = None) -> StreamReader:
        reader = StreamReader(self._connection, ITEMS, [EVERY_ITEM], after, self._settings, at_ns=at_ns)
        await reader.open()
        return reader

    async def items_state(self) -> ItemsState:
        info = await demand(self._connection, f"STREAM.INFO.{ITEMS}", None, self._settings.answer_s)
        state = info["state"]
        first, last = int(state["first_seq"]), int(state["last_seq"])
        return ItemsState(unix_ns(info["created"]), first if state["messages"] else last + 1, last)

    # --- requests, robots, messages that are not stored ---------------------------------------------------------------

    async def ask(self, partition: Partition, data: bytes, wait_s: float) -> bytes:
        return (await self._connection.request(subjects.owner(partition), data, wait_s)).data

    def answer(
        self, partition: Partition, reply: Callable[[bytes], Awaitable[bytes | None]]
    ) -> AbstractAsyncContextManager[None]:
        return requests.answering(self._connection, subjects.owner(partition), reply)

    async def get_robots(self, key: str) -> bytes | None:
        subject = f"{API}DIRECT.GET.{streams.ROBOTS_STREAM}.{_robots_subject(key)}"
        message = await self._connection.request(subject, b"", self._settings.answer_s)
        status = status_of(message)
        if status is None:
            return message.data or None
        if status == "404":
            return None
        raise Transient(f"cannot read the robots bucket: {status}")

    async def put_robots(self, key: str, value: bytes) -> None:
        stored = await store(self._connection, _robots_subject(key), value, self._settings.answer_s)
        if isinstance(stored, ApiError):
            raise failure(stored, f"cannot store robots of {key}")

    async def tell(self, subject: str, data: bytes) -> None:
        await self._connection.send(subject, data)

    def listen(self, subject: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return requests.listening(self._connection, subject)

    async def close(self) -> None:
        try:
            for queue in self._queues.values():
                await queue.close()
        finally:
            await self._connection.close()

    def __repr__(self) -> str:
        return f"<NatsBroker {self._connection!r} pools={','.join(self._queues)}>"


def _robots_subject(key: str) -> str:
    """Return the subject of the robots.txt record with this key, an origin such as `https://host:443`.

    The key is encoded as base64url, because a subject allows no dots at its ends, no spaces and no wildcards.
    """
    return streams.ROBOTS_SUBJECT + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


async def _next_ns(connection: NatsConnection, subject: str, after: int, wait_s: float) -> int | None:
    """Return the time (Unix ns) when the first report after sequence `after` was stored on the subject.

    Return None if there is no such report.
    """
    verb = f"STREAM.MSG.GET.{subjects.REPORTS}"
    answer = await call(connection, verb, {"seq": after + 1, "next_by_subj": subject}, wait_s)
    if isinstance(answer, ApiError):
        if answer.err_code == NO_MESSAGE:
            return None
        raise failure(answer, verb)
    message: dict[str, Any] = answer["message"]
    return unix_ns(message["time"])
