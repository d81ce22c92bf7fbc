"""A worker's permission to send requests, on its own clock (pure)."""

from typing import Final

MARGIN_S: Final = 1.5
"""How long before a grant ends the last request may start, where 5 % of the grant is not longer: room for a busy loop
between the check and the send, and for the request's way to the server."""

_MARGIN_PART: Final = 0.05
_RENEWED_AFTER: Final = 1 / 3
_CUT_PART: Final = 1 / 3


class Grant:
    """Permission to fetch what is left of a lease. Instants are `Clock.elapsed` seconds of this process.

    It counts from before the question was sent, so it ends here before it does at the owner, however long the answer
    took. It never becomes shorter by an answer that comes late. `delay_s`: the host's delay as the owner last said.
    `stop`: the owner said that no further request may start.
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
        """The question sent at `sent` was answered: it lasts `expires_s` from then."""
        if sent + expires_s > self._expires:
            self._sent, self._expires = sent, sent + expires_s
            self._margin = min(max(MARGIN_S, _MARGIN_PART * expires_s), expires_s / 2)

    def may_send(self, now: float) -> bool:
        """Whether a request may be handed over for sending at `now`."""
        return now < self._expires - self._margin

    @property
    def cut_at(self) -> float:
        """When what is in flight is cancelled: before the end, by a part of the margin, as timers fire late."""
        return self._expires - self._margin * _CUT_PART

    @property
    def renew_at(self) -> float:
        """When to ask for an extension: a third of the time is gone."""
        return self._sent + (self._expires - self._sent) * _RENEWED_AFTER

    def __repr__(self) -> str:
        return f"<Grant {self.number} of {len(self.remaining)} URLs until {self._expires:.3f}>"
