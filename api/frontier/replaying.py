"""Messages that were given up, published again by the door they first came through.

Each goes under a message id of its letter, and a letter is deleted after its message was acknowledged: broken off in
between, it is published once more, and applied once, by the rules that hold for any message. Discoveries go under a
producer of their own, since the number they had among their first producer's is behind its mark: they are accepted
anew, and were counted as refused when they were given up.
"""

import asyncio
from typing import Final

import msgspec
import structlog

from api.frontier.ownership import Ownership
from shared.domain.errors import Permanent, Refused, Transient
from shared.domain.ledger import CommandRun, MessageLetter
from shared.ports.broker import ReportKind
from shared.wire.items import crawl_of
from shared.wire.messages import Malformed, decode_discoveries, encode

log = structlog.get_logger("orb.frontier")

_AT_ONCE: Final = 50


async def publish_letters(own: Ownership, command: CommandRun) -> tuple[list[int], int]:
    """Publish the next messages that a REPLAY means: which letters were sent, and up to which letter that is all.

    One that the broker refuses stays a letter. What is given up once more meanwhile is another letter, which this
    command does not mean.
    """
    letters = await own.store.message_letters(command, _AT_ONCE)
    sent = [letter.id for letter in letters if await _published(own, letter)]
    return sent, letters[-1].id if len(letters) == _AT_ONCE else command.through


def anew(letter: MessageLetter) -> tuple[ReportKind, bytes]:
    """On which subject a letter's message belongs, and the message as it goes there again."""
    if letter.kind != "discovery":
        return "outcome", letter.payload
    try:
        message = decode_discoveries(letter.payload)
    except Malformed:
        return "discovery", letter.payload
    links = sum(len(origin.links) for origin in message.origins)
    return "discovery", encode(msgspec.structs.replace(message, producer=f"letter-{letter.id}", n=1, total=links))


async def _publish(own: Ownership, letter: MessageLetter) -> None:
    message_id = f"letter-{letter.id}"
    if letter.kind == "shard":
        return  # its URLs were sent anew by their lease
    if letter.kind == "items":
        await own.broker.publish_items(crawl_of(letter.payload), letter.payload, message_id)
    else:
        kind, data = anew(letter)
        await own.broker.publish_report(own.partition, kind, data, message_id)


async def _published(own: Ownership, letter: MessageLetter) -> bool:
    while True:
        try:
            await _publish(own, letter)
            return True
        except (Refused, Permanent) as error:
            log.warning("letter.refused", partition=own.partition, letter=letter.id, error=str(error))
            return False
        except Transient as error:
            await asyncio.sleep(error.retry_in)
