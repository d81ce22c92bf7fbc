"""How long a host is left alone: its delay between requests, and its back-off after it refused or failed.

Pure rules; `now_ms` and the random number of a jitter come in as arguments. Delays are seconds, instants Unix ms.
"""

from dataclasses import dataclass, replace
from typing import Final

from shared.domain.crawl import DAY_S, Politeness

ADAPTIVE_FACTOR: Final = 5.0
"""An adaptive delay is this many times the last fetch (Heritrix' delay factor)."""

BACKOFF_CAP_S: Final = DAY_S
QUIET_MS: Final = 30 * 60 * 1000
"""After this long without trouble a host's failures are forgotten."""

RETRY_AFTER_CAP_S: Final = 7 * DAY_S
"""A host that asks for more is asked again after this."""

SHARD_WORK_S: Final = 10.0
SHARD_MAX: Final = 500
_DOUBLINGS_MAX: Final = 64


def host_delay(
    politeness: Politeness,
    *,
    crawl_delay_s: float | None = None,
    last_fetch_s: float | None = None,
    operator_delay_s: float = 0.0,
) -> float:
    """Seconds from the end of a response to the start of the host's next request.

    The longest of what the spec, robots.txt (where the crawl obeys it) and an operator ask; an adaptive crawl also asks
    for five times the last fetch, between `delay_s` and `max_delay_s`. Only that part is capped.
    """
    delay = politeness.delay_s
    if politeness.adaptive and last_fetch_s is not None:
        delay = max(delay, min(ADAPTIVE_FACTOR * last_fetch_s, politeness.max_delay_s))
    if politeness.obey_robots and crawl_delay_s is not None:
        delay = max(delay, crawl_delay_s)
    return max(delay, operator_delay_s)


def shard_size(delay_s: float, expected_fetch_s: float) -> int:
    """URLs of one shard: about `SHARD_WORK_S` of polite work, at least 1, at most `SHARD_MAX`."""
    pace = max(delay_s, expected_fetch_s)
    if pace * SHARD_MAX <= SHARD_WORK_S:
        return SHARD_MAX
    return max(1, int(SHARD_WORK_S / pace))


def backoff_s(base_s: float, failures: int, rng01: float) -> float:
    """Seconds after the `failures`-th failure (from 1): base x 2^(n-1), +-10 % by `rng01` in 0..1, a day at most."""
    doublings = min(max(failures, 1) - 1, _DOUBLINGS_MAX)
    return min(base_s * 2.0**doublings * (0.9 + 0.2 * rng01), BACKOFF_CAP_S)


@dataclass(frozen=True, slots=True)
class HostHealth:
    """What is remembered of a host's trouble.

    `failures` in the present spell set the back-off; `unreachable` counts failures in a row to resolve or connect, and
    any answer at all ends that row. Nothing is asked of the host before `blocked_until_ms`.
    """

    failures: int = 0
    unreachable: int = 0
    last_failure_ms: int = 0
    blocked_until_ms: int = 0

    def dead(self, host_attempts: int) -> bool:
        """Whether to give the host up: its other URLs fail as `host_unreachable`."""
        return self.unreachable >= host_attempts

    def blocked(self, now_ms: int) -> bool:
        """Whether nothing may be asked of the host now."""
        return now_ms < self.blocked_until_ms

    def settled(self, now_ms: int) -> "HostHealth":
        """The health with failures forgotten if the host was quiet for `QUIET_MS` since its block ended."""
        if self.failures and now_ms >= max(self.last_failure_ms, self.blocked_until_ms) + QUIET_MS:
            return replace(self, failures=0)
        return self

    def answered(self, now_ms: int) -> "HostHealth":
        """The health after the host gave any usable answer."""
        health = self.settled(now_ms)
        return replace(health, unreachable=0) if health.unreachable else health

    def failed(
        self,
        now_ms: int,
        *,
        base_s: float,
        rng01: float,
        retry_after_s: float | None = None,
        unreachable: bool = False,
    ) -> "HostHealth":
        """The health after a failure that the host is to blame for.

        The block is the back-off, or the server's `retry_after_s` where that is longer; it never ends earlier than the
        one in force. `unreachable`: the host could not be resolved or connected to; otherwise it answered.

        A failure that is heard of during a block belongs to the failure that began it (what was under way in the host's
        other slots ends the same way): it counts no further, or one outage would give a host up at once.
        """
        asked_ms = int(min(retry_after_s or 0.0, RETRY_AFTER_CAP_S) * 1000)
        if self.blocked(now_ms):
            return replace(self, blocked_until_ms=max(self.blocked_until_ms, now_ms + asked_ms))
        failures = self.settled(now_ms).failures + 1
        wait_ms = max(int(backoff_s(base_s, failures, rng01) * 1000), asked_ms)
        return HostHealth(
            failures=failures,
            unreachable=self.unreachable + 1 if unreachable else 0,
            last_failure_ms=max(now_ms, self.last_failure_ms),
            blocked_until_ms=max(self.blocked_until_ms, now_ms + wait_ms),
        )
