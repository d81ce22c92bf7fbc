"""Copies reports, items and events between NATS and a backup. The order within each subject is kept.

The reports of a partition are outcomes, discoveries and commands. Each command keeps its place among the outcomes and
its place among the discoveries. For example, a deletion of seeds must not change seeds that were uploaded after the
deletion. The copy keeps no order between outcomes and discoveries.

A cluster of NATS servers that has lost a server answers again within seconds, so every step is retried for some time.
"""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from shared.domain.errors import Transient
from shared.domain.frontier.states import Position, same_stream
from shared.domain.frontier.store_model import CommandRun
from shared.domain.ids import Partition
from shared.domain.reads.items import ItemPosition
from shared.ports.broker import KINDS, Broker, Delivered, ReportKind, ReportReader
from shared.ports.events import Events
from shared.wire.events import EVERY_EVENT, decode_event, event_subject
from shared.wire.items import crawl_of
from shared.wire.messages import Command, Malformed, decode_report, encode
from shared.wire.subjects import command

if TYPE_CHECKING:
    from shared.adapters.nats.broker import NatsBroker


_BATCH: Final = 200
_WAIT_S: Final = 5.0
_AT_ONCE: Final = 32
PATIENCE_S: Final = 20.0
"""Each request to NATS is retried for at most this many seconds after its first failure."""

T = TypeVar("T")

_sequence = attrgetter("sequence")

CopiedKind: TypeAlias = ReportKind | Literal["command"]
"""The kind of a report in a backup: `outcome`, `discovery`, or `command` for a command to owners."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The reports of one partition to copy: for each kind, those with a sequence above `after` and up to `last`.

    `continued`: True if the sequences that the database stores for this partition are sequences of the present stream
    in NATS. False if that stream was created again, or was restored to an earlier state.
    """

    partition: Partition
    after: Mapping[ReportKind, int]
    last: Mapping[ReportKind, int]
    continued: bool

    def reports(self, kind: ReportKind) -> bool:
        """Return True if the stretch has reports of this kind."""
        return self.last[kind] > self.after[kind]


async def unread(broker: Broker, positions: Mapping[Partition, Position]) -> list[Stretch]:
    """Return the reports in NATS that are not applied in the tables. Leave out partitions without such reports.

    `positions`: for each partition, the position up to which reports are applied. Its stretch begins after this
    position. If the position belongs to another stream, the stretch begins at the first report in NATS.
    """
    state = await patiently(broker.reports_state)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def of(partition: Partition, position: Position) -> Stretch:
        async with gate:
            continued = same_stream(position, state.created_ns, state.last_sequence)
            after, last = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
            for kind in KINDS:
                continued = continued and await _same_time(broker, position, kind)
                last[kind] = await patiently(partial(broker.last_report, partition, kind))
            if continued:
                after = {kind: position.of(kind) for kind in KINDS}
            return Stretch(partition, after, last, continued)

    stretches = await asyncio.gather(*(of(partition, position) for partition, position in positions.items()))
    return [stretch for stretch in stretches if any(map(stretch.reports, KINDS))]


async def _same_time(broker: Broker, position: Position, kind: ReportKind) -> bool:
    sequence = position.of(kind)
    return not sequence or await patiently(partial(broker.continues, sequence, position.at_ns(kind)))


async def read_stretch(
    broker: Broker, stretch: Stretch, in_progress: Sequence[CommandRun] = ()
) -> AsyncIterator[tuple[CopiedKind, list[bytes]]]:
    """Yield the reports of a stretch in batches of one kind. See the module for their order.

    In NATS, commands are stored among the outcomes. Here they are yielded in batches of their own, of the kind
    "command". Raise Transient if the broker stops returning reports before the end of the stretch.

    `in_progress`: the commands that the partition's owner has accepted and not finished, in order. The stretch does not
    contain them, because an accepted command is read already. If `stretch.continued`, they are yielded in addition.
    Each comes after the discoveries that were sent before it, so that a restore knows its place among them.
    """
    commands = command(stretch.partition)
    async with (
        aclosing(_reports(broker, stretch, "outcome")) as outcomes,
        aclosing(_reports(broker, stretch, "discovery")) as found_later,
    ):
        discoveries = _Discoveries(found_later)
        for run in in_progress if stretch.continued else ():
            async for found in discoveries.before(run.sequence):
                yield "discovery", found
            yield "command", [encode(Command(run.id, run.crawl_id, run.kind, run.args))]
        async for batch in outcomes:
            for of_command, some in groupby(batch, key=lambda report: report.subject == commands):
                if not of_command:
                    yield "outcome", [report.data for report in some]
                    continue
                for report in some:
                    async for found in discoveries.before(report.sequence):
                        yield "discovery", found
                    yield "command", [report.data]
        async for found in discoveries.before(stretch.last["discovery"] + 1):
            yield "discovery", found


class _Discoveries:
    """Splits the batches of a partition's discoveries at given sequences. Keeps at most one batch in memory."""

    def __init__(self, batches: AsyncIterator[list[Delivered]]) -> None:
        self._batches = batches
        self._read: list[Delivered] = []

    async def before(self, sequence: int) -> AsyncIterator[list[bytes]]:
        """Yield batches of the discoveries that are not yielded yet and have a smaller sequence than this one."""
        while True:
            place = bisect_left(self._read, sequence, key=_sequence)
            if place:
                yield [report.data for report in self._read[:place]]
            self._read = self._read[place:]
            if self._read:
                return
            self._read = await anext(self._batches, [])
            if not self._read:
                return


async def _reports(broker: Broker, stretch: Stretch, kind: ReportKind) -> AsyncGenerator[list[Delivered]]:
    """Yield batches of the stretch's reports of one kind, in their order."""
    if not stretch.reports(kind):
        return
    reader = await patiently(partial(broker.read_reports, stretch.partition, kind, stretch.after[kind]))
    try:
        async for batch in _through(reader, stretch.last[kind], f"reports of partition {stretch.partition}"):
            yield batch
    finally:
        await reader.close()


async def read_items(broker: Broker, position: ItemPosition) -> AsyncIterator[list[bytes]]:
    """Yield batches of the item messages that the table of items does not contain yet.

    `position`: the last message that the table contains. If it belongs to another stream, or the stream came back
    shorter and has grown since, yield all messages in NATS.
    """
    state = await patiently(broker.items_state)
    fits = position.stream_created_ns == state.created_ns and position.sequence <= state.last
    if fits and position.at_ns:
        fits = await patiently(partial(broker.continues, position.timed_sequence, position.at_ns, "items"))
    after = max(position.sequence if fits else 0, state.first - 1)
    if after >= state.last:
        return
    reader = await patiently(partial(broker.read_items, after))
    try:
        async for batch in _through(reader, state.last, "items"):
            yield [message.data for message in batch]
    finally:
        await reader.close()


async def read_events(broker: "NatsBroker") -> AsyncIterator[list[tuple[str, bytes]]]:
    """Yield batches of the stored events, each with its subject. Leave out events that cannot be decoded.

    Events that expire during the copy may be missing.
    """
    state = await patiently(broker.events.state)
    if state.first > state.last:
        return
    reader = await patiently(partial(broker.events.read, [EVERY_EVENT], state.first - 1))
    try:
        async for batch in _through(reader, state.last, "events"):
            yield [(subject, event.data) for event in batch if (subject := _subject(event.data)) is not None]
    finally:
        await reader.close()


def _subject(event: bytes) -> str | None:
    try:
        known = decode_event(event)
    except Malformed:
        return None  # only masters publish events; readers skip malformed ones, too
    return event_subject(known.kind, known.about)


async def _through(reader: ReportReader, last: int, name: str) -> AsyncIterator[list[Delivered]]:
    """Yield batches of messages from the reader, up to and including the sequence `last`.

    `name` is the word for the messages in errors, such as `events`.
    """
    while True:
        batch = await patiently(partial(_some, reader, last, name))
        if reports := [report for report in batch if report.sequence <= last]:
            yield reports
        if batch[-1].sequence >= last:
            return


async def _some(reader: ReportReader, last: int, name: str) -> list[Delivered]:
    """Read and return at least one message. Raise Transient if the broker returns none within _WAIT_S seconds.

    `last` and `name` are used only in the message of the error.
    """
    batch = list(await reader.read(_BATCH, _WAIT_S))
    if not batch:
        raise Transient(f"the broker does not return the {name} up to sequence {last}")
    return batch


async def publish_items(broker: Broker, name: str, batches: Iterable[list[bytes]]) -> int:
    """Publish all item messages in order and return their number.

    `name`: a name of the backup, with which each message id begins. A repeated restore uses the same ids. So NATS drops
    the messages that it received from an interrupted restore in the last two minutes.
    """
    messages = enumerate(chain.from_iterable(batches), 1)
    return await _each(
        partial(broker.publish_items, crawl_of(data), data, f"{name}.items.{number}") for number, data in messages
    )


async def publish_reports(
    broker: Broker, name: str, batches: Iterable[tuple[int, CopiedKind, list[bytes]]]
) -> tuple[int, Mapping[tuple[int, str], int]]:
    """Publish all reports in order. Return the number of reports, and where NATS stored the commands.

    The second value has the key (partition, id of the command) for each command. The value of the key is the sequence
    of the command's message. If the command was published twice, it is the sequence of the first message.

    - `batches`: tuples of a partition, a kind, and the reports of both.
    - `name`: a name of the backup, with which each message id begins. A repeated restore uses the same ids. So NATS
      drops the reports that it received from an interrupted restore in the last two minutes.
    """
    numbers: Counter[str] = Counter()
    places: dict[tuple[int, str], int] = {}

    async def publish_command(partition: Partition, data: bytes, message_id: str) -> None:
        sequence = await broker.publish_command(partition, data, message_id)
        try:
            message = decode_report(data)
        except Malformed:
            return  # its owner makes it a dead letter
        if isinstance(message, Command):
            places.setdefault((partition, message.id), sequence)

    def calls() -> Iterator[Callable[[], Awaitable[object]]]:
        for partition, kind, batch in batches:
            subject = f"{name}.{partition}.{kind}"
            for data in batch:
                numbers[subject] += 1
                message_id = f"{subject}.{numbers[subject]}"
                if kind == "command":
                    yield partial(publish_command, Partition(partition), data, message_id)
                else:
                    yield partial(broker.publish_report, Partition(partition), kind, data, message_id)

    return await _each(calls()), places


async def publish_events(events: Events, name: str, batches: Iterable[list[tuple[str, bytes]]]) -> int:
    """Publish all events, each under its subject, in order. Return their number.

    `name`: a name of the backup, with which each message id begins. A repeated restore uses the same ids. So NATS drops
    the events that it received from an interrupted restore in the last two minutes.
    """
    messages = enumerate(chain.from_iterable(batches), 1)
    return await _each(partial(events.publish, subject, data, f"{name}.{n}") for n, (subject, data) in messages)


async def _each(calls: Iterable[Callable[[], Awaitable[object]]]) -> int:
    """Await `patiently(call)` for each of the calls, in order. Return the number of calls."""
    number = 0
    for call in calls:
        await patiently(call)
        number += 1
    return number


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Await `call()` and return its result. If it raises Transient, repeat it.

    Repeat it for at most PATIENCE_S seconds after the first failure, and then raise the last Transient.
    A repeated call must be harmless, such as a publish with the same message id.
    """
    loop = asyncio.get_running_loop()
    until: float | None = None
    while True:
        try:
            return await call()
        except Transient as error:
            until = loop.time() + PATIENCE_S if until is None else until
            if loop.time() + error.retry_in >= until:
                raise
            await asyncio.sleep(error.retry_in)
