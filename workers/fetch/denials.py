"""Log the hosts to which no connection is opened, each once, so that links of a hostile page cannot fill the log."""

from collections import OrderedDict
from typing import Final

import structlog

log = structlog.get_logger(__name__)

MAX_HOSTS: Final = 1024
"""Hosts that are remembered as logged. Of a further one the least recent is logged again at its next denial."""


class Denials:
    """The hosts whose denial was logged. Each URL has its own outcome, `egress_denied`, in the frontier."""

    def __init__(self) -> None:
        self._logged: OrderedDict[str, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Denials {len(self._logged)} hosts>"

    def log(self, host: str, url: str, reason: str) -> None:
        """Log that a fetch of `url` at `host` was denied, if that is the first denial of the host."""
        new = host not in self._logged
        self._logged[host] = None
        self._logged.move_to_end(host)
        if len(self._logged) > MAX_HOSTS:
            self._logged.popitem(last=False)
        if new:
            log.warning("egress.denied", url=url, reason=reason)
