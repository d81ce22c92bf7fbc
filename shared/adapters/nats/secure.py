"""The library's client as we use it, and one that speaks TLS or not at all.

The client library begins TLS only where the server's greeting, which comes in the clear, says so: whoever answers in
the server's place could leave that out, and would be sent the token and all else. It also waits without a bound for
the end of a connection that it gave up, before it tries another server.
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


def demanded(urls: Sequence[str], tls: TlsSettings | None) -> TlsSettings | None:
    """The files to speak TLS with; None where nobody asks for it. Unusable when some URLs ask for it and others not, or
    when a file cannot be used."""
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
    """A connection whose end is waited for no longer than two seconds, and then forced.

    Without the bound the wait may last for ever: for a server that stands still and takes the last bytes no more, and
    for a handshake that was broken off, of whose end the library's stream is never told.
    """

    closing = False
    """Set for the last bytes: that they cannot be sent any more is no error then."""

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

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """Begin TLS, and tell the new stream of its connection: what is not read yet would grow without a bound, and
        its end be taken for half of one."""
        await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        if self._io_writer is not None:
            transport = self._io_writer.transport
            stream = transport.get_protocol()
            if stream is not None:  # one that has ended by now has none
                stream.connection_made(transport)

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
        """End it now; what was not sent is lost."""
        for writer in (self._io_writer, self._bare_io_writer):
            if writer is not None:
                writer.transport.abort()

    def __bool__(self) -> bool:
        """There is one from the start; the library would make its own where it finds none."""
        return True


class PlainClient(Client):
    """Leaves no connection behind whose greetings failed, and none that does not end; asks in turn, and may be answered
    late."""

    def __init__(self) -> None:
        super().__init__()
        self._transport = self._line = _Line()  # type: ignore[no-untyped-call]  # says no types

    async def close(self) -> None:
        """Send what waits, within two seconds, and close."""
        forced = asyncio.get_running_loop().call_later(_LAST_BYTES_S, self._line.abort)
        self._line.closing = True  # the library would stop in the middle of closing where the last bytes fail
        try:
            await super().close()
        finally:
            forced.cancel()

    async def _process_connect_init(self) -> None:
        """Greet the server, with the handshake. Where that fails, the library leaves the connection open.

        Raise only what the library takes for a failed attempt: after anything else it would never try again.
        """
        # Bytes for the connection before would reach a server that may have another store by now.
        self._pending, self._pending_data_size = [], 0
        try:
            await super()._process_connect_init()
        except BaseException as error:
            if self._transport:
                self._transport.close()  # type: ignore[no-untyped-call]  # says no types
            if not isinstance(error, Exception) or isinstance(error, OSError | NatsError | TimeoutError):
                raise
            raise NatsError(f"the server's greeting failed: {error!r}") from error

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        """Hand over what waits to be written, and reconnect where the connection has ended.

        The library does this in a task, which ends at a reconnect. From then on every caller writes by itself, and
        would be raised the error.
        """
        try:
            return await super()._flush_pending(force_flush)
        except OSError as error:
            await self._error_cb(error)
            await self._process_op_err(error)
            return None

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        """Behind all that was said before. The library's own overtakes what still waits to be written: the server's
        answer would confirm a subscription, or the end of one, that it has not heard of."""
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        await self._send_command(PING_PROTO)
        await self._flush_pending()

    async def _process_pong(self) -> None:
        """An answer to who asked first, who may have given up meanwhile. The library's own fails there, and ends the
        reading of a connection that is well: it is taken for connected, and hears nothing more."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()


class SecureClient(PlainClient):
    """Reads the files anew for every connection: after they were replaced, the next one shows the new certificate."""

    def __init__(self, files: TlsSettings) -> None:
        super().__init__()
        self._files = files

    @property
    def ssl_context(self) -> ssl.SSLContext:
        try:
            return client_context(self._files)
        except Unusable as error:  # while they are being replaced: the library tries again after its own errors only
            raise NatsError(str(error)) from error

    def _connect_command(self) -> bytes:
        """What is sent first, credentials within."""
        if not self._server_info.get("tls_required"):
            raise NatsError("the server does not demand TLS, and nothing is sent to it without")
        return super()._connect_command()
