"""Commands go to the owners by the same door as outcomes: durable, in order, applied once."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from shared.domain.command import CommandKind, check_command
from shared.domain.declared import Actor
from shared.domain.ids import CrawlId, Partition
from shared.ports.broker import Broker
from shared.ports.catalog import Catalog
from shared.ports.retrying import until_answered
from shared.wire.messages import Command, encode


async def publish_command(
    catalog: Catalog,
    broker: Broker,
    command_id: str,
    crawl_id: CrawlId,
    kind: CommandKind,
    args: Mapping[str, Any],
    partitions: Iterable[Partition],
    *,
    actor: Actor,
    now_ms: int,
    apart: Mapping[Partition, Mapping[str, Any]] | None = None,
) -> None:
    """Keep that it was asked for, then publish it to the partitions; durable on return.

    `apart`: the partitions have arguments of their own, and it goes to no others; `args` is then what is kept.
    Cut short, it may be called again with the same id: an owner applies an id once.
    """
    told = dict.fromkeys(partitions, args) if apart is None else apart
    for each in told.values():
        check_command(kind, dict(each))
    said = msgspec.json.encode(args).decode()
    await catalog.ask(command_id, crawl_id, kind, said, len(told), actor=actor, now_ms=now_ms)
    for partition, each in told.items():
        message = encode(Command(id=command_id, crawl=crawl_id, kind=kind, args=dict(each)))
        publish = partial(broker.publish_report, partition, "outcome", message, f"{command_id}.{partition}")
        await until_answered(publish)
