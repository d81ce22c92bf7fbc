"""How full JetStream is: the account, and the streams that refuse messages beyond their bound.

The server reports neither its own storage limit nor the state of its disk to clients.
"""

from typing import Any, Final

from shared.adapters.nats.connection import NatsConnection
from shared.adapters.nats.jetstream import demand
from shared.domain.ops.watermarks import FillLevel
from shared.wire import subjects

_OURS: Final = (subjects.REPORTS, subjects.visits_stream(""))


async def storage(connection: NatsConnection, wait_s: float) -> FillLevel | None:
    """Return the level of the fullest among the account and our streams with a bound in bytes, or None without any.

    Streams that drop their oldest messages at the bound are ignored: they are full most of the time.
    """
    account = await demand(connection, "INFO", None, wait_s)
    levels = [FillLevel(int(account["storage"]), int(account["limits"]["max_storage"]))]
    offset, total = 0, 1
    while offset < total:
        page = await demand(connection, "STREAM.LIST", {"offset": offset}, wait_s)
        total, listed = int(page["total"]), page["streams"] or []
        if not listed:
            break
        offset += len(listed)
        levels += [_level(stream) for stream in listed if _refuses(stream["config"])]
    bounded = [level for level in levels if level.capacity > 0]
    return min(bounded, key=lambda level: level.free / level.capacity, default=None)


def _refuses(config: dict[str, Any]) -> bool:
    return config["name"].startswith(_OURS) and config.get("discard") == "new"


def _level(stream: dict[str, Any]) -> FillLevel:
    return FillLevel(int(stream["state"]["bytes"]), int(stream["config"].get("max_bytes", -1)))
