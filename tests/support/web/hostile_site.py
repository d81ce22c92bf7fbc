"""A site of hostile answers: one path for each way in which a server can be broken or malicious, all linked from `/`.

Each must end as one recorded outcome, within the crawler's limits and in bounded memory; `GOOD` pages must come through
beside them. Nothing here is held in memory whole: streams are made as they are sent.
"""

import asyncio
import random
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import ClassVar, Final

import msgspec

from tests.support.web.http_server import RawReply, Reply, Request, Respond

_HTML: Final = b"Content-Type: text/html; charset=utf-8\r\n"
_OK: Final = b"HTTP/1.1 200 OK\r\n"
_LAST: Final = b"Connection: close\r\n"
"""Said by an answer that a client can take for whole: the connection is closed after it, and a client that did not know
would lose its next request on it, for whatever URL that was."""
_FILLER: Final = b"<p>All work and no play makes the spider a dull one.</p>\n" * 300
MIB: Final = 1 << 20
BOMB_BYTES: Final = 10 * (1 << 30)
BIG_HEADER_BYTES: Final = 10 * MIB
MANY_LINKS: Final = 100_000

GOOD: Final = ("/good/1", "/good/2", "/good/3")
"""Ordinary pages among the hostile ones."""


async def _endless() -> AsyncIterator[bytes]:
    """A chunked page without end."""
    yield _OK + _HTML + b"Transfer-Encoding: chunked\r\n\r\n"
    while True:
        yield f"{len(_FILLER):x}\r\n".encode() + _FILLER + b"\r\n"


async def _endless_head() -> AsyncIterator[bytes]:
    """Header lines without end."""
    yield _OK
    number = 0
    while True:
        number += 1
        yield f"X-Line-{number}: {'x' * 200}\r\n".encode()
        if number % 100 == 0:
            await asyncio.sleep(0)


async def _big_header() -> AsyncIterator[bytes]:
    """One header of 10 MB before an ordinary page."""
    yield _OK + _HTML + _LAST + b"X-Big: "
    for _ in range(BIG_HEADER_BYTES // (64 * 1024)):
        yield b"x" * (64 * 1024)
    yield b"\r\nContent-Length: 2\r\n\r\nok"


def bomb_blocks() -> tuple[bytes, bytes, int]:
    """The start of a gzip stream, a block that unpacks to one MiB of zeros, and how often it is sent to make the bomb.

    After a full flush a deflate block refers to nothing before it, so that the same bytes may be sent again and again.
    """
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packer.compress(b"\0" * MIB)
    packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(b"\0" * MIB) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\x03", block, BOMB_BYTES // MIB


async def _gzip_bomb() -> AsyncIterator[bytes]:
    """About 10 MB that unpack to 10 GiB of zeros."""
    start, block, times = bomb_blocks()
    length = len(start) + len(block) * times
    yield _OK + _HTML + _LAST + f"Content-Encoding: gzip\r\nContent-Length: {length}\r\n\r\n".encode() + start
    for _ in range(times // 64):
        yield block * 64


async def _broken_gzip() -> AsyncIterator[bytes]:
    """A body said to be gzip that is not."""
    body = b"<a href='/good/1'>this was never packed</a>"
    yield _OK + _HTML + _LAST + f"Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def _slow_drip() -> AsyncIterator[bytes]:
    """A page that comes a byte at a time and never ends."""
    yield _OK + _HTML + b"Content-Length: 1000000\r\n\r\n"
    while True:
        yield b"<"
        await asyncio.sleep(0.1)


async def _slow_head() -> AsyncIterator[bytes]:
    """A head that comes a byte at a time and never ends."""
    yield _OK + b"X-Slow: "
    while True:
        yield b"x"
        await asyncio.sleep(0.1)


async def _silent() -> AsyncIterator[bytes]:
    """A connection that is accepted and never answered."""
    while True:
        await asyncio.sleep(3600)
        yield b""


async def _broken_chunks() -> AsyncIterator[bytes]:
    """A chunk whose size is no number."""
    yield _OK + _HTML + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nnot-hex\r\nworld\r\n0\r\n\r\n"


async def _cut_chunks() -> AsyncIterator[bytes]:
    """A chunked page that ends in the middle of a chunk."""
    yield _OK + _HTML + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nffff\r\nthe rest never comes"


async def _huge_chunk() -> AsyncIterator[bytes]:
    """A chunk that claims to be longer than any memory."""
    yield _OK + _HTML + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nhello\r\n"


async def _length_too_long() -> AsyncIterator[bytes]:
    """Content-Length promises more than comes."""
    yield _OK + _HTML + b"Content-Length: 5000\r\n\r\n<p>only this</p>"


async def _length_too_short() -> AsyncIterator[bytes]:
    """Content-Length promises less than comes."""
    yield _OK + _HTML + _LAST + b"Content-Length: 5\r\n\r\nhello and a great deal more than was promised"


async def _two_lengths() -> AsyncIterator[bytes]:
    """Two Content-Length headers that differ."""
    yield _OK + _HTML + _LAST + b"Content-Length: 5\r\nContent-Length: 7\r\n\r\nhello!!"


async def _negative_length() -> AsyncIterator[bytes]:
    """A negative Content-Length."""
    yield _OK + _HTML + b"Content-Length: -1\r\n\r\nhello"


async def _not_http() -> AsyncIterator[bytes]:
    """Bytes of some other protocol."""
    yield random.Random(5).randbytes(2000)


async def _nothing() -> AsyncIterator[bytes]:
    """The connection closes without a byte."""
    yield b""


async def _reset() -> AsyncIterator[bytes]:
    """The connection is reset in the middle of the body."""
    yield _OK + _HTML + b"Content-Length: 5000\r\n\r\n<p>the rest"


RAW: Final[dict[str, Callable[[], AsyncIterator[bytes]]]] = {
    "/endless": _endless,
    "/endless-head": _endless_head,
    "/big-header": _big_header,
    "/gzip-bomb": _gzip_bomb,
    "/broken-gzip": _broken_gzip,
    "/slow-drip": _slow_drip,
    "/slow-head": _slow_head,
    "/silent": _silent,
    "/broken-chunks": _broken_chunks,
    "/cut-chunks": _cut_chunks,
    "/huge-chunk": _huge_chunk,
    "/length-too-long": _length_too_long,
    "/length-too-short": _length_too_short,
    "/two-lengths": _two_lengths,
    "/negative-length": _negative_length,
    "/not-http": _not_http,
    "/nothing": _nothing,
    "/reset": _reset,
}
"""Answers that are wrong as HTTP, or never end."""

UNENDING: Final = ("/endless", "/endless-head", "/slow-drip", "/slow-head", "/silent")
"""Those of `RAW` that never end."""


def _whole(path: str) -> Reply | None:
    """Answers that are right as HTTP and wrong as a page."""
    html = (("Content-Type", "text/html; charset=utf-8"),)
    match path:
        case "/redirect-self":
            return Reply(302, (("Location", path),))
        case "/redirect-a":
            return Reply(302, (("Location", "/redirect-b"),))
        case "/redirect-b":
            return Reply(302, (("Location", "/redirect-a"),))
        case "/redirect-nowhere":
            return Reply(302)
        case "/redirect-junk":
            return Reply(302, (("Location", "http://[::bad/%zz\x01"),))
        case "/binary":
            return Reply(200, html, random.Random(7).randbytes(300_000))
        case "/charset-unknown":
            return Reply(200, (("Content-Type", "text/html; charset=klingon-8"),), b"<a href=/good/1>\xff\xfe\x80</a>")
        case "/charset-wrong":
            return Reply(200, html, b"<title>\xc3\x28 \xa0\xa1</title><a href='/good/2'>\xf0\x28\x8c\x28</a>")
        case "/deep-nesting":
            return Reply(200, html, b"<div>" * 200_000 + b"<a href='/good/3'>deep</a>")
        case "/many-links":
            links = "".join(f'<a href="/leaf/{number}">{number}</a>\n' for number in range(MANY_LINKS))
            return Reply(200, html, links.encode())
        case "/bad-links":
            return Reply(
                200,
                html,
                b"<a href='http://'>1</a><a href='http://[1'>2</a><a href='//'>3</a><a href='javascript:x'>4</a>"
                b"<a href='http://a b/'>5</a><a href='\x00'>6</a><a href='/%ff%zz'>7</a><a href='http://x:99999/'>8</a>"
                b"<a href='" + b"a/" * 50_000 + b"'>9</a><a href='data:text/html,x'>10</a><a href='ht\ntp:x'>11</a>",
            )
        case "/no-type":
            return Reply(200, (), b"<a href='/good/1'>a page that does not say what it is</a>")
        case "/status-999":
            return Reply(999, html, b"no such status")
    return None


WHOLE: Final = (
    "/redirect-self",
    "/redirect-a",
    "/redirect-nowhere",
    "/redirect-junk",
    "/binary",
    "/charset-unknown",
    "/charset-wrong",
    "/deep-nesting",
    "/many-links",
    "/bad-links",
    "/no-type",
    "/status-999",
)
"""Paths that answer in well-formed HTTP."""

HOSTILE: Final = (*RAW, *WHOLE)
"""Every hostile path that `/` links to."""


class HostileSite(msgspec.Struct, frozen=True, tag=True):
    """`/` links to every hostile path and to the good pages. The leaves of `/many-links` are closed by robots.txt."""

    hosts: ClassVar[int] = 1

    def open(self, origins: Sequence[str]) -> Respond:
        """The function that answers for this site."""
        html = (("Content-Type", "text/html; charset=utf-8"),)
        index = "".join(f'<p><a href="{path}">{path}</a>\n' for path in (*HOSTILE, *GOOD))

        def respond(request: Request) -> Reply | RawReply:
            path = request.target.partition("?")[0]
            if path == "/":
                return Reply(200, html, index.encode())
            if path == "/robots.txt":
                return Reply(200, (("Content-Type", "text/plain"),), b"User-agent: *\nDisallow: /leaf/\n")
            if path in GOOD:
                return Reply(200, html, f"<title>{path}</title><a href='/'>home</a>".encode())
            if path in RAW:
                return RawReply(200, RAW[path](), reset=path == "/reset")
            return _whole(path) or Reply(404, html, b"<title>Not found</title>")

        return respond
