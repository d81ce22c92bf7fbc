"""Politeness: a host's delay between requests, and its back-off after it refused or failed.

These are pure rules: `now_ms` and the random number for jitter are arguments. Delays are seconds, instants Unix ms.
"""

from dataclasses import dataclass, replace
from typing import Final

from shared.domain.crawl.spec import DAY_S, Politeness, Retry
from shared.domain.frontier.failure import HostEffect

ADAPTIVE_FACTOR: Final = 5.0
"""An adaptive delay is this many times the last fetch (Heritrix' delay factor)."""

QUIET_MS: Final = 30 * 60 * 1000
"""A host's failures are forgotten after this long without trouble."""

RETRY_AFTER_CAP_S: Final = 7 * DAY_S
"""The longest Retry-After that is obeyed. A host that asks for more is asked again after this."""

UNREACHABLE_BASE_S: Final = 5.0
"""The first pause before a host that could not be reached is probed again; it doubles."""

PROBES: Final = 10
"""A pause before the next try of an unreachable host is at most `retry.outage_s` / PROBES, so that an outage ends with
one.
"""

BUSY_DELAYS: Final = 10.0
BUSY_LEAST_S: Final = 1.0
"""After a 503 the host is blocked for BUSY_DELAYS times its delay, and for at least BUSY_LEAST_S."""

WINDOW: Final = 20
REFUSING_SHARE: Final = 4
REFUSING_ROW: Final = 3
"""A host refuses if more than a quarter of its last 20 answers were 429 or 503, or the last three."""

SLOWED_LEAST_MS: Final = 100
SPEEDS_UP_BY: Final = 32
"""A 429 doubles the delay, to at least 0.1 s. Each success reduces the added delay by 1/32."""

FOREVER_MS: Final = 253_402_300_799_000
"""The end of a block that never ends by itself, in Unix ms: the last second of the year 9999."""

SHARD_WORK_S: Final = 10.0
SHARD_MAX: Final = 500
PART_MIN: Final = 16
PART_WORK_S: Final = 0.5
"""Slots that share a host's queue get at least PART_MIN URLs a shard, if fetching them takes at most PART_WORK_S."""
_DOUBLINGS_MAX: Final = 64


def host_delay(
    politeness: Politeness,
    *,
    crawl_delay_s: float | None = None,
    last_fetch_s: float | None = None,
    operator_delay_s: float = 0.0,
    slowed_s: float = 0.0,
) -> float:
    """Return the seconds from the end of a response to the start of the host's next request.

    It is the longest of the delays that the spec, an operator, and robots.txt (if the crawl obeys it) set. Two more
    delays count, capped by `max_delay_s`: five times the last fetch in an adaptive crawl, and `slowed_s` of a host that
    answered 429.
    """
    delay = max(politeness.delay_s, min(slowed_s, politeness.max_delay_s))
    if politeness.adaptive and last_fetch_s is not None:
        delay = max(delay, min(ADAPTIVE_FACTOR * last_fetch_s, politeness.max_delay_s))
    if politeness.obey_robots and crawl_delay_s is not None:
        delay = max(delay, crawl_delay_s)
    return max(delay, operator_delay_s)


def shard_size(delay_s: float, expected_fetch_s: float) -> int:
    """Return the number of URLs for one shard: about `SHARD_WORK_S` seconds of fetching at the host's pace.

    It is at least 1, at most `SHARD_MAX`.
    """
    pace = max(delay_s, expected_fetch_s)
    if pace * SHARD_MAX <= SHARD_WORK_S:
        return SHARD_MAX
    return max(1, int(SHARD_WORK_S / pace))


def shard_part(queued: int, slots: int, expected_fetch_s: float) -> int:
    """Return the number of URLs for one shard if `slots` shards of its host may be leased at once.

    This is half an even part of the queue, so that no slot runs dry first. Each shard costs a lease, a grant and a
    report, so it is at least `PART_MIN` URLs. That minimum takes at most `PART_WORK_S`, so that slow hosts keep all
    slots busy.
    """
    least = PART_MIN if expected_fetch_s * PART_MIN <= PART_WORK_S else int(PART_WORK_S / expected_fetch_s)
    return max(1, least, queued // (2 * slots))


def backoff_s(base_s: float, failures: int, rng01: float, max_s: float = DAY_S) -> float:
    """Return the seconds to wait after the `failures`-th failure (from 1).

    They are `base_s` x 2^(failures - 1), +-10 % by `rng01` in 0..1, at most `max_s`.
    """
    doublings = min(max(failures, 1) - 1, _DOUBLINGS_MAX)
    return min(base_s * 2.0**doublings * (0.9 + 0.2 * rng01), max_s)


@dataclass(frozen=True, slots=True)
class HostHealth:
    """How a host answered its last requests, and until when it gets no request because of that.

    `failures` in the present spell set the back-off; each success takes one back. `unreachable` counts failures in a
    row to resolve or connect; any response ends that row. No request is sent to the host before `blocked_until_ms`.

    `recent`: the last `WINDOW` responses as bits, the newest lowest, 1 for a 429 or 503. A bit above them marks how
    many there are. `slowed_ms`: the delay that 429s raised. `asked_ms`: the longest Retry-After among the recent
    responses. `silent_since_ms`: when the host became unreachable or refusing, 0 while it answers.
    """

    failures: int = 0
    unreachable: int = 0
    last_failure_ms: int = 0
    blocked_until_ms: int = 0
    recent: int = 1
    slowed_ms: int = 0
    asked_ms: int = 0
    silent_since_ms: int = 0

    @property
    def refusing(self) -> bool:
        """True if the whole host refuses: over a quarter of its last 20 responses, or the last 3, were 429 or 503."""
        refused = self.recent.bit_count() - 1
        row = (1 << REFUSING_ROW) - 1
        return refused * REFUSING_SHARE > WINDOW or (self.recent > row + 1 and self.recent & row == row)

    def after(self, effect: HostEffect) -> bool:
        """Return True if one more response with this effect (a 429 or 503) makes the host count as refusing."""
        return effect is not HostEffect.UNREACHABLE and replace(self, recent=_shifted(self.recent, 1)).refusing

    def dead(self, now_ms: int, retry: Retry, *, gave_pages: bool) -> bool:
        """Return True if the host is to be given up: its remaining URLs then fail as `host_unreachable`.

        A host that gave pages of the crawl is given up only after `retry.outage_s` seconds without an answer.
        """
        if gave_pages:
            return bool(self.silent_since_ms) and now_ms - self.silent_since_ms > retry.outage_s * 1000
        return self.unreachable >= retry.host_attempts

    def blocked(self, now_ms: int) -> bool:
        """Return True if no request may be sent to the host at `now_ms`, because of earlier refusals or failures."""
        return now_ms < self.blocked_until_ms

    def settled(self, now_ms: int) -> "HostHealth":
        """Return the health without failures if `QUIET_MS` passed since the last one and its block; else unchanged."""
        if self.failures and now_ms >= max(self.last_failure_ms, self.blocked_until_ms) + QUIET_MS:
            return replace(self, failures=0)
        return self

    def answered(self, now_ms: int) -> "HostHealth":
        """Return the health after a usable response: the number of failures and the added delay decrease."""
        if self.recent == _ALL_WELL and not (
            self.failures or self.unreachable or self.slowed_ms or self.silent_since_ms
        ):
            return self
        health = self.settled(now_ms)
        recent = _shifted(health.recent, 0)
        # This runs for each page, and `replace` takes twice as long.
        return HostHealth(
            failures=max(0, health.failures - 1),
            last_failure_ms=health.last_failure_ms,
            blocked_until_ms=health.blocked_until_ms,
            recent=recent,
            slowed_ms=max(0, health.slowed_ms - max(1, health.slowed_ms // SPEEDS_UP_BY)),
            asked_ms=health.asked_ms if recent.bit_count() > 1 else 0,
        )

    def connected(self) -> "HostHealth":
        """Return the health after a connection that broke before a response: the host is reachable, at least."""
        return replace(self, unreachable=0) if self.unreachable else self

    def refused(
        self,
        now_ms: int,
        effect: HostEffect,
        *,
        retry: Retry,
        delay_s: float,
        max_delay_s: float,
        rng01: float,
        retry_after_s: float | None = None,
    ) -> "HostHealth":
        """Return the health after a 429 (THROTTLED) or a 503 (BUSY). `delay_s` is the host's present delay.

        A 429 blocks the host for its Retry-After, or else for `retry.host_base_s`, and doubles the delay. A 503 blocks
        it for a few delays. If the host is refusing, it is blocked for the longest recent Retry-After, or else for a
        back-off that doubles. A new block never ends earlier than the present one.
        """
        asked_ms = int(min(retry_after_s or 0.0, RETRY_AFTER_CAP_S) * 1000)
        health = replace(
            self.settled(now_ms),
            recent=_shifted(self.recent, 1),
            asked_ms=max(self.asked_ms, asked_ms),
            unreachable=0,
            last_failure_ms=max(now_ms, self.last_failure_ms),
        )
        during_block = self.blocked(now_ms)  # The request was under way when the block began.
        if health.refusing:
            failures = health.failures + (not during_block)
            hold_ms = health.asked_ms or int(backoff_s(retry.host_base_s, failures, rng01, retry.host_max_s) * 1000)
            health = replace(health, failures=failures, silent_since_ms=health.silent_since_ms or now_ms)
        elif effect is HostEffect.THROTTLED:
            hold_ms = asked_ms or int(backoff_s(retry.host_base_s, 1, rng01, retry.host_max_s) * 1000)
        else:
            hold_ms = int(max(BUSY_DELAYS * delay_s, BUSY_LEAST_S) * 1000)
        if effect is HostEffect.THROTTLED and not during_block:
            slowed_ms = max(int(2000 * delay_s), 2 * health.slowed_ms, SLOWED_LEAST_MS)
            health = replace(health, slowed_ms=min(slowed_ms, max(int(max_delay_s * 1000), health.slowed_ms)))
        if during_block and effect is HostEffect.BUSY and not health.refusing:
            hold_ms = 0
        return replace(health, blocked_until_ms=max(self.blocked_until_ms, now_ms + hold_ms))

    def failed(
        self, now_ms: int, *, retry: Retry, base_s: float, rng01: float, retry_after_s: float | None = None
    ) -> "HostHealth":
        """Return the health after the host could not be reached: not resolved, not connected to, or without robots.txt.

        It is blocked for the back-off, or for the server's `retry_after_s` if that is longer, and never less long than
        before. A failure during a block is not counted: requests of the host's other slots were under way and end the
        same way. Otherwise one outage would give a host up at once.
        """
        asked_ms = int(min(retry_after_s or 0.0, RETRY_AFTER_CAP_S) * 1000)
        if self.blocked(now_ms):
            return replace(self, blocked_until_ms=max(self.blocked_until_ms, now_ms + asked_ms))
        health = self.settled(now_ms)
        failures = health.failures + 1
        longest_s = min(retry.host_max_s, max(retry.outage_s / PROBES, base_s))
        wait_ms = max(int(backoff_s(base_s, failures, rng01, longest_s) * 1000), asked_ms)
        return replace(
            health,
            failures=failures,
            unreachable=self.unreachable + 1,
            last_failure_ms=max(now_ms, self.last_failure_ms),
            blocked_until_ms=max(self.blocked_until_ms, now_ms + wait_ms),
            silent_since_ms=self.silent_since_ms or now_ms,
        )


_ALL_WELL: Final = 1 << WINDOW


def _shifted(recent: int, refused: int) -> int:
    """Return the bits of the recent answers with one more."""
    recent = recent << 1 | refused
    return recent if recent < 2 * _ALL_WELL else recent & (_ALL_WELL - 1) | _ALL_WELL
