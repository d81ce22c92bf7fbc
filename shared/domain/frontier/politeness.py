"""Politeness: a host's delay between requests, and its back-off after it refused or failed.

The functions do no I/O: the time `now_ms` and the random number for jitter are arguments. Delays are in seconds.
Points in time are in Unix ms.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from shared.domain.crawl.spec import DAY_S, Politeness, Retry
from shared.domain.frontier.failure import HostEffect

ADAPTIVE_FACTOR: Final = 5.0
"""With `politeness.adaptive`, a host's delay is at least this many times the duration of its last fetch, up to the
spec's `max_delay_s`. Heritrix calls this number the delay factor."""

QUIET_MS: Final = 30 * 60 * 1000
"""A host's failures are forgotten after this many ms without a failure, a refusal or a block."""

RETRY_AFTER_CAP_S: Final = 7 * DAY_S
"""The longest Retry-After that is obeyed. A host that asks for more is asked again after this."""

UNREACHABLE_BASE_S: Final = 5.0
"""The first pause, in seconds, before a host that could not be reached is tried again. Later pauses double."""

PROBES: Final = 10
"""Limits the pause between two attempts to reach a host: the pause is at most `retry.outage_s` / PROBES seconds.

For example, with an `outage_s` of 86,400 the pauses grow up to 8,640 seconds. So the host is tried about 10 times or
more within `outage_s`. If the first pause is longer than the limit, the pauses do not grow."""

BUSY_DELAYS: Final = 10.0
BUSY_LEAST_S: Final = 1.0
"""After a 503 the host is blocked for BUSY_DELAYS times its delay, and for at least BUSY_LEAST_S."""

WINDOW: Final = 20
REFUSING_SHARE: Final = 4
REFUSING_ROW: Final = 3
"""The limits from which a host counts as refusing. A refusal is an answer 429 or 503. Each limit is enough:

- REFUSING_ROW: the last 3 answers of the host were refusals.
- WINDOW and REFUSING_SHARE: more than 5 of the last 20 answers of the host were refusals (more than 1/4).
"""

SLOWED_LEAST_MS: Final = 100
"""A 429 raises the delay of its host to at least this many ms, unless the spec's `max_delay_s` is lower."""

SPEEDS_UP_BY: Final = 32
"""The delay that 429s set for a host (`HostHealth.slowed_ms`) becomes shorter by 1/32 with each usable response.

A usable response is any response but a 429 or 503."""

FOREVER_MS: Final = 253_402_300_799_000
"""The end of a block that never ends by itself, in Unix ms: the last second of the year 9999."""

SHARD_WORK_S: Final = 10.0
SHARD_MAX: Final = 500
PART_MIN: Final = 16
PART_WORK_S: Final = 0.5
"""PART_MIN and PART_WORK_S give the minimum size of a shard if several slots share a host's queue (`shard_part`).

- Normally, the minimum is PART_MIN URLs.
- If fetching PART_MIN URLs takes longer than PART_WORK_S seconds, the minimum is as many URLs as take PART_WORK_S
  seconds.
"""
_DOUBLINGS_MAX: Final = 64


def host_delay(
    politeness: Politeness,
    *,
    crawl_delay_s: float | None = None,
    last_fetch_s: float | None = None,
    operator_delay_s: float = 0.0,
    slowed_s: float = 0.0,
) -> float:
    """Return the seconds from the end of a response to the host's next request: the longest of these delays.

    - `politeness.delay_s`, the spec's delay.
    - `operator_delay_s`, set by an operator in the policy of the host.
    - `crawl_delay_s`, from robots.txt, if the crawl obeys it.
    - five times `last_fetch_s`, the duration of the last fetch, if `politeness.adaptive` is set. At most
      `politeness.max_delay_s`.
    - `slowed_s`, the delay after 429 answers. At most `politeness.max_delay_s`.
    """
    delay = max(politeness.delay_s, min(slowed_s, politeness.max_delay_s))
    if politeness.adaptive and last_fetch_s is not None:
        delay = max(delay, min(ADAPTIVE_FACTOR * last_fetch_s, politeness.max_delay_s))
    if politeness.obey_robots and crawl_delay_s is not None:
        delay = max(delay, crawl_delay_s)
    return max(delay, operator_delay_s)


def shard_size(delay_s: float, expected_fetch_s: float) -> int:
    """Return the number of URLs for one shard, from 1 to `SHARD_MAX`: about `SHARD_WORK_S` seconds of work at the host.

    A URL is expected to take max(`delay_s`, `expected_fetch_s`) seconds.
    """
    pace = max(delay_s, expected_fetch_s)
    if pace * SHARD_MAX <= SHARD_WORK_S:
        return SHARD_MAX
    return max(1, int(SHARD_WORK_S / pace))


def shard_part(queued: int, slots: int, expected_fetch_s: float) -> int:
    """Return how many URLs of a queue to put into one shard, if several slots share the queue.

    The number is `queued` / (2 x `slots`), rounded down, but at least a minimum. For example, with 400 URLs and 4 slots
    a shard has 50 URLs. The minimum is PART_MIN (16) URLs, or fewer for a slow host: as many as the host serves in
    PART_WORK_S (0.5) seconds, and at least 1. If a fetch takes 0.1 seconds, the minimum is 5.

    - `queued`: the number of URLs in the queue.
    - `slots`: how many shards of the queue may be out at once.
    - `expected_fetch_s`: the seconds that one fetch takes.
    """
    # A shard has half of its slot's part of the queue. So no slot runs out of URLs long before the others.
    least = PART_MIN if expected_fetch_s * PART_MIN <= PART_WORK_S else int(PART_WORK_S / expected_fetch_s)
    return max(1, least, queued // (2 * slots))


def backoff_s(base_s: float, failures: int, rng01: float, max_s: float = DAY_S) -> float:
    """Return the seconds to wait after failure number `failures` (from 1).

    They are `base_s` x 2^(failures - 1), spread by +-10 % with the random number `rng01` in 0..1, and at most `max_s`.
    """
    doublings = min(max(failures, 1) - 1, _DOUBLINGS_MAX)
    return min(base_s * 2.0**doublings * (0.9 + 0.2 * rng01), max_s)


class HostHealth(Struct, frozen=True):
    """How a host answered its last requests, and until when it gets no request because of its refusals and failures.

    Three kinds of results count:

    - A usable response: any response but a 429 or 503.
    - A refusal: a response 429 or 503. A host with many refusals is `refusing`: its last 3 responses, or over a quarter
      of its last 20, were refusals.
    - A failure: the host could not be reached, or its robots.txt could not be read.

    The fields:

    - `failures`: the number from which the back-off is computed. A failure adds 1. A refusal adds 1 only if the host is
      `refusing`. A usable response subtracts 1.
    - `unreachable`: the number of failures in a row. Any other result, also a connection without a response, sets it
      to 0.
    - `last_failure_ms`: when the last refusal or failure was.
    - `blocked_until_ms`: no request is sent to the host before this time.
    - `recent`: the last `WINDOW` responses as the bits of an integer. A bit is 1 for a 429 or 503, else 0. Bit 0 is the
      newest response. Above the oldest response is one more bit, always 1, which marks the end. For example, `recent`
      is 0b1010 after the responses 200, 429 and 200.
    - `slowed_ms`: the delay that 429s have set. Usable responses reduce it.
    - `asked_ms`: the longest Retry-After among the recent responses.
    - `silent_since_ms`: the start of the time without a usable response (Unix ms). The start is the first failure, or
      the first refusal while the host is `refusing`. Each failure and refusal moves it forward by the time that does
      not count (`silent_s`). A usable response sets it to 0.
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
        """Return True if the host counts as `refusing` once a new 429 or 503 is included. The health is not changed.

        For example, the last two responses were 429, and another 429 has come: return True.

        `effect`: THROTTLED for a 429, BUSY for a 503. For UNREACHABLE return False, because there is no response.
        """
        return effect is not HostEffect.UNREACHABLE and replace(self, recent=_shifted(self.recent, 1)).refusing

    def dead(self, now_ms: int, retry: Retry, *, gave_pages: bool) -> bool:
        """Return True if the host must be given up. Its remaining URLs then fail with the reason `host_unreachable`.

        `gave_pages`: the host has given pages of the crawl.

        - If True, the host is given up after more than `retry.outage_s` seconds without a usable response (`silent_s`).
        - If False, the host is given up after `retry.host_attempts` attempts that did not reach it.
        """
        if gave_pages:
            return self.silent_s(now_ms, retry) > retry.outage_s
        return self.unreachable >= retry.host_attempts

    def silent_s(self, now_ms: int, retry: Retry) -> float:
        """Return for how many seconds the host has given no usable response, 0 if it is not silent.

        The long pauses in which the host was not asked count only in part:

        - The time from the end of a block to the next request counts at most `retry.outage_s` / PROBES seconds. Such a
          time is long if the crawl was paused, the machine slept, or a host policy blocked the host.
        - A block by a Retry-After counts at most that long, too. If the first pause of a back-off is longer, the block
          counts at most as long as that pause.

        The pauses of the crawler's own back-off count in full.
        """
        # A part of each pause counts, so a host that never gives a page again is given up in the end.
        if not self.silent_since_ms:
            return 0.0
        free_ms = min(now_ms, max(self.last_failure_ms, self.blocked_until_ms))
        held_s, probe_s = (free_ms - self.last_failure_ms) / 1000, retry.outage_s / PROBES
        if self.unreachable or self.asked_ms or not self.refusing:
            held_s = min(held_s, max(probe_s, retry.host_base_s, UNREACHABLE_BASE_S))
        late_s = min((now_ms - free_ms) / 1000, probe_s)
        return (self.last_failure_ms - self.silent_since_ms) / 1000 + held_s + late_s

    def blocked(self, now_ms: int) -> bool:
        """Return True if no request may be sent to the host at `now_ms`, because of earlier refusals or failures."""
        return now_ms < self.blocked_until_ms

    def settled(self, now_ms: int) -> "HostHealth":
        """Return the health with `failures` 0 after a quiet time. Otherwise return it unchanged.

        A quiet time is `QUIET_MS` without a failure, a refusal or a block.
        """
        if self.failures and now_ms >= max(self.last_failure_ms, self.blocked_until_ms) + QUIET_MS:
            return replace(self, failures=0)
        return self

    def answered(self, now_ms: int) -> "HostHealth":
        """Return the health after a usable response: the host is reachable and not silent.

        `failures` decreases by 1. The delay `slowed_ms` decreases by 1/`SPEEDS_UP_BY`.
        """
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

    def connected(self, *, answers: bool = False) -> "HostHealth":
        """Return the health after a fetch that reached the host but got no HTTP response.

        An example is a connection that was made and then broke. The host is reachable, so `unreachable` becomes 0.
        Nothing else changes.

        `answers`: another origin of the host gave a usable response, so the host is not silent either.
        """
        since_ms = 0 if answers else self.silent_since_ms
        if not self.unreachable and since_ms == self.silent_since_ms:
            return self
        return replace(self, unreachable=0, silent_since_ms=since_ms)

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
        """Return the health after a 429 (`effect` THROTTLED) or a 503 (BUSY).

        The host is blocked. The first of these rules that applies gives the time:

        1. The host is now `refusing`: the longest recent Retry-After. If there was none, a back-off that doubles.
        2. After a 429: its Retry-After. If it has none, `retry.host_base_s`.
        3. After a 503: `BUSY_DELAYS` times the host's delay.

        A present block is never shortened. A 429 also doubles the host's delay (`slowed_ms`).

        - `delay_s`: the host's present delay.
        - `max_delay_s`: the limit to which 429s raise the delay.
        - `rng01`: a random number in 0..1, which spreads the back-off.
        - `retry_after_s`: the Retry-After of the response in seconds.
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
            health = replace(health, failures=failures)
        elif effect is HostEffect.THROTTLED:
            hold_ms = asked_ms or int(backoff_s(retry.host_base_s, 1, rng01, retry.host_max_s) * 1000)
        else:
            hold_ms = int(max(BUSY_DELAYS * delay_s, BUSY_LEAST_S) * 1000)
        if self.silent_since_ms or health.refusing:
            health = replace(health, silent_since_ms=now_ms - int(self.silent_s(now_ms, retry) * 1000))
        if effect is HostEffect.THROTTLED and not during_block:
            slowed_ms = max(int(2000 * delay_s), 2 * health.slowed_ms, SLOWED_LEAST_MS)
            health = replace(health, slowed_ms=min(slowed_ms, max(int(max_delay_s * 1000), health.slowed_ms)))
        if during_block and effect is HostEffect.BUSY and not health.refusing:
            hold_ms = 0
        return replace(health, blocked_until_ms=max(self.blocked_until_ms, now_ms + hold_ms))

    def failed(
        self, now_ms: int, *, retry: Retry, base_s: float, rng01: float, retry_after_s: float | None = None
    ) -> "HostHealth":
        """Return the health after the host could not be reached, or its robots.txt could not be read.

        The host is blocked for a back-off that begins with `base_s` and doubles, or for `retry_after_s` if that is
        longer. During a block, a failure is not counted, and only `retry_after_s` can extend the block.

        `rng01`: a random number in 0..1, which spreads the back-off.
        """
        asked_ms = int(min(retry_after_s or 0.0, RETRY_AFTER_CAP_S) * 1000)
        if self.blocked(now_ms):  # The request was sent before the block began.
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
            silent_since_ms=now_ms - int(self.silent_s(now_ms, retry) * 1000),
        )


_ALL_WELL: Final = 1 << WINDOW


def _shifted(recent: int, refused: int) -> int:
    """Return the bits of `HostHealth.recent` after one more response. `refused`: 1 for a 429 or 503, else 0."""
    recent = recent << 1 | refused
    return recent if recent < 2 * _ALL_WELL else recent & (_ALL_WELL - 1) | _ALL_WELL
