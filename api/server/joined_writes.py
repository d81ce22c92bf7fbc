"""Send the head of a response together with its body, in one system call."""

import asyncio
from typing import Any


class JoinedWrites(asyncio.Transport):
    """Wraps `transport`. Two writes in one iteration of the event loop are sent in one system call.

    The server writes the head and the body of a response separately, and this class sends both together. A single
    write, such as the head of a stream, is sent at the end of the iteration. At most one write is buffered here.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._held = b""

    def __repr__(self) -> str:
        return f"<JoinedWrites of {self._transport!r}>"

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Buffer `data` until the end of this event loop iteration. If a write is buffered already, send both now."""
        if self._held:
            held, self._held = self._held, b""
            self._transport.writelines((held, data))
        elif data:
            self._held = bytes(data)
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)

    def close(self) -> None:
        """Send the buffered write, if any, and close the wrapped transport."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Drop the write that was not sent yet, and close the connection at once."""
        self._held = b""
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that are not sent yet: those in the wrapped transport and those buffered here."""
        return self._transport.get_write_buffer_size() + len(self._held)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._transport.set_protocol(protocol)
