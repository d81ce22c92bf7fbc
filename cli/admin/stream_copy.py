"""Copies reports, items and events between NATS and a backup. The order within each subject is kept.

A cluster of NATS servers that has lost a server answers again within seconds, so every step is retried for some time.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from shared.domain.errors import Transient
from shared.domain.frontier.states import Position, same_stream
from shared.domain.ids import Partition
from shared.domain.reads.items import ItemPosition
from shared.ports.broker import KINDS, Broker, Delivered, ReportKind, ReportReader
from shared.ports.events import Events
from shared.wire.events import EVERY_EVENT, decode_event, event_subject
from shared.wire.items import crawl_of
from shared.wire.messages import Malformed
from shared.wire.subjects import command

if TYPE_CHECKING:
    from shared.adapters.nats.broker import NatsBroker


_BATCH: Final = 200
_WAIT_S: Final = 5.0
_AT_ONCE: Final = 32
PATIENCE_S: Final = 20.0
"""Each request to NATS is retried for at most this many seconds after its first failure."""

T = TypeVar("T")

CopiedKind: TypeAlias = ReportKind | Literal["command"]
"""The kind of a report in a backup: `outcome`, `discovery`, or `command` for a command to owners."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of reports to copy, all of one partition and one kind.

    `after` is the sequence number before the first report, and `last` is that of the last report.
    """

    partition: Partition
    kind: ReportKind
    after: int
    last: int


async def unread(broker: Broker, positions: Mapping[Partition, Position]) -> list[Stretch]:
    """Return the ranges of reports in NATS that are not applied in the tables. Leave out empty ranges.

    `positions`: for each partition, the position up to which reports are applied. A range begins after this position.
    If the position belongs to another stream, the range begins at the first report in NATS.
    """
    state = await patiently(broker.reports_state)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def of(partition: Partition, kind: ReportKind, position: Position) -> Stretch:
        async with gate:
            fits = same_stream(position, state.created_ns, state.last_sequence) and await _same_time(
                broker, position, kind
            )
            after = position.of(kind) if fits else 0
            last = await patiently(partial(broker.last_report, partition, kind))
            return Stretch(partition, kind, after, last)

    asked = (of(partition, kind, position) for partition, position in positions.items() for kind in KINDS)
    return [stretch for stretch in await asyncio.gather(*asked) if stretch.last > stretch.after]


async def _same_time(broker: Broker, position: Position, kind: ReportKind) -> bool:
    sequence = position.of(kind)
    return not sequence or await patiently(partial(broker.continues, sequence, position.at_ns(kind)))


async def read_stretch(broker: Broker, stretch: Stretch) -> AsyncIterator[tuple[CopiedKind, list[bytes]]]:
    """Yield the reports of a range in their order, in batches of one kind.

    Commands are stored among the outcomes. They are yielded in batches of the kind "command". Raise Transient if the
    broker stops returning reports before the end of the range.
    """
    commands = command(stretch.partition)
    reader = await patiently(partial(broker.read_reports, stretch.partition, stretch.kind, stretch.after))
    name = f"reports of partition {stretch.partition}"
    try:
        async for batch in _through(reader, stretch.last, name):
            for of_command, some in groupby(batch, key=lambda report: report.subject == commands):
                yield "command" if of_command else stretch.kind, [report.data for report in some]
    finally:
        await reader.close()


async def read_items(broker: Broker, position: ItemPosition) -> AsyncIterator[list[bytes]]:
    """Yield batches of the item messages that the table of items does not contain yet.

    `position`: the last message that the table contains. If it belongs to another stream, yield all messages in NATS.
    """
    state = await patiently(broker.items_state)
    fits = position.stream_created_ns == state.created_ns and position.sequence <= state.last
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


async def publish_reports(broker: Broker, name: str, batches: Iterable[tuple[int, CopiedKind, list[bytes]]]) -> int:
    """Publish all reports and return their number. The order within each subject is kept.

    - `batches`: tuples of a partition, a kind, and the reports of both.
    - `name`: a name of the backup, with which each message id begins. A repeated restore uses the same ids. So NATS
      drops the reports that it received from an interrupted restore in the last two minutes.
    """
    numbers: Counter[str] = Counter()

    def calls() -> Iterator[Callable[[], Awaitable[object]]]:
        for partition, kind, batch in batches:
            subject = f"{name}.{partition}.{kind}"
            for data in batch:
                numbers[subject] += 1
                message_id = f"{subject}.{numbers[subject]}"
                if kind == "command":
                    yield partial(broker.publish_command, Partition(partition), data, message_id)
                else:
                    yield partial(broker.publish_report, Partition(partition), kind, data, message_id)

    return await _each(calls())


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
