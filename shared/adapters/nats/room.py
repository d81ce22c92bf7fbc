"""How full JetStream is, as far as its clients are told: streams that refuse what is beyond their bound, and the
account. What the server itself may store, and how full its disk is, it tells nobody here."""

from typing import Any, Final

from shared.adapters.nats.connection import Connection
from shared.adapters.nats.jetstream import demand
from shared.domain.watermarks import Level
from shared.wire import subjects

_OURS: Final = (subjects.REPORTS, subjects.visits_stream(""))


async def storage(connection: Connection, wait_s: float) -> Level | None:
    """The fullest of the account and of our streams that have a bound in bytes; None where nothing has.

    Streams that drop their oldest at their bound are full for most of their lives, and are not looked at.
    """
    account = await demand(connection, "INFO", None, wait_s)
    levels = [Level(int(account["storage"]), int(account["limits"]["max_storage"]))]
    offset, total = 0, 1
    while offset < total:
        page = await demand(connection, "STREAM.LIST", {"offset": offset}, wait_s)
        total, found = int(page["total"]), page["streams"] or []
        if not found:
            break
        offset += len(found)
        levels += [_level(stream) for stream in found if _refuses(stream["config"])]
    bounded = [level for level in levels if level.most > 0]
    return min(bounded, key=lambda level: level.free / level.most, default=None)


def _refuses(config: dict[str, Any]) -> bool:
    return config["name"].startswith(_OURS) and config.get("discard") == "new"


def _level(stream: dict[str, Any]) -> Level:
    return Level(int(stream["state"]["bytes"]), int(stream["config"].get("max_bytes", -1)))
