"""The client library of NATS with fixes, for connections in clear text and over TLS.

The fixes are for these faults of the library:
- It begins TLS only if the server's greeting, which is in clear text, requires it. An attacker in the server's place
  could omit that, and would receive the token and all other data.
- It waits without a limit for the end of a broken connection before it tries another server.
- A client that is closed while it connects may stay connected. Before Python 3.12, asyncio.wait_for drops a
  cancellation that arrives together with the result.
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
    """Return the TLS files to connect with, or None for a connection in clear text.

    TLS is required if `tls` is given, or if at least one URL begins with `tls://`. Every URL must then begin with
    `tls://`. Raise Unusable if a URL does not, or if a TLS file cannot be used.
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
    """The library's TCP or TLS connection, with fixes. Closing it takes at most two seconds: then it is aborted."""

    closing = False
    """True from the moment when the client begins to close. From then on, a failure to send bytes is no error, and no
    new connection is made."""

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """Connect to the server. If the client is closing, abort the connection and raise CancelledError."""
        self._refuse_when_closing()
        await super().connect(uri, buffer_size, connect_timeout)
        self._refuse_when_closing()

    def write(self, payload: bytes) -> None:
        """Send bytes. Raise ConnectionResetError if the connection has ended, unless the client is closing."""
        try:
            super().write(payload)  # type: ignore[no-untyped-call]  # says no types
        except RuntimeError as error:
            self._ended(error)

    def writelines(self, payload: Sequence[bytes]) -> None:
        """Send bytes. Raise ConnectionResetError if the connection has ended, unless the client is closing."""
        try:
            super().writelines(payload)  # type: ignore[no-untyped-call]  # says no types
        except RuntimeError as error:
            self._ended(error)

    async def drain(self) -> None:
        """Wait until the buffer of unsent bytes has room for more (`asyncio.StreamWriter.drain`).

        Raise OSError if the connection has ended, unless the client is closing.
        """
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
        """Begin TLS on the connection, and attach the new stream to its transport. The library omits the second step.

        If the client is closing, raise CancelledError.
        """
        # Without the second step, the stream would buffer unread data without a bound, and would treat the end of the
        # connection as half-closed.
        await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        if self._io_writer is not None:
            transport = self._io_writer.transport
            stream = transport.get_protocol()
            if stream is not None:  # A transport that has ended by now has none.
                stream.connection_made(transport)
        self._refuse_when_closing()

    async def wait_closed(self) -> None:
        # Without a limit this could wait for ever. A hanging server does not read the last bytes. After an interrupted
        # handshake the library's stream never receives the end of the connection.
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
        """Close the connection at once. Bytes that were not sent yet are lost."""
        for writer in (self._io_writer, self._bare_io_writer):
            if writer is not None:
                writer.transport.abort()

    def __bool__(self) -> bool:
        """Return True always, because the library would replace a transport that is false with its own."""
        return True


class PlainClient(Client):
    """The library's NATS client with fixes, for connections in clear text.

    - `close` ends all tasks and connections, including those of failed attempts to connect.
    - A PING is sent after all earlier messages. A PONG that arrives after its caller gave up does no harm.
    """

    def __init__(self) -> None:
        super().__init__()
        self._transport = self._line = _Line()  # type: ignore[no-untyped-call]  # says no types
        self._connecting: asyncio.Task[Any] | None = None
        self._disconnecting: asyncio.Task[Any] | None = None

    async def connect(self, *servers: Any, **options: Any) -> None:
        """Connect as the library's client does, with the same arguments. A call of `close` cancels this attempt."""
        self._connecting = asyncio.current_task()
        try:
            await super().connect(*servers, **options)
        finally:
            self._connecting = None

    async def close(self) -> None:
        """Send the pending data for at most two seconds, and close the connection.

        Afterwards the connection and every task of this client have ended, even if the caller was cancelled. The data
        may then not have been sent.
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
        """Close the connection for the library, which calls this method, also after an error. Users call `close`.

        If a call of this method is running already, return at once.
        """
        # `close` cancels the task in `_disconnecting`, and then closes the connection itself.
        # If the server refuses this client, the library runs this method in a task to which it keeps no reference.
        if self._disconnecting is not None:
            return
        self._disconnecting = asyncio.current_task()
        try:
            await super()._close(status, do_cbs)
        finally:
            self._disconnecting = None

    def _changing(self) -> set[asyncio.Task[Any]]:
        """Return the tasks of this client that are connecting or disconnecting."""
        return self._running(self._connecting, self._reconnection_task, self._disconnecting)

    def _connected(self) -> set[asyncio.Task[Any]]:
        """Return the running tasks that the library started for the present connection."""
        return self._running(self._reading_task, self._ping_interval_task, self._flusher_task)

    def _running(self, *tasks: asyncio.Task[Any] | None) -> set[asyncio.Task[Any]]:
        """Return those of `tasks` that have not ended. Leave out None and the current task."""
        return {task for task in tasks if task is not None and not task.done()} - {asyncio.current_task()}

    async def _process_connect_init(self) -> None:
        """Do the handshake with the server. If it fails, close the connection, which the library would leave open.

        Raise only errors after which the library tries again: OSError, NatsError or TimeoutError. Raise CancelledError
        if the client was closed during the handshake.
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
        """Write the pending data to the connection.

        If the connection has ended, reconnect instead of raising the error.
        """
        try:
            return await super()._flush_pending(force_flush)
        except OSError as error:
            await self._error_cb(error)
            await self._process_op_err(error)
            return None

    async def ping(self, answered: asyncio.Future[Any]) -> None:
        """Send a PING after all earlier messages. The server's PONG sets a result on `answered`.

        If the connection breaks first, `answered` gets no result.
        """
        await self._send_ping(answered)

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        """Send a PING after all earlier messages. The server's PONG sets a result on `future`, if it is given.

        So the PONG shows that all earlier messages have reached the server. The library sends the PING too early.
        """
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        await self._send_command(PING_PROTO)
        await self._flush_pending()

    async def _process_pong(self) -> None:
        """Set the result of the oldest PING that was not answered yet. If its caller has given up, drop the result."""
        # The library's method raises if the caller has given up. Its reading task would end, and the client would seem
        # to be connected but receive nothing more.
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()


class SecureClient(PlainClient):
    """The library's NATS client with fixes, for TLS. It reads the TLS files again for every new connection.

    So a certificate that was replaced is used from the next connection on.
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
        """Return the first message to the server, which contains the credentials.

        Raise NatsError if the server does not require TLS, so that the credentials are not sent in clear text.
        """
        if not self._server_info.get("tls_required"):
            raise NatsError("the server does not demand TLS, and nothing is sent to it without")
        return super()._connect_command()


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel these tasks of the library, again and again, until all of them have ended.

    The library may catch a cancellation, so one may not be enough.
    """
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=_CANCEL_S)
