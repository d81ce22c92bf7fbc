"""Estimates how long each server keeps idle connections, so that few requests are sent on a closed connection.

- A server may close an idle connection just as a request is sent on it. The request is then lost. The time for which
  the connection was idle becomes the estimate for this server.
- If a connection has been idle for more than 75 % of the estimate, the next request uses a new connection instead.
- The estimate may be too low. So each new connection that is made for this reason raises the estimate by 1 %.
- A raise may permit the use of an idle connection that was too old before the raise. This use is a trial. If its
  request succeeds, the estimate is removed. If its request is lost, the estimate is set anew.

Example: a request is lost after 60 s without a request. The estimate is 60 s, so connections are used for up to 45 s.
The next requests come after pauses of 50 s each. 11 of them use new connections, which raises the 45 s to 50.2 s. The
12th request is the trial: it uses the connection that was idle for 50 s.
"""

from collections import OrderedDict
from math import inf
from typing import Final

from msgspec import Struct

MAX_SERVERS: Final = 10_000
"""The maximum number of servers whose idle times are stored. Above it, the least recently used server is dropped.

A later request to that server may be lost, which sets its estimate anew."""

_MARGIN: Final = 0.75
"""An idle connection is used until this share of the estimated time has passed. Later requests use a new connection."""

_RAISED_BY: Final = 1.01
_MIN_PAUSE_S: Final = 0.25
"""The shortest idle time, in seconds, that sets an estimate.

The module knows when a server was last used, but not by which connection. With concurrent requests, the last use may
be that of another connection. The measured idle time is then too short, so very short times are ignored.
"""


class _ServerTimeouts(Struct):
    used_at: float = -inf
    kept_s: float = inf


class IdleConnections:
    """Decides which requests need a fresh connection. Times are monotonic seconds. `server` is a `Target.server`."""

    def __init__(self) -> None:
        self._servers: OrderedDict[str, _ServerTimeouts] = OrderedDict()

    def __len__(self) -> int:
        return len(self._servers)

    def wants_fresh(self, server: str, now: float) -> bool:
        """Return True if the server has probably closed its idle connections by `now`, so that a new one is needed.

        In that case also raise the server's estimate by 1 %.
        """
        known = self._servers.get(server)
        if known is None or now - known.used_at <= _MARGIN * known.kept_s:
            return False
        known.kept_s *= _RAISED_BY
        return True

    def used(self, server: str, begun: float, ended: float, *, reused: bool, stale: bool) -> None:
        """Update the estimate of how long a server keeps idle connections, after a transfer from `begun` to `ended`.

        `reused`: the transfer began on a kept connection. `stale`: the server had closed that connection.
        """
        known = self._servers.get(server)
        if known is None:
            known = self._servers[server] = _ServerTimeouts()
            if len(self._servers) > MAX_SERVERS:
                self._servers.popitem(last=False)
        else:
            self._servers.move_to_end(server)
            idle_s = begun - known.used_at
            if stale and idle_s >= _MIN_PAUSE_S:
                known.kept_s = idle_s
            elif reused and not stale and idle_s > _MARGIN * known.kept_s / _RAISED_BY:
                known.kept_s = inf
        known.used_at = max(known.used_at, ended)
