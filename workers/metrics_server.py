"""Serves a worker's metrics over HTTP, at the path /metrics only. It reads them on the worker's event loop.

It is not a general web server: one response per connection, few connections at once, each for a bounded time.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from shared.domain.errors import Unusable
from shared.runtime.connections import AcceptedConnection, ConnectionLimit, accepting
from shared.runtime.supervise import Tasks
from shared.telemetry import exposed
from shared.tls import ServerTls

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = structlog.get_logger(__name__)

PATH: Final = "/metrics"
MAX_CONNECTIONS: Final = 16
HEAD_BYTES: Final = 8192
ANSWER_S: Final = 5.0
_TEXT: Final = "text/plain; charset=utf-8"


@asynccontextmanager
async def exposing(address: str, registry: "CollectorRegistry", tls: ServerTls | None = None) -> AsyncIterator[str]:
    """Serve metrics at `address` until the `with` block ends, and yield the bound address.

    `address` is `host:port`; port 0 means any free port. Raise Unusable if the address cannot be bound.
    """
    listener, connections = _listening(address), ConnectionLimit(0, MAX_CONNECTIONS)

    def protocol(connection: AcceptedConnection) -> asyncio.Protocol:
        reader = asyncio.StreamReader(HEAD_BYTES)
        return asyncio.StreamReaderProtocol(reader, partial(_serve, registry, connection))

    with listener:
        async with Tasks() as tasks:
            context = None if tls is None else tls.context
            tasks.start("metrics.accept", accepting(listener, connections, protocol, context))
            bound, number = listener.getsockname()[:2]
            try:
                yield f"[{bound}]:{number}" if ":" in bound else f"{bound}:{number}"
            finally:
                connections.shut()


def _listening(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        if not host:
            raise ValueError("it names no host")
        if not 0 <= int(port) < 1 << 16:
            raise ValueError("there is no such port")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host.strip("[]"), int(port)), family=family, backlog=128)
    except (OSError, ValueError, OverflowError) as error:
        raise Unusable(f"cannot listen at {address} for metrics ({error}): choose another with --metrics") from error


async def _serve(
    registry: "CollectorRegistry",
    connection: AcceptedConnection,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    try:
        async with asyncio.timeout(ANSWER_S):
            head = await reader.readuntil(b"\r\n\r\n")
            connection.requested()
            writer.write(answer(head, registry))
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    except (TimeoutError, EOFError, asyncio.LimitOverrunError, ConnectionError) as error:
        log.debug("metrics_request.dropped", error=repr(error))
    finally:
        connection.left()
        writer.transport.abort()


def answer(head: bytes, registry: "CollectorRegistry") -> bytes:
    """Return the whole HTTP response to the request with this head: the metrics, or an error such as 404."""
    line, *rest = head.decode("latin-1").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return _response("400 Bad Request", "this is no HTTP/1 request\n")
    method, target, _ = words
    if target.partition("?")[0] != PATH:
        return _response("404 Not Found", f"there is nothing but {PATH} here\n")
    if method not in ("GET", "HEAD"):
        return _response("405 Method Not Allowed", "it can only be read\n", "Allow: GET, HEAD\r\n")
    headers = dict(field.lower().split(":", 1) for field in rest if ":" in field)
    text, media_type = exposed(registry, headers.get("accept", "").strip())
    return _response("200 OK", text, media_type=media_type, body=method == "GET")


def _response(status: str, text: str | bytes, more: str = "", *, media_type: str = _TEXT, body: bool = True) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {len(data)}\r\n"
        f"Cache-Control: no-store\r\nConnection: close\r\n{more}\r\n"
    )
    return head.encode("latin-1") + (data if body else b"")
