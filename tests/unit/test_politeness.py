import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.domain.crawl.spec import DAY_S, Politeness, Retry
from shared.domain.frontier.failure import HostEffect
from shared.domain.frontier.politeness import (
    QUIET_MS,
    RETRY_AFTER_CAP_S,
    WINDOW,
    HostHealth,
    backoff_s,
    host_delay,
    shard_part,
    shard_size,
)

UNIT = st.floats(0, 1)
SECONDS = st.floats(0, 1e6)


@given(SECONDS, SECONDS)
def test_a_shard_is_about_ten_seconds_of_polite_work_and_bounded(delay_s: float, fetch_s: float) -> None:
    size = shard_size(delay_s, fetch_s)
    assert 1 <= size <= 500
    assert size == 1 or size * max(delay_s, fetch_s) <= 10.0 + 1e-6
    assert shard_size(delay_s + 1, fetch_s) <= size


def test_shard_sizes_of_the_defaults() -> None:
    assert [shard_size(d, f) for d, f in ((1.0, 0.2), (0.0, 0.05), (0.0, 0.0), (60.0, 0.1), (0.0, 0.02))] == [
        10,
        200,
        500,
        1,
        500,
    ]


@given(st.integers(0, 10**7), st.integers(2, 64), st.floats(0.001, 1e4))
def test_part_of_a_shared_queue_is_large_enough_to_pay_and_short(queued: int, slots: int, fetch_s: float) -> None:
    part = shard_part(queued, slots, fetch_s)
    even = queued // (2 * slots)
    assert part >= max(1, even)
    assert part <= max(1, even, 16)
    assert part == max(1, even) or part * fetch_s <= 0.5 + 1e-6
    assert part >= 16 or (part + 1) * fetch_s > 0.5 - 1e-6
    assert shard_part(queued, slots, 2 * fetch_s) <= part <= shard_part(queued + 1, slots, fetch_s)


def test_part_of_a_fast_host_has_sixteen_urls_and_of_a_slow_one_fewer() -> None:
    assert [shard_part(40, 8, fetch_s) for fetch_s in (0.001, 0.03, 0.1, 0.3, 2.0)] == [16, 16, 5, 2, 2]


@given(SECONDS, st.none() | SECONDS, st.none() | SECONDS, SECONDS, st.booleans(), st.booleans())
def test_delay_is_never_below_what_anybody_asked(
    delay: float, crawl: float | None, fetch: float | None, operator: float, adaptive: bool, robots: bool
) -> None:
    politeness = Politeness(delay_s=delay, max_delay_s=delay + 10, adaptive=adaptive, obey_robots=robots)
    result = host_delay(politeness, crawl_delay_s=crawl, last_fetch_s=fetch, operator_delay_s=operator)
    assert result >= max(delay, operator, (crawl or 0.0) if robots else 0.0)
    assert result <= max(delay + 10 if adaptive else delay, operator, crawl or 0.0)


def test_crawl_delay_is_honoured_however_long() -> None:
    assert host_delay(Politeness(adaptive=True, max_delay_s=10), crawl_delay_s=86_000, last_fetch_s=9) == 86_000
    assert host_delay(Politeness(obey_robots=False), crawl_delay_s=86_000) == 1.0


def test_adaptive_delay_is_five_fetches_within_its_cap() -> None:
    politeness = Politeness(delay_s=1, max_delay_s=10, adaptive=True)
    assert [host_delay(politeness, last_fetch_s=fetch) for fetch in (0.1, 1.0, 3.0)] == [1.0, 5.0, 10.0]


@given(st.floats(0.1, 1000), st.integers(1, 10_000), UNIT)
def test_backoff_grows_is_capped_and_jitters_by_a_tenth(base_s: float, failures: int, rng01: float) -> None:
    wait = backoff_s(base_s, failures, rng01)
    assert 0 < wait <= DAY_S
    assert wait <= backoff_s(base_s, failures + 1, rng01)
    middle = backoff_s(base_s, failures, 0.5)
    assert middle * 0.89 <= wait <= middle * 1.11


def test_backoff_of_throttling_doubles_from_a_minute() -> None:
    assert [backoff_s(60, n, 0.5) for n in (1, 2, 3, 11, 12, 99)] == [60, 120, 240, 61_440, DAY_S, DAY_S]


def test_failures_are_forgotten_after_quiet_since_the_block_ended() -> None:
    health = HostHealth().failed(0, retry=Retry(), base_s=60, rng01=0.5, retry_after_s=DAY_S)
    end = int(DAY_S * 1000)
    assert health.blocked_until_ms == end
    assert health.settled(end + QUIET_MS - 1).failures == 1
    assert health.settled(end + QUIET_MS).failures == 0


def _fails_again(health: HostHealth, base_s: float = 5) -> HostHealth:
    """The next failure, after the block of the last."""
    return health.failed(health.blocked_until_ms, retry=Retry(), rng01=0.5, base_s=base_s)


@pytest.mark.parametrize("max_count", [3, 5])
def test_failed_connects_in_a_row_give_host_up_and_response_resets(max_count: int) -> None:
    retry = Retry(host_attempts=max_count)
    health = HostHealth()
    for _ in range(max_count - 1):
        health = _fails_again(health)
    assert not health.dead(0, retry, gave_pages=False)
    assert _fails_again(health).dead(0, retry, gave_pages=False)
    assert not _fails_again(health.answered(health.blocked_until_ms)).dead(0, retry, gave_pages=False)
    assert not _fails_again(health.connected()).dead(0, retry, gave_pages=False)


def test_one_outage_counts_once_however_many_slots_of_the_host_it_ends() -> None:
    first = _fails_again(HostHealth())
    health = first
    for _ in range(Retry().host_attempts):
        health = health.failed(1, retry=Retry(), base_s=5, rng01=0.5)
    assert health == first
    assert health.failed(1, retry=Retry(), base_s=60, rng01=0.5, retry_after_s=100).blocked_until_ms == 100_001


@pytest.mark.parametrize("outage_s", [600.0, DAY_S])
def test_a_host_that_gave_pages_is_probed_for_as_long_as_an_outage_may_last(outage_s: float) -> None:
    retry = Retry(outage_s=outage_s)
    health, now, pauses = HostHealth(), 0, []
    while not health.dead(now, retry, gave_pages=True):
        health = health.failed(now, retry=retry, base_s=5, rng01=0.5)
        pauses.append((health.blocked_until_ms - now) / 1000)
        now = health.blocked_until_ms
    assert outage_s * 1000 < now <= outage_s * 1000 * 1.2
    assert pauses == sorted(pauses), "they grow"
    assert pauses[:3] == [5, 10, 20]
    assert max(pauses) <= outage_s / 10
    assert health.answered(now).silent_since_ms == 0


HOUR_MS = 3_600_000


def _probed(health: HostHealth, now: int, effect: HostEffect, retry_after_s: float | None = None) -> HostHealth:
    """A probe at `now` ms, under `orb crawl`, of a host that has refused so much that each refusal counts."""
    retry = Retry(outage_s=600)
    if effect is HostEffect.UNREACHABLE:
        return health.failed(now, retry=retry, base_s=5, rng01=0.5, retry_after_s=retry_after_s)
    return replace(health, recent=0b1111).refused(
        now, effect, retry=retry, delay_s=1, max_delay_s=60, rng01=0.5, retry_after_s=retry_after_s
    )


@pytest.mark.parametrize("effect", HostEffect)
@pytest.mark.parametrize("hours", [1, 8, 48])
def test_outage_does_not_count_time_in_which_host_was_not_asked(effect: HostEffect, hours: int) -> None:
    """A laptop slept, a crawl was paused or a policy blocked the host: the next failure gave the host up."""
    health = _probed(HostHealth(), 1_000, effect)
    for _ in range(2):
        now = health.blocked_until_ms + hours * HOUR_MS
        health = _probed(health, now, effect)
        assert not health.dead(now, Retry(outage_s=600), gave_pages=True)


def test_outage_leaves_out_sleep_before_a_single_503() -> None:
    health = _probed(HostHealth(), 1_000, HostEffect.UNREACHABLE)
    now = 8 * HOUR_MS
    health = health.refused(now, HostEffect.BUSY, retry=Retry(outage_s=600), delay_s=1, max_delay_s=60, rng01=0.5)
    now = health.blocked_until_ms
    assert not _probed(health, now, HostEffect.UNREACHABLE).dead(now, Retry(outage_s=600), gave_pages=True)


@pytest.mark.parametrize("effect", HostEffect)
def test_outage_does_not_count_a_retry_after_that_was_obeyed(effect: HostEffect) -> None:
    health, now = _probed(HostHealth(), 1_000, effect, 3_600.0), 1_000
    for _ in range(3):
        health = _probed(health, now + 1_000, effect, 3_600.0)  # a request that was under way
        now = health.blocked_until_ms
        assert now >= HOUR_MS
        health = _probed(health, now, effect, 3_600.0)
        assert not health.dead(now, Retry(outage_s=600), gave_pages=True)


@pytest.mark.parametrize("effect", HostEffect)
@pytest.mark.parametrize(
    ("late_ms", "retry_after_s"), [(30_000, None), (HOUR_MS, None), (0, 3_600.0), (0, RETRY_AFTER_CAP_S)]
)
def test_outage_ends_within_a_dozen_probes_however_late_they_are(
    effect: HostEffect, late_ms: int, retry_after_s: float | None
) -> None:
    health, now = HostHealth(), 1_000
    for _ in range(12):
        health = _probed(health, now, effect, retry_after_s)
        at, now = now, health.blocked_until_ms + late_ms
    assert health.dead(at, Retry(outage_s=600), gave_pages=True)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**10), st.sampled_from([None, *HostEffect]), st.none() | st.floats(0, 1e9), UNIT),
        max_size=40,
    )
)
def test_a_block_never_ends_earlier_than_promised_nor_later_than_its_caps(
    events: list[tuple[int, HostEffect | None, float | None, float]],
) -> None:
    health, now, retry = HostHealth(), 0, Retry()
    for step, effect, retry_after, rng01 in events:
        now += step
        before = health
        if effect is None:
            health = health.answered(now)
            assert health.failures <= before.failures
            assert health.slowed_ms <= before.slowed_ms
            continue
        if effect is HostEffect.UNREACHABLE:
            health = health.failed(now, retry=retry, base_s=60, rng01=rng01, retry_after_s=retry_after)
        else:
            health = health.refused(
                now, effect, retry=retry, delay_s=1, max_delay_s=60, rng01=rng01, retry_after_s=retry_after
            )
        assert health.slowed_ms <= 60_000
        assert health.recent.bit_length() <= WINDOW + 1
        assert health.blocked_until_ms >= before.blocked_until_ms
        asked_ms = int(min(retry_after or 0, RETRY_AFTER_CAP_S) * 1000)
        if effect is not HostEffect.BUSY:
            assert health.blocked_until_ms >= now + asked_ms
        assert health.blocked_until_ms <= max(before.blocked_until_ms, now + int(RETRY_AFTER_CAP_S * 1000))
