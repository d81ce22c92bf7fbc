"""Runs libcurl transfers on the event loop (libcurl's "multi" interface).

This module adds libcurl's sockets to its own epoll set, and the event loop watches only the descriptor of that set.
Many ready sockets then cost the loop only one callback. Source: libcurl's "multi_socket" interface
(curl_multi_socket_action(3)).
"""

import asyncio
import select
from typing import Any, Final

import pycurl

_EPOLL_MASK: Final = {
    pycurl.POLL_IN: select.EPOLLIN,
    pycurl.POLL_OUT: select.EPOLLOUT,
    pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
    pycurl.POLL_NONE: 0,
}
_READY: Final = tuple(
    (pycurl.CSELECT_IN if mask & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) else 0)
    | (pycurl.CSELECT_OUT if mask & (select.EPOLLOUT | select.EPOLLERR) else 0)
    for mask in range(32)
)
"""libcurl's readiness flags, by the low five bits of an epoll event mask (IN 1, PRI 2, OUT 4, ERR 8, HUP 16)."""

Result = tuple[int, str]
"""libcurl's result code of a transfer (0 for success) and its text."""


class Transfers:
    """Runs the transfers of curl handles on the event loop in which it is constructed.

    libcurl releases a handle before the handle's future is done, and before `stop` returns. At most `max_connections`
    connections exist, idle ones included.
    """

    def __init__(self, max_connections: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Any, asyncio.Future[Result]] = {}
        self._timer: asyncio.Handle | None = None
        self._ready = select.epoll()
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._on_timer)
        self._multi.setopt(pycurl.M_MAXCONNECTS, max_connections)
        self._multi.setopt(pycurl.M_MAX_TOTAL_CONNECTIONS, max_connections)
        self._loop.add_reader(self._ready.fileno(), self._on_ready)

    def __len__(self) -> int:
        """Return the number of running transfers."""
        return len(self._waiting)

    def start(self, curl: Any) -> asyncio.Future[Result]:
        """Start the transfer of the curl handle. Return a future of its libcurl result code and error text."""
        future = self._loop.create_future()
        self._waiting[curl] = future
        try:
            self._multi.add_handle(curl)
        except BaseException:
            del self._waiting[curl]
            raise
        return future

    def stop(self, curl: Any) -> None:
        """End the transfer of the curl handle if it still runs, which closes its connection."""
        if self._waiting.pop(curl, None) is not None:
            self._multi.remove_handle(curl)

    def close(self) -> None:
        """End all transfers, cancel their futures and close all connections. Idempotent."""
        if self._ready.closed:
            return
        for curl, future in list(self._waiting.items()):
            self.stop(curl)
            future.cancel()
        self._loop.remove_reader(self._ready.fileno())
        self._multi.close()
        self._on_timer(-1)
        self._ready.close()

    def _on_socket(self, what: int, fd: int, multi: Any, known: object) -> None:
        if what == pycurl.POLL_REMOVE:
            if known is not None:
                self._ready.unregister(fd)
        elif known is None:
            self._ready.register(fd, _EPOLL_MASK[what])
            multi.assign(fd, True)
        else:
            self._ready.modify(fd, _EPOLL_MASK[what])

    def _on_timer(self, milliseconds: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if milliseconds == 0:
            self._timer = self._loop.call_soon(self._on_timeout)
        elif milliseconds > 0:
            self._timer = self._loop.call_later(milliseconds / 1000, self._on_timeout)

    def _on_timeout(self) -> None:
        self._timer = None
        self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        self._settle()

    def _on_ready(self) -> None:
        act = self._multi.socket_action
        for fd, mask in self._ready.poll(0):
            act(fd, _READY[mask & 31])
        self._settle()

    def _settle(self) -> None:
        left = 1
        while left:
            left, succeeded, failed = self._multi.info_read()
            for curl in succeeded:
                self._finish(curl, (0, ""))
            for curl, code, text in failed:
                self._finish(curl, (code, text))

    def _finish(self, curl: Any, result: Result) -> None:
        future = self._waiting.pop(curl, None)
        self._multi.remove_handle(curl)
        if future is not None and not future.done():
            future.set_result(result)
