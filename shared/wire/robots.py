"""The results of fetching robots.txt that workers share through the broker: their keys, and their encoding."""

from collections.abc import Callable
from typing import Final

import msgspec
from blake3 import blake3

from shared.domain.web.robots import RobotsRecord
from shared.wire.messages import decoder


def robots_key(origin: str) -> str:
    """Return the key under which workers share the robots.txt of an origin: a hash of the origin in 32 hex digits."""
    return blake3(origin.encode()).hexdigest(length=16)


encode_robots: Final[Callable[[RobotsRecord], bytes]] = msgspec.msgpack.Encoder().encode
decode_robots: Final[Callable[[bytes], RobotsRecord]] = decoder(RobotsRecord)
