"""Explain why a host of a crawl gets no request now, for how long, and what changes that. For displays; no I/O."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, assert_never

from msgspec import Struct
from msgspec.structs import replace

from shared.domain.crawl.host_specs import HostSpecs
from shared.domain.crawl.spec import CrawlSpec, host_slots
from shared.domain.frontier.politeness import HostHealth, host_delay

LEAST_S: Final = 2.0
"""A host whose next request comes within this many seconds does not count as waiting."""

_EXPECTED_FETCH_S: Final = 0.2
_NAMED: Final = 3
_ABOUT_MS: Final = 1_000
_STATUS: Final = {"http_429": "429 (too many requests)", "http_503": "503 (unavailable)"}


class WaitReason(StrEnum):
    """Why a host gets no request now."""

    REFUSES = "refuses"
    """The host answered 429 or 503."""
    SILENT = "silent"
    """The host could not be reached."""
    CRAWL_DELAY = "crawl_delay"
    """The host's robots.txt asks for a long delay."""
    SLOWED = "slowed"
    """The host answered 429 lately, so its delay is longer."""
    DELAY = "delay"
    """The host's delay is long, because of the spec, an operator or the host's slow responses."""
    RETRY = "retry"
    """All remaining URLs of the host failed and are tried again later."""
    RECRAWL = "recrawl"
    """No remaining URL of the host is due. The URLs are stored pages that are fetched again later, or retries."""
    POLICY = "policy"
    """The host's policy blocks it."""


class HostState(Struct, frozen=True):
    """The facts of a host and its queue of one crawl from which its wait is explained.

    - `urls`: how many URLs of the host are left. `waiting`: how many of these wait for a due time.
    - `due_s`: seconds until the first URL of the queue is due.
    - `rest_s`: seconds until the delay of the host has passed.
    - `latency_s`: the duration of the last fetch, 0 if unknown.
    - `retry_s`: seconds until the next failed URL is tried again, 0 if there is none.
    - `gave_pages`: the crawl has pages of the host. `busy`: requests to the host are in progress.
    - `policy_until_ms`: when the block that the host policy sets ends (Unix ms), 0 without a block.
    - `policy_slots`: the host policy's limit of shards that are leased at once, 0 if it sets none.
    """

    host: str
    health: HostHealth
    urls: int
    due_s: float
    rest_s: float
    last_failure: str = ""
    crawl_delay_s: float = 0.0
    operator_delay_s: float = 0.0
    latency_s: float = 0.0
    retry_s: float = 0.0
    gave_pages: bool = False
    busy: bool = False
    waiting: int = 0
    policy_until_ms: int = 0
    policy_slots: int = 0


class HostWait(Struct, frozen=True):
    """A host that gets no request for the next `wait_s` seconds, and why.

    - `urls`: how many of its URLs are left.
    - `delay_s`: the delay between its requests.
    - `cause`: the name of its last failure, if that is the reason for the wait.
    - `given_up_s`: seconds until the host is given up at the earliest, -1 if unknown.
    - `asked`: the host itself asked for this wait (Retry-After).
    """

    host: str
    reason: WaitReason
    wait_s: float
    urls: int
    delay_s: float = 0.0
    cause: str = ""
    given_up_s: float = -1.0
    asked: bool = False


class Waits(Struct, frozen=True):
    """The hosts of a crawl that wait, those with the shortest waits first.

    - `hosts`: some of the hosts that wait. `number`: how many hosts wait in all.
    - `standing`: every host with URLs waits, so the crawl makes no request now.
    - `left_s`: the seconds that the slowest host needs for its present URLs at the present pace. It is -1 if no host
      has URLs, or if a host does not answer.
    """

    hosts: tuple[HostWait, ...] = ()
    number: int = 0
    standing: bool = False
    left_s: float = -1.0


def delay_of(state: HostState, spec: CrawlSpec) -> float:
    """Return the host's delay: the seconds from the end of a response to its next request.

    `spec`: the spec as it applies to this host.
    """
    return host_delay(
        spec.politeness,
        crawl_delay_s=state.crawl_delay_s or None,
        last_fetch_s=state.latency_s or None,
        operator_delay_s=state.operator_delay_s,
        slowed_s=state.health.slowed_ms / 1000,
    )


def rested(state: HostState, spec: CrawlSpec) -> HostState:
    """Return a copy of `state` in which `rest_s` is the number of seconds until the host's delay has passed.

    In the given `state`, `rest_s` is a negative number: -3 if the last visit to the host was 3 seconds ago. With a
    delay of 5 seconds the result is 2. The result is negative if the delay has passed already.
    """
    return replace(state, rest_s=state.rest_s + delay_of(state, spec))


def given_up(hosts: Mapping[str, str], urls: int, retry: str) -> str:
    """Return a sentence on the hosts that were given up. Return an empty text if there are none.

    - `hosts`: the last failure of each host that was given up, by host.
    - `urls`: how many URLs failed because of this. With 0 the result is empty.
    - `retry`: the command that tries these URLs again.
    """
    if not hosts or not urls:
        return ""
    named = [
        f"{host} ({failure.partition(' ')[0].replace('_', ' ')})" for host, failure in list(hosts.items())[:_NAMED]
    ]
    more = f" and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else ""
    were = "1 host was" if len(hosts) == 1 else f"{len(hosts)} hosts were"
    lost = "1 URL" if urls == 1 else f"{urls:,} URLs"
    tls = any(failure.partition(" ")[0] in ("tls", "robots_tls") for failure in hosts.values())
    trust = ", with --ca FILE for certificates of an authority of your own" if tls else ""
    return (
        f"{were} given up with {lost} after {'it' if len(hosts) == 1 else 'they'} could not be reached: "
        f"{', '.join(named)}{more}; to go on once this is over: {retry}{trust}"
    )


def wait_of(state: HostState, spec: CrawlSpec, now_ms: int) -> HostWait | None:
    """Return why the host gets no request now, or None if the host does not count as waiting.

    A host counts as waiting in two cases:

    - Its next request comes in LEAST_S seconds or later.
    - The host could not be reached, and is blocked for that. Then even a shorter wait counts.

    `spec`: the spec as it applies to this host.
    """
    health, delay_s = state.health, delay_of(state, spec)
    blocked_s = (health.blocked_until_ms - now_ms) / 1000
    policy_s = (state.policy_until_ms - now_ms) / 1000
    wait_s = max(blocked_s, policy_s, state.due_s, 0.0 if state.busy else state.rest_s)
    silent = bool(health.silent_since_ms and health.unreachable)
    if wait_s < LEAST_S and not (silent and blocked_s > 0):
        return None
    reason, cause, given_up_s, asked = WaitReason.DELAY, "", -1.0, False
    if policy_s > 0 and policy_s >= max(blocked_s, state.due_s, state.rest_s):
        reason = WaitReason.POLICY
    elif blocked_s >= max(state.due_s, state.rest_s):
        reason = WaitReason.SILENT if silent else WaitReason.REFUSES
        cause = state.last_failure.partition(" ")[0]
        held_ms = health.blocked_until_ms - health.last_failure_ms
        asked = health.asked_ms > 0 and abs(held_ms - health.asked_ms) < _ABOUT_MS
        if silent and state.gave_pages:
            given_up_s = max(0.0, blocked_s, spec.retry.outage_s - health.silent_s(now_ms, spec.retry))
    elif state.due_s > state.rest_s:
        reason = WaitReason.RECRAWL if spec.recrawl.used else WaitReason.RETRY
    elif spec.politeness.obey_robots and state.crawl_delay_s >= delay_s:
        reason = WaitReason.CRAWL_DELAY
    elif health.slowed_ms > 0 and health.slowed_ms / 1000 >= delay_s:
        reason = WaitReason.SLOWED
    return HostWait(state.host, reason, wait_s, state.urls, delay_s, cause, given_up_s, asked)


def waits_of(states: Sequence[HostState], spec: CrawlSpec, now_ms: int, *, max_count: int = 5) -> Waits:
    """Return which of a crawl's hosts wait and why: their number, and at most `max_count` of them.

    `states`: the hosts that have URLs left.
    """
    waits, left_s, moving, silent = [], -1.0, False, False
    specs = HostSpecs(spec)
    for state in states:
        own = specs.of(state.host)
        wait = wait_of(state, own, now_ms)
        delay_s = delay_of(state, own)
        fetch_s = state.latency_s or _EXPECTED_FETCH_S
        slots = host_slots(own.politeness, delay_s)
        slots = min(slots, state.policy_slots) if state.policy_slots else slots
        rest_s = (state.urls - 1) * (delay_s + fetch_s) / slots
        wait_s = 0.0 if wait is None else wait.wait_s
        left_s = max(left_s, wait_s + fetch_s + rest_s, state.retry_s + fetch_s)
        if wait is None:
            moving = True
        else:
            waits.append(wait)
            silent |= wait.reason is WaitReason.SILENT
    waits.sort(key=lambda wait: wait.wait_s)
    return Waits(tuple(waits[:max_count]), len(waits), bool(waits) and not moving, -1.0 if silent else left_s)


def cause_of(wait: HostWait, clock: str) -> str:
    """Return a phrase that says how long the host waits, and why.

    For example, the phrase is `until 12:00 for example.org: it answered 503 (unavailable)`.

    `clock`: the time in words with which the phrase begins, here `until 12:00`.
    """
    text = f"{clock} for {wait.host}: "
    match wait.reason:
        case WaitReason.REFUSES:
            text += f"it answered {_STATUS.get(wait.cause, '429 or 503')}"
            return text + (" and asked for this pause" if wait.asked else "")
        case WaitReason.SILENT:
            status = wait.cause.removeprefix("robots_http_")
            if status != wait.cause:
                return f"{text}it answered {status} for robots.txt, and is tried again then"
            kind = f" ({wait.cause.replace('_', ' ')})" if wait.cause else ""
            return f"{text}it does not answer{kind}, and is tried again then"
        case WaitReason.CRAWL_DELAY:
            return f"{text}its robots.txt asks for {wait.delay_s:g} s between requests"
        case WaitReason.SLOWED:
            return f"{text}it answered 429, so it is asked every {wait.delay_s:g} s"
        case WaitReason.DELAY:
            return f"{text}it is asked every {wait.delay_s:g} s"
        case WaitReason.RETRY:
            urls = "1 URL failed and is" if wait.urls == 1 else f"{wait.urls:,} URLs failed and are"
            return f"{text}{urls} tried again then"
        case WaitReason.RECRAWL:
            return f"{text}its next page is due then"
        case WaitReason.POLICY:
            return f"{text}its policy blocks it"
        case never:
            assert_never(never)


def remedy_of(wait: HostWait, unblock: str, given_up: str) -> str:
    """Return a phrase on what ends or shortens the host's wait.

    - `unblock`: the command that ends the wait.
    - `given_up`: the time until the host is given up, in words. Empty if unknown.
    """
    match wait.reason:
        case WaitReason.REFUSES | WaitReason.RETRY:
            return f"to ask at once: {unblock}"
        case WaitReason.SILENT:
            until = (
                f"it is given up after {given_up} more (--outage)" if given_up else "it is given up after a few tries"
            )
            return f"{until}; to ask at once: {unblock}"
        case WaitReason.CRAWL_DELAY:
            return "ask the site's owner for a shorter one; --no-robots ignores it"
        case WaitReason.SLOWED:
            return "the delay shrinks with each answer, and politeness.max_delay_s bounds it"
        case WaitReason.DELAY:
            return "--delay and politeness.adaptive set this"
        case WaitReason.RECRAWL:
            return "the section recrawl of the spec sets this"
        case WaitReason.POLICY:
            return "change or delete its host policy"
        case never:
            assert_never(never)
