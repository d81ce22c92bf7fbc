"""A worker's permission to send requests, on its own clock. Pure."""

from typing import Final

MARGIN_S: Final = 1.5
"""The last request may start this long before the grant ends, or 5 % of the grant if that is longer. It covers a busy
event loop between the check and the send, and the request's way to the server."""

_MARGIN_PART: Final = 0.05
_RENEWED_AFTER: Final = 1 / 3
_CUT_PART: Final = 1 / 3


class Grant:
    """Permission to fetch the remaining URLs of a lease. Instants are `Clock.elapsed` seconds of this process.

    It counts from before the request was sent. So it ends here before it ends at the owner, however long the reply
    took. A late reply never shortens it.

    `delay_s`: the host's delay in the owner's last reply. `stop`: by the owner's reply no further request may start.
    """

    __slots__ = ("_expires", "_margin", "_sent", "delay_s", "not_before", "number", "remaining", "stop")

    def __init__(
        self,
        number: int,
        remaining: tuple[int, ...],
        *,
        sent: float,
        arrived: float,
        expires_s: float,
        rest_s: float,
        delay_s: float = 0.0,
        stop: bool = False,
    ) -> None:
        self.number = number
        self.remaining = remaining
        self.delay_s = delay_s
        self.stop = stop
        self.not_before = arrived + rest_s
        self._sent = self._expires = sent
        self._margin = 0.0
        self.extend(sent, expires_s)

    def extend(self, sent: float, expires_s: float) -> None:
        """Extend the grant to `expires_s` after `sent`, the time when the answered request was sent."""
        if sent + expires_s > self._expires:
            self._sent, self._expires = sent, sent + expires_s
            self._margin = min(max(MARGIN_S, _MARGIN_PART * expires_s), expires_s / 2)

    def may_send(self, now: float) -> bool:
        """Return True if a request may be sent at `now`."""
        return now < self._expires - self._margin

    @property
    def cut_at(self) -> float:
        """When requests in flight are cancelled: a part of the margin before the end, because timers fire late."""
        return self._expires - self._margin * _CUT_PART

    @property
    def renew_at(self) -> float:
        """When to request an extension: after a third of the time."""
        return self._sent + (self._expires - self._sent) * _RENEWED_AFTER

    def __repr__(self) -> str:
        return f"<Grant {self.number} of {len(self.remaining)} URLs until {self._expires:.3f}>"
