"""Publish messages of dead letters again, on the subject where they first arrived.

Each message has an id made from its dead letter, and the letter is deleted after the message was acknowledged. If this
is interrupted in between, the message is published once more, and applied once by the rules for any message.
Discoveries get a new producer name, because their number is behind the mark of their first producer. They are accepted
again: they were counted as refused when they became a dead letter.
"""

import asyncio
from typing import Final

import msgspec
import structlog

from shared.domain.errors import Permanent, Refused, Transient
from shared.domain.frontier.store_model import CommandRun, MessageDeadLetter
from shared.domain.ids import Partition
from shared.ports.broker import Broker, ReportKind
from shared.ports.store import Store
from shared.wire.items import crawl_of
from shared.wire.messages import Malformed, decode_discoveries, encode

log = structlog.get_logger("orb.frontier")

_AT_ONCE: Final = 50


async def publish_letters(store: Store, broker: Broker, command: CommandRun) -> tuple[list[int], int]:
    """Publish the next messages of a REPLAY. Return the ids of the sent letters, and the last letter id covered.

    A message that the broker refuses stays a dead letter. A message that fails again meanwhile becomes a new dead
    letter, which this command does not cover.
    """
    letters = await store.message_letters(command, _AT_ONCE)
    sent = [letter.id for letter in letters if await _published(broker, command.partition, letter)]
    return sent, letters[-1].id if len(letters) == _AT_ONCE else command.through


def anew(letter: MessageDeadLetter) -> tuple[ReportKind, bytes]:
    """Return the subject of a letter's message, and the message to publish there."""
    if letter.kind != "discovery":
        return "outcome", letter.payload
    try:
        message = decode_discoveries(letter.payload)
    except Malformed:
        return "discovery", letter.payload
    links = sum(len(origin.links) for origin in message.origins)
    return "discovery", encode(msgspec.structs.replace(message, producer=f"letter-{letter.id}", n=1, total=links))


async def _publish(broker: Broker, partition: Partition, letter: MessageDeadLetter) -> None:
    message_id = f"letter-{letter.id}"
    if letter.kind == "shard":
        return  # Its lease has published its URLs again.
    if letter.kind == "items":
        await broker.publish_items(crawl_of(letter.payload), letter.payload, message_id)
    else:
        kind, data = anew(letter)
        await broker.publish_report(partition, kind, data, message_id)


async def _published(broker: Broker, partition: Partition, letter: MessageDeadLetter) -> bool:
    while True:
        try:
            await _publish(broker, partition, letter)
            return True
        except (Refused, Permanent) as error:
            log.warning("dead_letter_replay.refused", partition=partition, dead_letter=letter.id, error=str(error))
            return False
        except Transient as error:
            await asyncio.sleep(error.retry_in)
