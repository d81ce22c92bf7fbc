"""How long servers keep idle connections, learnt from the connections that they had closed before a request came.

A server whose idle time-out is near the delay between two requests closes many a connection just as the next request is
sent. The first such loss teaches how long the server keeps one; after that a connection that has been idle for about as
long is not used again. Since a server may change, each avoided reuse raises the time a little: in the end one kept
connection is tried, and serves again or renews the lesson.
"""

from collections import OrderedDict
from dataclasses import dataclass
from math import inf
from typing import Final

MAX_SERVERS: Final = 10_000
"""Servers that are remembered, the most recently used; another one is learnt anew by one lost request."""

_MARGIN: Final = 0.75
"""The part of the known time for which a connection is still used: closing takes time to arrive."""

_RAISED_BY: Final = 1.01
_LEARNT_FROM_S: Final = 0.25
"""A shorter pause teaches nothing: with requests side by side it is not that of the connection that was closed."""


@dataclass(slots=True)
class _Server:
    used_at: float = -inf
    kept_s: float = inf


class KeptConnections:
    """Says which requests need a fresh connection. Times are seconds of one clock; `server` is `scheme://host:port`."""

    def __init__(self) -> None:
        self._servers: OrderedDict[str, _Server] = OrderedDict()

    def __len__(self) -> int:
        return len(self._servers)

    def wants_fresh(self, server: str, now: float) -> bool:
        """Return True if the server has probably closed the idle connections to it by now."""
        known = self._servers.get(server)
        if known is None or now - known.used_at <= _MARGIN * known.kept_s:
            return False
        known.kept_s *= _RAISED_BY
        return True

    def used(self, server: str, begun: float, ended: float, *, reused: bool, stale: bool) -> None:
        """Learn from a transfer: `stale` if the kept connection was closed, `reused` if it served."""
        known = self._servers.get(server)
        if known is None:
            known = self._servers[server] = _Server()
            if len(self._servers) > MAX_SERVERS:
                self._servers.popitem(last=False)
        else:
            self._servers.move_to_end(server)
            idle_s = begun - known.used_at
            if stale and idle_s >= _LEARNT_FROM_S:
                known.kept_s = idle_s
            elif reused and not stale and idle_s > _MARGIN * known.kept_s / _RAISED_BY:
                known.kept_s = inf
        known.used_at = max(known.used_at, ended)
