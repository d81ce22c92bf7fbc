"""A grant: a worker's permission to send requests for a leased URL shard, measured on the worker's own clock. Pure."""

from typing import Final

MARGIN_S: Final = 1.5
"""The usual margin of a grant: the seconds at its end in which no request starts.

A long grant has a longer margin, and a very short grant has a shorter one (`Grant.extend`).
"""

_MARGIN_PART: Final = 0.05
_RENEWED_AFTER: Final = 1 / 3
_CUT_PART: Final = 1 / 3


class Grant:
    """Permission to fetch the remaining URLs of a lease until a time.

    Times are `Clock.elapsed` seconds of this process. The grant lasts `expires_s` from `sent`, the time just before the
    worker sent its request. So the grant always ends at the worker before it ends at the owner.

    - `remaining`: the indexes, in the shard's `urls`, of the URLs that are still to be fetched.
    - `not_before`: when the first request may be sent. It is `rest_s` after `arrived`, the time at which the owner's
      reply came.
    - `delay_s`: the host's delay in the owner's last reply.
    - `stop`: the owner requires that no further request starts.
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
        """Set the end of the grant to `expires_s` after `sent`. If its present end is later, keep that.

        `sent` is the time at which the worker sent its request to extend the grant.
        """
        if sent + expires_s > self._expires:
            self._sent, self._expires = sent, sent + expires_s
            self._margin = min(max(MARGIN_S, _MARGIN_PART * expires_s), expires_s / 2)

    def may_send(self, now: float) -> bool:
        """Return True if enough time of the grant is left for a request at `now`: more than the grant's margin.

        The caller must also obey `stop` and `not_before`, which this method does not check. For the margin see
        MARGIN_S.
        """
        return now < self._expires - self._margin

    @property
    def cut_at(self) -> float:
        """The time at which requests in flight are cancelled, shortly before the grant ends."""
        return self._expires - self._margin * _CUT_PART

    @property
    def renew_at(self) -> float:
        """The time at which the worker requests an extension: after a third of the grant's time."""
        return self._sent + (self._expires - self._sent) * _RENEWED_AFTER

    def __repr__(self) -> str:
        return f"<Grant {self.number} of {len(self.remaining)} URLs until {self._expires:.3f}>"
