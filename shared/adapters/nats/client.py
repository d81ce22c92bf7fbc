"""The client library of NATS with fixes, for connections in clear text and over TLS.

The client library begins TLS only if the server's greeting, which is in clear text, requires it. An attacker in the
server's place could omit that, and would receive the token and all other data. The library also waits without a bound
for the end of a connection that it gave up, before it tries another server. A client that is closed while it connects
may stay connected: before Python 3.12 asyncio.wait_for drops a cancellation that arrives together with the result.
"""

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import ParseResult

from nats.aio.client import PING_PROTO, Client
from nats.aio.transport import TcpTransport
from nats.errors import Error as NatsError

from shared.domain.errors import Unusable
from shared.tls import TlsSettings, client_context

SCHEME: Final = "tls://"
_LAST_BYTES_S: Final = 2.0
_CANCEL_S: Final = 0.1


def demanded(urls: Sequence[str], tls: TlsSettings | None) -> TlsSettings | None:
    """Return the TLS files to connect with, or None if neither `tls` nor a URL of `urls` requires TLS.

    Raise Unusable if TLS is required but a URL does not begin with `tls://`, or if a file cannot be used.
    """
    secure = [url for url in urls if url.startswith(SCHEME)]
    if tls is None and not secure:
        return None
    if len(secure) < len(urls):
        clear = next(url for url in urls if url not in secure)
        shown = clear.rpartition("@")[2].rpartition("://")[2]
        raise Unusable(f"TLS is configured, but the broker's endpoint {shown} does not begin with {SCHEME}")
    files = tls or TlsSettings()
    client_context(files)
    return files


class _Line(TcpTransport):
    """A connection that is closed within two seconds, by force if necessary.

    Without this bound the wait may last for ever in two cases. A server that hangs does not read the last bytes. After
    an interrupted handshake the library's stream never receives the end of the connection.
    """

    closing = False
    """Set before the last bytes: a failure to send them is no error then, and no new connection is made."""

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """Connect. Raise CancelledError if the client is closing: the task's own cancellation may have been dropped."""
        self._refuse_when_closing()
        await super().connect(uri, buffer_size, connect_timeout)
        self._refuse_when_closing()

    def write(self, payload: bytes) -> None:
        """Send bytes. Raise ConnectionResetError if the connection has ended."""
        try:
            super().write(payload)  # type: ignore[no-untyped-call]  # says no types
        except RuntimeError as error:
            self._ended(error)

    def writelines(self, payload: Sequence[bytes]) -> None:
        """Send bytes. Raise ConnectionResetError if the connection has ended."""
        try:
            super().writelines(payload)  # type: ignore[no-untyped-call]  # says no types
        except RuntimeError as error:
            self._ended(error)

    async def drain(self) -> None:
        """Wait until most bytes are sent. Raise OSError if the connection has ended."""
        try:
            await super().drain()  # type: ignore[no-untyped-call]  # says no types
        except OSError:
            if not self.closing:
                raise

    def _ended(self, error: RuntimeError) -> None:
        if not self.closing:
            raise ConnectionResetError(str(error)) from error

    def _refuse_when_closing(self) -> None:
        if self.closing:
            self.abort()
            raise asyncio.CancelledError

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """Begin TLS, and connect the new stream with its transport.

        Otherwise its unread data would grow without a bound, and the end of the connection would count as half-closed.
        """
        await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        if self._io_writer is not None:
            transport = self._io_writer.transport
            stream = transport.get_protocol()
            if stream is not None:  # A transport that has ended by now has none.
                stream.connection_made(transport)
        self._refuse_when_closing()

    async def wait_closed(self) -> None:
        ended = asyncio.ensure_future(super().wait_closed())  # type: ignore[no-untyped-call]  # says no types
        try:
            await asyncio.wait({ended}, timeout=_LAST_BYTES_S)
        finally:
            self.abort()
            if not ended.done():
                ended.cancel()
        if ended.done() and not ended.cancelled():
            ended.result()

    def abort(self) -> None:
        """End the connection now. Data that was not sent is lost."""
        for writer in (self._io_writer, self._bare_io_writer):
            if writer is not None:
                writer.transport.abort()

    def __bool__(self) -> bool:
        """Return True always: the library would replace a false transport with its own."""
        return True


class PlainClient(Client):
    """The library's client with fixes, for connections in clear text.

    - `close` ends all tasks and connections, including those of failed attempts.
    - A PING is sent after all earlier messages, and a late PONG does no harm.
    """

    def __init__(self) -> None:
        super().__init__()
        self._transport = self._line = _Line()  # type: ignore[no-untyped-call]  # says no types
        self._connecting: asyncio.Task[Any] | None = None
        self._disconnecting: asyncio.Task[Any] | None = None

    async def connect(self, *servers: Any, **options: Any) -> None:
        """Connect as the library's client does. `close` cancels a running attempt and its task."""
        self._connecting = asyncio.current_task()
        try:
            await super().connect(*servers, **options)
        finally:
            self._connecting = None

    async def close(self) -> None:
        """Send the pending data within two seconds, and close.

        End the connection and every task of this client, in any state of the client. A cancelled caller waits for less
        time, but everything is ended all the same.
        """
        forced = asyncio.get_running_loop().call_later(_LAST_BYTES_S, self._line.abort)
        self._line.closing = True  # Otherwise an error of the last bytes would stop the library's close halfway.
        subscribed = self._running(*(each._wait_for_msgs_task for each in self._subs.values()))
        try:
            await _end(self._changing())
            if self._flush_queue is not None:  # The library asserts this, and connect() may not have come so far.
                await super().close()
        finally:
            forced.cancel()
            self._line.abort()
            self._status = Client.CLOSED
            await _end(subscribed | self._changing() | self._connected())

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Close as the library does, and keep the task: if the server refuses us, the library starts one untracked."""
        if self._disconnecting is not None:
            return
        self._disconnecting = asyncio.current_task()
        try:
            await super()._close(status, do_cbs)
        finally:
            self._disconnecting = None

    def _changing(self) -> set[asyncio.Task[Any]]:
        """Return the tasks that connect or disconnect and that have not ended."""
        return self._running(self._connecting, self._reconnection_task, self._disconnecting)

    def _connected(self) -> set[asyncio.Task[Any]]:
        """Return the tasks that the library runs for one connection and that have not ended."""
        return self._running(self._reading_task, self._ping_interval_task, self._flusher_task)

    def _running(self, *tasks: asyncio.Task[Any] | None) -> set[asyncio.Task[Any]]:
        """Return the tasks that have not ended, without the current one."""
        return {task for task in tasks if task is not None and not task.done()} - {asyncio.current_task()}

    async def _process_connect_init(self) -> None:
        """Do the handshake with the server. If it fails, close the connection, which the library would leave open.

        Raise only errors that the library treats as a failed attempt: after any other it would never retry. Raise
        CancelledError if the client was closed meanwhile.
        """
        await _end(self._connected())  # The library drops these tasks now, so close() could not end them.
        # Bytes for the earlier connection would reach a server that may have another store by now.
        self._pending, self._pending_data_size = [], 0
        try:
            await super()._process_connect_init()
            if self._line.closing:
                raise asyncio.CancelledError
        except BaseException as error:
            self._line.abort()
            if self._line.closing:
                self._status = Client.CLOSED
                for task in self._connected():
                    task.cancel()
                if isinstance(error, Exception):
                    raise asyncio.CancelledError from error
            if not isinstance(error, Exception) or isinstance(error, OSError | NatsError | TimeoutError):
                raise
            raise NatsError(f"the server's greeting failed: {error!r}") from error

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        """Write the pending data, and reconnect if the connection has ended.

        The library's task for this ends at a reconnect. After that every caller writes itself, and would get the error.
        """
        try:
            return await super()._flush_pending(force_flush)
        except OSError as error:
            await self._error_cb(error)
            await self._process_op_err(error)
            return None

    async def ping(self, answered: asyncio.Future[Any]) -> None:
        """Send a PING after all earlier messages. `answered` gets a result with the server's PONG.

        It gets none if the connection breaks.
        """
        await self._send_ping(answered)

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        """Send a PING after all earlier messages.

        The library's PING overtakes pending data. Then the server's answer would confirm a subscription, or its end,
        that has not reached the server.
        """
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        await self._send_command(PING_PROTO)
        await self._flush_pending()

    async def _process_pong(self) -> None:
        """Give a PONG to the oldest PING, even if its caller has given up.

        The library's method fails in that case and ends the reading task. The client would still count as connected,
        but receive nothing more.
        """
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()


class SecureClient(PlainClient):
    """The library's client with fixes, for TLS. It reads the TLS files again for every connection.

    So a replaced certificate is used from the next connection on.
    """

    def __init__(self, files: TlsSettings) -> None:
        super().__init__()
        self._files = files

    @property
    def ssl_context(self) -> ssl.SSLContext:
        try:
            return client_context(self._files)
        except Unusable as error:  # The files are being replaced. The library retries only after its own errors.
            raise NatsError(str(error)) from error

    def _connect_command(self) -> bytes:
        """Return the first message, which has the credentials. Raise NatsError if the server does not require TLS."""
        if not self._server_info.get("tls_required"):
            raise NatsError("the server does not demand TLS, and nothing is sent to it without")
        return super()._connect_command()


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel tasks of the library until each has ended. One cancellation may not suffice: the library may catch it."""
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=_CANCEL_S)
