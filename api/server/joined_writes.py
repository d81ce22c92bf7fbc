"""Send the head of a response together with its body."""

import asyncio
from typing import Any


class JoinedWrites(asyncio.Transport):
    """A transport that sends two writes of one turn of the event loop by one system call.

    The server writes head and body one after the other. Two packets would wake the client twice, and cost twice as much
    here. A write without a second one, such as the head of a stream, is sent when the loop's turn ends. So at most one
    write is held, and `transport` limits what waits for the client.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._held = b""

    def __repr__(self) -> str:
        return f"<JoinedWrites of {self._transport!r}>"

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Hold `data` until the next write or the end of the loop's turn."""
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
        """Send what is held, and close as the transport does."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Drop the write that was not sent yet, and close the connection at once."""
        self._held = b""
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that wait for the client, those that are held included."""
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
