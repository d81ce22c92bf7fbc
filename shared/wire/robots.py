"""Records of robots.txt as workers share them: their keys and their encoding."""

import msgspec
from blake3 import blake3

from shared.domain.web.robots import RobotsRecord
from shared.wire.messages import Malformed

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RobotsRecord).decode


def robots_key(origin: str) -> str:
    """Return the key of an origin's record, 32 characters for an origin of any length."""
    return blake3(origin.encode()).hexdigest(length=16)


def encode_robots(record: RobotsRecord) -> bytes:
    """Return the record's bytes."""
    return _encode(record)


def decode_robots(data: bytes) -> RobotsRecord:
    """Decode a shared record. Raise Malformed."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise Malformed(str(error)) from error
