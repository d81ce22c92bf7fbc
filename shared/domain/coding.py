"""Removing HTTP content codings under a limit on the result."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import brotli
import zstandard

_PIECE: Final = 64 * 1024
_MAX_CODINGS: Final = 5


@dataclass(frozen=True, slots=True)
class Decoded:
    """A body without its content coding. `truncated`: the limit cut it; `error`: where it could not be read on."""

    body: bytes
    truncated: bool = False
    error: str | None = None


def codings_of(content_encoding: Sequence[str]) -> tuple[str, ...]:
    """The codings of all Content-Encoding values, in the order they were applied, lower-cased, without identity."""
    names = (name.strip().lower() for value in content_encoding for name in value.split(","))
    return tuple(name for name in names if name and name != "identity")


def decoded(body: bytes, codings: Sequence[str], limit: int) -> Decoded:
    """`body` with `codings` undone, at most `limit` bytes; memory stays within about twice the limit.

    What was readable before an error is kept. A body that is not in the coding it claims is returned as it is, with
    the error, as browsers and replay tools do.
    """
    if len(codings) > _MAX_CODINGS:
        return Decoded(body[:limit], len(body) > limit, f"more than {_MAX_CODINGS} content codings")
    result = Decoded(body)
    for name in reversed(codings):
        reader = _READERS.get(name)
        if reader is None:
            return Decoded(result.body[:limit], len(result.body) > limit, f"unknown content coding {name!r}")
        result = _read(reader, name, result.body, limit)
        if result.error is not None:
            return result
    return result if len(result.body) <= limit else Decoded(result.body[:limit], truncated=True)


def _read(reader: "Callable[[bytes], Iterator[bytes]]", name: str, body: bytes, limit: int) -> Decoded:
    if not body:
        return Decoded(body)
    out = bytearray()
    try:
        for piece in reader(body):
            out += piece
            if len(out) > limit:
                return Decoded(bytes(out[:limit]), truncated=True)
    except (zlib.error, brotli.error, zstandard.ZstdError, EOFError) as failure:
        kept = bytes(out) if out else body[:limit]
        return Decoded(kept, error=f"{name}: {failure}")
    return Decoded(bytes(out))


def _gzip(body: bytes) -> Iterator[bytes]:
    rest = body
    while rest.startswith(b"\x1f\x8b") or rest is body:
        decompressor = zlib.decompressobj(31)
        yield from _inflated(decompressor, rest)
        rest = decompressor.unused_data


def _deflate(body: bytes) -> Iterator[bytes]:
    """zlib's format as the standard says, or bare deflate as some servers send."""
    wrapped = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return _inflated(zlib.decompressobj(15 if wrapped else -15), body)


def _inflated(decompressor: "zlib._Decompress", body: bytes) -> Iterator[bytes]:
    rest = body
    while not decompressor.eof:
        piece = decompressor.decompress(rest, _PIECE)
        rest = decompressor.unconsumed_tail
        if not piece and not rest and not decompressor.eof:
            raise EOFError("ends before its end mark")
        yield piece


def _brotli(body: bytes) -> Iterator[bytes]:
    decompressor = brotli.Decompressor()
    piece = decompressor.process(body, output_buffer_limit=_PIECE)
    while piece or not decompressor.is_finished():
        if not piece and decompressor.can_accept_more_data():
            raise EOFError("ends before its end mark")
        yield piece
        piece = b"" if decompressor.is_finished() else decompressor.process(b"", output_buffer_limit=_PIECE)


def _zstd(body: bytes) -> Iterator[bytes]:
    with zstandard.ZstdDecompressor(max_window_size=1 << 23).stream_reader(body, read_across_frames=True) as reader:
        while piece := reader.read(_PIECE):
            yield piece


_READERS: Final[dict[str, Callable[[bytes], Iterator[bytes]]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}
