"""Remove content codings (gzip, deflate, br, zstd) with bounded output. No I/O.

A body may have several codings, one inside the other. A chain of generators removes them, one generator for each
coding. Each yields at most `cap` bytes, in short pieces, even from a decompression bomb. It decodes at most MAX_MEMBERS
gzip members or zstd frames.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

import brotli
import zstandard
from isal import isal_zlib
from msgspec import Struct

_PIECE: Final = 256 * 1024
_MAX_CODINGS: Final = 4
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_WINDOW: Final = 8 * 1024 * 1024
"""The largest window that a zstd content coding may use (RFC 9659)."""

# A block has at least 4 bytes and decodes to at most 128 KiB.
_ZSTD_STEP: Final = 128
"""How many bytes of zstd data are given to the library at a time. They decode to at most 4 MiB."""
_ZSTD_MAGICS: Final = (b"\x28\xb5\x2f\xfd", *(bytes((low, 0x2A, 0x4D, 0x18)) for low in range(0x50, 0x60)))
"""The magic numbers of zstd frames (RFC 8878): that of an ordinary frame, and those of skippable frames."""
_STEP: Final = 64 * 1024
_GZIP_STEP: Final = 16 * 1024
"""How many bytes of gzip data are given to the library at a time. The number is small, because at the end of a member
the library copies all bytes that follow."""
MAX_MEMBERS: Final = 10_000
"""How many gzip members or zstd frames a coding of a body may have. The data of further ones is not decoded.

Members without data cost time and add nothing to the output, so that the cap does not bound them."""

_InflateError: Final[type[Exception]] = isal_zlib.IsalError  # type: ignore[assignment]  # its stub has an instance

Stage = Callable[[Iterator[bytes]], Iterator[bytes]]


class Decoded(Struct, frozen=True):
    """A body without its content codings.

    - `data`: the decoded body. After an error, only what came before the error. If a coding is unknown, or there are
      too many, the body as received.
    - `truncated`: `data` has only the first `cap` bytes.
    - `error`: one line for people on what is wrong with the coding. None if it is valid.
    """

    data: bytes
    error: str | None = None
    truncated: bool = False


class _Broken(Exception):
    """The encoded data is invalid; the text has the reason."""


def decode(body: bytes, content_encoding: str, cap: int) -> Decoded:
    """Return `body` without the codings in `content_encoding` (the header's value), at most `cap` bytes.

    If a coding is unknown, or there are more than _MAX_CODINGS, return the body as received, with an error. If a coding
    has more than MAX_MEMBERS, return the data of the first ones, with an error.

    A body may have further bytes after the end of the encoded data. After gzip, deflate and zstd data they are ignored.
    After br data they are usually an error.
    """
    # The br library rejects further bytes in the piece (_STEP bytes) that has the end. Later pieces are ignored.
    if not body or not _names(content_encoding):
        return Decoded(body[:cap], truncated=len(body) > cap)
    decoding = Decoding((body[start : start + _STEP] for start in range(0, len(body), _STEP)), content_encoding, cap)
    data = b"".join(decoding)
    return Decoded(data, decoding.error, decoding.truncated)


class Decoding:
    """Removes content codings as `decode` does, from a body that comes in pieces.

    Iterate over it once for the decoded pieces. Afterwards `error` and `truncated` have the same meaning as in
    `Decoded`.
    """

    def __init__(self, pieces: Iterator[bytes], content_encoding: str, cap: int) -> None:
        self.error: str | None = None
        self.truncated = False
        names = _names(content_encoding)
        if unknown := [name for name in names if name not in _STAGES]:
            self.error, names = f"unknown content coding {unknown[0][:40]!r}", []
        elif len(names) > _MAX_CODINGS:
            self.error, names = f"{len(names)} content codings, {_MAX_CODINGS} at most", []
        self._pieces = pieces
        self._stages: list[Stage] = [_STAGES[name] for name in reversed(names)] or [iter]
        self._budgets = [_Budget(cap) for _ in self._stages]

    def __iter__(self) -> Iterator[bytes]:
        pieces = self._pieces
        for stage, budget in zip(self._stages, self._budgets, strict=True):
            pieces = budget.spend(stage(pieces))
        broken = None
        try:
            yield from pieces
        except _Broken as error:
            broken = str(error)
        self.truncated = any(budget.exceeded for budget in self._budgets)
        # An exceeded budget starves the next stage, which then reports an early end. So report only the truncation.
        if broken is not None and not self.truncated:
            self.error = broken


def _names(content_encoding: str) -> list[str]:
    """Return the codings named in the header, in the order in which the server applied them, without `identity`."""
    return [name for part in content_encoding.lower().split(",") if (name := part.strip()) not in ("", "identity")]


class _Budget:
    """Passes on the first `left` bytes of the pieces given to it. `exceeded`: it was given more bytes than that."""

    __slots__ = ("exceeded", "left")

    def __init__(self, left: int) -> None:
        self.left = left
        self.exceeded = False

    def spend(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if len(piece) > self.left:
                self.exceeded = True
                if self.left:
                    yield piece[: self.left]
                return
            self.left -= len(piece)
            yield piece


def _gzip(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the decoded data of all gzip members. After a member, bytes without the magic number are ignored.

    Raise _Broken if the data is invalid, ends within a member or has more than MAX_MEMBERS.
    """
    member, members = isal_zlib.decompressobj(31), 1
    begun = b""
    for piece in pieces:
        for start in range(0, len(piece), _GZIP_STEP):
            data, begun = begun + piece[start : start + _GZIP_STEP], b""
            while data:
                if member.eof:
                    if data == _GZIP_MAGIC[:1]:
                        begun = data
                        break
                    if not data.startswith(_GZIP_MAGIC):
                        return
                    if members == MAX_MEMBERS:
                        raise _Broken(f"gzip: more than {MAX_MEMBERS} members")
                    member, members = isal_zlib.decompressobj(31), members + 1
                try:
                    yield from _inflate(member, data)
                except _InflateError as wrong:
                    raise _Broken(f"gzip: {wrong}") from wrong
                data = member.unused_data
    if begun or not member.eof:
        raise _Broken("gzip: the data ends early")


def _deflate(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the decoded data of the coding `deflate`: zlib format (RFC 9110), or raw deflate, which some servers send.

    The first two bytes show which format it is.
    """
    head = b""
    for piece in pieces:
        head += piece
        if len(head) > 1:
            break
    is_zlib = len(head) > 1 and head[0] & 0x0F == 8 and int.from_bytes(head[:2], "big") % 31 == 0
    stream = isal_zlib.decompressobj(15 if is_zlib else -15)
    try:
        for data in chain((head,), pieces):
            yield from _inflate(stream, data)
            if stream.eof:
                return
    except _InflateError as wrong:
        raise _Broken(f"deflate: {wrong}") from wrong
    raise _Broken("deflate: the data ends early")


def _inflate(stream: Any, data: bytes) -> Iterator[bytes]:
    """Yield the output of the decompressor `stream` for `data`, in pieces of at most `_PIECE` bytes."""
    while True:
        out = stream.decompress(data, _PIECE)
        if out:
            yield out
        data = stream.unconsumed_tail
        if stream.eof or not (data or len(out) == _PIECE):
            return


def _brotli(pieces: Iterator[bytes]) -> Iterator[bytes]:
    stream = brotli.Decompressor()
    try:
        for data in pieces:
            yield (out := stream.process(data, output_buffer_limit=_PIECE))
            # The decompressor may keep output even if it accepts more data.
            while not stream.is_finished() and (out or not stream.can_accept_more_data()):
                yield (out := stream.process(b"", output_buffer_limit=_PIECE))
            if stream.is_finished():
                return
    except brotli.error as wrong:
        raise _Broken("br: the data is not valid") from wrong
    raise _Broken("br: the data ends early")


def _zstd(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the decoded data of all zstd frames. Each frame begins with a magic number of 4 bytes.

    After a frame there are three cases:
    - A magic number follows: decode the next frame.
    - Only the first bytes of a magic number follow, and then the data ends: raise _Broken.
    - Other bytes follow: ignore the rest of the data.

    Raise _Broken also if the data is invalid, ends within a frame or has more than MAX_MEMBERS frames.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    frame, frames = decompressor.decompressobj(), 1
    begun = b""
    try:
        for piece in pieces:
            # The library does not bound the output of a call, so each call gets little input.
            for start in range(0, len(piece), _ZSTD_STEP):
                data, begun = begun + piece[start : start + _ZSTD_STEP], b""
                while data:
                    if frame.eof:
                        if len(data) < len(_ZSTD_MAGICS[0]) and any(magic.startswith(data) for magic in _ZSTD_MAGICS):
                            begun = data
                            break
                        if not data.startswith(_ZSTD_MAGICS):
                            return
                        if frames == MAX_MEMBERS:
                            raise _Broken(f"zstd: more than {MAX_MEMBERS} frames")
                        frame, frames = decompressor.decompressobj(), frames + 1
                    yield frame.decompress(data)
                    data = frame.unused_data
    except zstandard.ZstdError as wrong:
        raise _Broken(f"zstd: {wrong}") from wrong
    if begun or not frame.eof:
        raise _Broken("zstd: the data ends early")


_STAGES: Final[dict[str, Stage]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}
