"""A small HTTP/1.1 server for tests, which serves any site and logs every exchange with its exact times.

It runs on asyncio's own loop on purpose: there `transport.write` calls send() at once, which makes the logged end of a
response the real one; uvloop would put the send off to the end of the loop's turn.
"""

import asyncio
import os
import select
import selectors
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from tests.support.web.exchange_log import Exchange, line_of

HELD_BACK: Final = 1024
AT_ONCE: Final = 64 * 1024
MAX_HEAD: Final = 256 * 1024
TICK_S: Final = 0.02
REASONS: Final = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class Request:
    """A request head; `headers` has lower-case names, the last value wins. `host` counts the site's hosts from 0."""

    host: int
    method: str
    target: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Reply:
    """A well-formed response, sent after `delay_s` with a Content-Length of its own."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RawReply:
    """Bytes sent as they come, head included; then the connection is closed (`reset`: by RST). `status` is logged.

    Bytes that a client can take for a whole answer say `Connection: close`, or the connection `keeps` open: for
    `idle_s` without a request, or for as long as the client wants (0).
    """

    status: int
    stream: AsyncIterator[bytes]
    reset: bool = False
    keeps: bool = False
    idle_s: float = 0.0


Respond = Callable[[Request], Reply | RawReply]


class IdleSelector(selectors.DefaultSelector):
    """A selector that records when its loop was last idle, and when the loop's current turn began.

    Both are CLOCK_MONOTONIC nanoseconds. At `idle_ns` the loop had handled all that clients had sent or closed: no
    callback was ready, and a look at all sockets, which began then, found nothing. An empty result of a wait does not
    prove that: a stop of the process interrupts it. No wait is longer than TICK_S, so that an idle loop looks often.
    """

    idle_ns = 0
    turn_ns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        looked_ns = time.monotonic_ns()
        events = super().select(0)
        if not events and timeout != 0:
            self.idle_ns = looked_ns
            events = super().select(TICK_S if timeout is None else min(timeout, TICK_S))
        self.turn_ns = time.monotonic_ns()
        return events


class ExchangeLog:
    """Appends exchanges to a file, each in one write, so that a reader sees whole lines soon.

    The loop of the server runs on `selector`, from which the log has its times.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.selector = IdleSelector()

    def add(self, exchange: Exchange) -> None:
        os.write(self._fd, line_of(exchange))

    def close(self) -> None:
        os.close(self._fd)


class Gate:
    """How many pages are still answered; requests beyond that wait until more may be. robots.txt passes always."""

    def __init__(self) -> None:
        self._left: int | None = None
        self._more = asyncio.Event()

    def open(self, pages: int | None) -> None:
        """From now on answer so many more, or all."""
        self._left = pages
        self._more.set()

    def passes(self, target: str) -> bool:
        """Whether this request is answered now; if so, it is counted."""
        if self._left is None or target == "/robots.txt":
            return True
        passes = self._left > 0
        self._left -= passes
        return passes

    async def passed(self, target: str) -> None:
        """Wait until the request may be answered."""
        while not self.passes(target):
            self._more.clear()
            await self._more.wait()


class Connection(asyncio.Protocol):
    """One client connection: requests are answered one after the other, in the order they came."""

    _numbers = 0

    def __init__(self, name: str, index: int, respond: Respond, log: ExchangeLog, gate: Gate) -> None:
        Connection._numbers += 1
        self._number = Connection._numbers
        self._name, self._index, self._respond, self._log, self._gate = name, index, respond, log, gate
        self._buffer = bytearray()
        self._skip = 0
        self._open: Exchange | None = None
        self._sent = 0
        self._there_ns = 0
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=0)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        # The last bytes were sent in this turn, and the client may have read them before now.
        turn_ns = self._log.selector.turn_ns
        if not self._gone():
            self._there_ns = turn_ns
        self._writable.set()

    def eof_received(self) -> None:
        # Not a close, which would wait until all is sent: the loop must not be idle before the end is logged.
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        if self._task is not None:
            self._task.cancel()
        self._finish(complete=False)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._open is None:
            self._next(time.monotonic_ns())
        elif len(self._buffer) > MAX_HEAD:
            self._transport.abort()

    def _next(self, now: int) -> None:
        """Starts the next exchange if its head is there."""
        while self._open is None and not self._transport.is_closing():
            if self._skip:
                dropped = min(self._skip, len(self._buffer))
                del self._buffer[:dropped]
                self._skip -= dropped
            end = -1 if self._skip else self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._buffer[:end]).decode("latin-1")
            del self._buffer[: end + 4]
            try:
                self._begin(head, now)
            except ValueError:
                self._transport.abort()

    def _begin(self, head: str, now: int) -> None:
        first, *lines = head.split("\r\n")
        method, target, version = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._skip = int(headers.get("content-length", "0"))
        self._sent = 0
        if self._idle is not None:
            self._idle.cancel()
        reply = self._respond(Request(self._index, method, target, headers))
        self._open = Exchange(
            self._name, method, target, headers.get("user-agent", ""), reply.status, self._number, now, 0
        )
        closes = version == "HTTP/1.0" or headers.get("connection", "").lower() == "close"
        if self._gate.passes(target):
            self._answer(reply, method, target, closes)
        else:
            self._task = asyncio.create_task(self._held(reply, method, target, closes), name=f"held:{target[:40]}")

    def _there(self) -> bool:
        """Note when the client was still there, and return True; abort the connection that it has closed.

        What is sent after a look that found the client there was not sent after the client left.
        """
        looked_ns = time.monotonic_ns()
        if self._transport.is_closing():
            return False
        if self._gone():
            self._transport.abort()
            return False
        self._there_ns = looked_ns
        return True

    def _gone(self) -> bool:
        """Return True if the client has closed, even if what it sent before has not been read yet."""
        looking = select.poll()
        looking.register(self._transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(looking.poll(0))

    async def _held(self, reply: Reply | RawReply, method: str, target: str, closes: bool) -> None:
        await self._gate.passed(target)
        self._task = None
        self._answer(reply, method, target, closes)

    def _answer(self, reply: Reply | RawReply, method: str, target: str, closes: bool) -> None:
        if isinstance(reply, RawReply):
            self._task = asyncio.create_task(self._send_raw(reply), name=f"raw:{target[:40]}")
            return
        payload = _payload(reply, closes, with_body=method != "HEAD")
        if reply.delay_s or len(payload) > AT_ONCE:
            self._task = asyncio.create_task(
                self._send_later(payload, reply.delay_s, closes), name=f"send:{target[:40]}"
            )
            return
        if not self._there():
            return
        self._write(payload)
        if self._writable.is_set():
            self._done(closes)
        else:
            self._task = asyncio.create_task(self._drained(closes), name=f"drain:{target[:40]}")

    def _write(self, data: bytes) -> None:
        self._transport.write(data)
        self._sent += len(data)

    async def _send_later(self, payload: bytes, delay_s: float, closes: bool) -> None:
        if delay_s:
            await asyncio.sleep(delay_s)
        if len(payload) > AT_ONCE:
            self._write(payload[:-HELD_BACK])
            await self._writable.wait()
            payload = payload[-HELD_BACK:]
        if self._there():
            self._write(payload)
            await self._drained(closes)

    async def _drained(self, closes: bool) -> None:
        await self._writable.wait()
        self._task = None
        self._done(closes)

    async def _send_raw(self, reply: RawReply) -> None:
        if not self._there():
            return
        async for chunk in reply.stream:
            # A client may take these bytes for the last ones, so the end is not later than they were sent.
            if not self._there():
                return
            self._write(chunk)
            await self._writable.wait()
            # The wait may return at once for ever: let the loop see that the client has gone.
            await asyncio.sleep(0)
        if self._transport.is_closing():
            return
        self._task = None
        if reply.reset:
            self._finish(complete=True)
            self._transport.abort()
        else:
            self._done(closes=not reply.keeps)
            if reply.idle_s and self._open is None:
                self._idle = asyncio.get_running_loop().call_later(reply.idle_s, self._transport.close)

    def _done(self, closes: bool) -> None:
        self._finish(complete=not self._transport.is_closing())
        if closes:
            self._transport.close()
        elif self._task is None and self._buffer:
            self._next(time.monotonic_ns())

    def _finish(self, *, complete: bool) -> None:
        """Log the open exchange. A client that broke it off left after both times that its end may be taken from."""
        if self._open is not None:
            opened, self._open = self._open, None
            ended_ns = self._there_ns if complete else max(self._there_ns, self._log.selector.idle_ns)
            self._log.add(
                Exchange(
                    opened.host,
                    opened.method,
                    opened.path,
                    opened.user_agent,
                    opened.status,
                    opened.connection,
                    opened.begun_ns,
                    ended_ns,
                    complete,
                    self._sent,
                )
            )


def _payload(reply: Reply, closes: bool, *, with_body: bool) -> bytes:
    head = [f"HTTP/1.1 {reply.status} {REASONS.get(reply.status, 'Unknown')}"]
    head += [f"{name}: {value}" for name, value in reply.headers]
    if reply.status != 304:
        head.append(f"Content-Length: {len(reply.body)}")
    if closes:
        head.append("Connection: close")
    return "\r\n".join([*head, "", ""]).encode("latin-1") + (reply.body if with_body else b"")


def listen_on(addresses: list[str]) -> tuple[int, list[socket.socket]]:
    """One free port bound on every address, in their order; tries other ports when one is taken on some address."""
    for _ in range(50):
        bound: list[socket.socket] = []
        port = 0
        try:
            for address in addresses:
                sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                bound.append(sock)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address, port))
                port = sock.getsockname()[1]
        except OSError:
            for sock in bound:
                sock.close()
            continue
        for sock in bound:
            sock.listen(1024)
            sock.setblocking(False)
        return port, bound
    raise OSError(f"no port is free on all of {len(addresses)} loopback addresses")
