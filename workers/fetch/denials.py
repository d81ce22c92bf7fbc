"""Logs hosts to which the egress rules deny a connection. It logs each host once, so links cannot fill the log."""

from collections import OrderedDict
from typing import Final

import structlog

log = structlog.get_logger(__name__)

MAX_HOSTS: Final = 1024
"""The maximum number of hosts that are stored as logged.

Above it, the least recently denied host is dropped. Its next denial is then logged again."""


class Denials:
    """The hosts whose denial was logged in this process.

    Only the log is limited: each URL still has its own outcome, `egress_denied`.
    """

    def __init__(self) -> None:
        self._logged: OrderedDict[str, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Denials {len(self._logged)} hosts>"

    def log(self, host: str, url: str, reason: str) -> None:
        """Log that a fetch of `url` at `host` was denied, unless a denial of the host was logged before."""
        new = host not in self._logged
        self._logged[host] = None
        self._logged.move_to_end(host)
        if len(self._logged) > MAX_HOSTS:
            self._logged.popitem(last=False)
        if new:
            log.warning("egress.denied", url=url, reason=reason)
