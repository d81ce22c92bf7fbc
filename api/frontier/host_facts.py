"""What an outcome or a note of a visit says of its host. Pure."""

from collections.abc import Callable
from dataclasses import replace

from api.frontier.crawls import ActiveCrawl
from api.frontier.fetch_rows import reason_of
from api.frontier.hosts import HostFacts
from shared.domain.failure import HostEffect
from shared.domain.frontier import End
from shared.domain.ids import HostId
from shared.domain.ledger import HostChange
from shared.domain.politeness import UNREACHABLE_BASE_S
from shared.wire.messages import HostNote, UrlOutcome

_FAILURE_CHARS = 500


def facts_after(
    facts: HostFacts,
    effect: HostEffect | None,
    result: UrlOutcome,
    crawl: ActiveCrawl,
    now_ms: int,
    rng01: Callable[[], float],
) -> HostFacts:
    """Return what is known of the host after `result`, which means `effect` for it."""
    retry = crawl.spec.retry
    match effect:
        case None:
            health = facts.health.answered(now_ms) if result.end == End.ANSWERED else facts.health.connected()
            return facts if health is facts.health else replace(facts, health=health)
        case HostEffect.UNREACHABLE:
            health = facts.health.failed(now_ms, retry=retry, base_s=UNREACHABLE_BASE_S, rng01=rng01())
        case _:
            health = facts.health.refused(
                now_ms,
                effect,
                retry=retry,
                delay_s=crawl.delay_s(facts),
                max_delay_s=crawl.spec.politeness.max_delay_s,
                rng01=rng01(),
                retry_after_s=retry_after_s(result),
            )
    return replace(facts, health=health, last_failure=f"{reason_of(result)} {result.detail}".strip()[:_FAILURE_CHARS])


def facts_noted(
    facts: HostFacts, note: HostNote, crawl: ActiveCrawl | None, now_ms: int, rng01: Callable[[], float]
) -> HostFacts:
    """Return what is known of the host after a visit's note. A note of a deleted crawl tells no failure."""
    facts = replace(
        facts,
        crawl_delay_ms=note.crawl_delay_ms if note.crawl_delay_ms >= 0 else facts.crawl_delay_ms,
        latency_ms=note.latency_ms or facts.latency_ms,
        ip=note.ip or facts.ip,
    )
    if not note.failure or crawl is None:
        return facts
    retry = crawl.spec.retry
    health = facts.health.failed(
        now_ms,
        retry=retry,
        base_s=retry.host_base_s if "http_" in note.failure else UNREACHABLE_BASE_S,
        rng01=rng01(),
        retry_after_s=retry_after_s(note),
    )
    return replace(facts, health=health, last_failure=f"{note.failure} {note.detail}".strip())


def host_change(host_id: HostId, facts: HostFacts, now_ms: int) -> HostChange:
    """Return the row that keeps `facts`."""
    health = facts.health
    return HostChange(
        host_id=host_id,
        crawl_delay_ms=facts.crawl_delay_ms,
        latency_ms=facts.latency_ms,
        failures=health.failures,
        unreachable=health.unreachable,
        last_failure_ms=health.last_failure_ms,
        last_failure=facts.last_failure,
        blocked_until_ms=health.blocked_until_ms,
        recent=health.recent,
        slowed_ms=health.slowed_ms,
        asked_ms=health.asked_ms,
        silent_since_ms=health.silent_since_ms,
        visited_at_ms=now_ms,
        ip=facts.ip,
    )


def retry_after_s(asked: UrlOutcome | HostNote) -> float | None:
    """Return the seconds that the server asked to wait, or None."""
    return asked.retry_after_ms / 1000 if asked.retry_after_ms >= 0 else None
