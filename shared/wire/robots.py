"""The results of fetching robots.txt that workers share through the broker: their keys and their encoding."""

import msgspec
from blake3 import blake3

from shared.domain.web.robots import RobotsRecord
from shared.wire.messages import Malformed

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RobotsRecord).decode


def robots_key(origin: str) -> str:
    """Return the key under which workers share an origin's robots.txt: 32 characters for an origin of any length."""
    return blake3(origin.encode()).hexdigest(length=16)


def encode_robots(record: RobotsRecord) -> bytes:
    """Return the record of a robots.txt as MessagePack bytes."""
    return _encode(record)


def decode_robots(data: bytes) -> RobotsRecord:
    """Return the record of a robots.txt in `data`. Raise Malformed if it holds none."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise Malformed(str(error)) from error
