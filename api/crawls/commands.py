"""Publish commands to the owners of partitions. A command is stored durably, and applied in order and once."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from shared.domain.frontier.commands import CommandKind, check_command
from shared.domain.ids import CrawlId, Partition
from shared.domain.reads.declared import Actor
from shared.ports.broker import Broker
from shared.ports.catalog import Catalog
from shared.runtime.retry import until_answered
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
    args_by_partition: Mapping[Partition, Mapping[str, Any]] | None = None,
) -> None:
    """Record the requested command in the catalog, then publish it to `partitions`. On return it is stored durably.

    - `command_id`: an owner applies an id once. So after an interruption the call may be repeated with the same id.
    - `args`: the arguments of the command, the same in each partition.
    - `args_by_partition`: the arguments for each partition, if they differ. Then only the partitions in it receive the
      command. `partitions` is ignored, and `args` is only recorded in the catalog.
    """
    if args_by_partition is None:
        args_by_partition = dict.fromkeys(partitions, args)
    for each in args_by_partition.values():
        check_command(kind, dict(each))
    recorded_args = msgspec.json.encode(args).decode()
    await catalog.ask(command_id, crawl_id, kind, recorded_args, len(args_by_partition), actor=actor, now_ms=now_ms)
    for partition, each in args_by_partition.items():
        message = encode(Command(id=command_id, crawl=crawl_id, kind=kind, args=dict(each)))
        publish = partial(broker.publish_command, partition, message, f"{command_id}.{partition}")
        await until_answered(publish)
