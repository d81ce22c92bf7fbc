"""Records of robots.txt as workers share them: under which key, and in which form."""

import msgspec
from blake3 import blake3

from shared.domain.robots import RobotsRecord
from shared.wire.messages import Malformed

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RobotsRecord).decode


def robots_key(origin: str) -> str:
    """The key of an origin's record, of bounded length whatever the origin's."""
    return blake3(origin.encode()).hexdigest(length=16)


def encode_robots(record: RobotsRecord) -> bytes:
    """The record's bytes."""
    return _encode(record)


def decode_robots(data: bytes) -> RobotsRecord:
    """A shared record. Raises Malformed."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise Malformed(str(error)) from error
