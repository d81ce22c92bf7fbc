"""What follows from how a fetch ended: the one table of outcomes, retries, waits and blame.

A row says what the end is called, what happens to the URL, and what is to be held against its host:

* `Then.FINAL`: settled, the URL is done (the server's word stands) or failed;
* `Then.RETRY`: tried again after base_s x 2^(attempt - 1) up to `retry.attempts` times, then failed;
* `Then.RETRY_HOST`: it is the host that could not be reached, so no attempt of the URL is used up; the host's block
  holds its URLs back, and `retry.host_attempts` such failures in a row fail them all, reason `HOST_UNREACHABLE`
  (shared/domain/politeness.py). Without that rule a dead host would keep a crawl from ever finishing. A host that gave
  pages of the crawl before has an outage: it is given up only after `retry.outage_s`.

A 429 and a 503 use up an attempt of the URL, or one URL that always answers so would never end. They use up none if it
is the host that refuses (`HostHealth.refusing`) and it gave pages before: a site in maintenance must lose no page. A
429 is rarely about its URL, so it may come `THROTTLED_TIMES` as often as other failures.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Final

from shared.domain.crawl import Retry
from shared.domain.fetch import FailureKind
from shared.domain.frontier import UrlState

HOST_UNREACHABLE: Final = "host_unreachable"
"""The reason of URLs that failed because their host was given up."""


class Category(StrEnum):
    """What an end is called in counters and displays."""

    PAGE = "page"
    NOT_MODIFIED = "not_modified"
    REDIRECT = "redirect"
    GONE = "gone"
    CLIENT_ERROR = "client_error"
    SERVER_ERROR = "server_error"
    THROTTLED = "throttled"
    UNREACHABLE = "unreachable"
    BROKEN = "broken"
    REFUSED = "refused"


class HostEffect(Enum):
    """What an end means for its host (shared/domain/politeness.py)."""

    THROTTLED = 1
    """It asks for a slower pace: it is held, and its delay doubles."""
    BUSY = 2
    """It may be this URL alone: the host rests for a short while."""
    UNREACHABLE = 3
    """It could not be reached: it is probed with growing pauses."""


THROTTLED_TIMES: Final = 3
"""How many times `retry.attempts` a URL may be answered 429."""


class Then(Enum):
    """What happens to the URL (module docstring)."""

    FINAL = 1
    RETRY = 2
    RETRY_HOST = 3


@dataclass(frozen=True, slots=True)
class Policy:
    """A row. `host`: what it means for the host, None where the host is not to blame; `failed`: a final end of this
    kind counts as failed."""

    category: Category
    then: Then
    host: HostEffect | None = None
    failed: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """What the frontier does. `state` is DONE, FAILED or WAITING; `wait_s` is meant for WAITING and may be 0.

    `attempt_used`: the URL's attempt counts. `host`: what follows for the host.
    """

    category: Category
    state: UrlState
    wait_s: float
    attempt_used: bool
    host: HostEffect | None = None


_THROTTLED: Final = Policy(Category.THROTTLED, Then.RETRY, HostEffect.THROTTLED)
_BUSY: Final = Policy(Category.THROTTLED, Then.RETRY, HostEffect.BUSY)
_SERVER_ERROR: Final = Policy(Category.SERVER_ERROR, Then.RETRY)
_CLIENT_ERROR: Final = Policy(Category.CLIENT_ERROR, Then.FINAL)
_GONE: Final = Policy(Category.GONE, Then.FINAL)
_PAGE: Final = Policy(Category.PAGE, Then.FINAL, failed=False)
_REDIRECT: Final = Policy(Category.REDIRECT, Then.FINAL, failed=False)
_UNREACHABLE: Final = Policy(Category.UNREACHABLE, Then.RETRY_HOST, HostEffect.UNREACHABLE)
_BROKEN: Final = Policy(Category.BROKEN, Then.RETRY)

BY_STATUS: Final[Mapping[int, Policy]] = MappingProxyType(
    {
        304: Policy(Category.NOT_MODIFIED, Then.FINAL, failed=False),
        404: _GONE,
        408: Policy(Category.CLIENT_ERROR, Then.RETRY),
        410: _GONE,
        425: Policy(Category.CLIENT_ERROR, Then.RETRY),
        429: _THROTTLED,
        501: Policy(Category.SERVER_ERROR, Then.FINAL),
        503: _BUSY,
        505: Policy(Category.SERVER_ERROR, Then.FINAL),
    }
)
BY_CLASS: Final[Mapping[int, Policy]] = MappingProxyType({2: _PAGE, 3: _REDIRECT, 4: _CLIENT_ERROR, 5: _SERVER_ERROR})
OTHER_STATUS: Final = Policy(Category.BROKEN, Then.FINAL)
"""1xx as a final answer, and numbers outside 100..599."""

BY_KIND: Final[Mapping[FailureKind, Policy]] = MappingProxyType(
    {
        FailureKind.DNS: _UNREACHABLE,
        FailureKind.CONNECT: _UNREACHABLE,
        FailureKind.CONNECT_TIMEOUT: _UNREACHABLE,
        FailureKind.TLS: _UNREACHABLE,
        FailureKind.PROXY: _UNREACHABLE,
        FailureKind.FIRST_BYTE_TIMEOUT: _BROKEN,
        FailureKind.TOTAL_TIMEOUT: _BROKEN,
        FailureKind.RESET: _BROKEN,
        FailureKind.PROTOCOL: _BROKEN,
        FailureKind.HEADERS_TOO_LARGE: Policy(Category.BROKEN, Then.FINAL),
        FailureKind.EGRESS_DENIED: Policy(Category.REFUSED, Then.FINAL),
        FailureKind.OTHER: _BROKEN,
    }
)


def policy_for(end: FailureKind | int) -> Policy:
    """The row for a failure or an HTTP status."""
    if isinstance(end, FailureKind):
        return BY_KIND[end]
    return BY_STATUS.get(end) or BY_CLASS.get(end // 100, OTHER_STATUS)


def decide(
    end: FailureKind | int,
    *,
    attempt: int,
    retry: Retry,
    rng01: float,
    retry_after_s: float | None = None,
    host_refuses: bool = False,
) -> Decision:
    """Return what follows from the `attempt`-th try (from 1) that ended so; `rng01` in 0..1 spreads waits by +-10 %.

    A `retry_after_s` of the server's is heeded wherever the URL is tried again. `host_refuses`: a 429 or 503 is the
    host's and not the URL's.
    """
    policy = policy_for(end)
    if policy.then is Then.RETRY_HOST:
        return Decision(policy.category, UrlState.WAITING, 0.0, attempt_used=False, host=policy.host)
    wait_s = 0.0
    state = UrlState.FAILED if policy.failed else UrlState.DONE
    spared = host_refuses and policy.host is not None
    attempts = retry.attempts * (THROTTLED_TIMES if policy.host is HostEffect.THROTTLED else 1)
    if policy.then is Then.RETRY and (spared or attempt < attempts):
        wait_s = max(retry_wait_s(retry, attempt, rng01), retry_after_s or 0.0)
        state = UrlState.WAITING
    return Decision(policy.category, state, wait_s, attempt_used=not spared, host=policy.host)


def retry_wait_s(retry: Retry, attempt: int, rng01: float) -> float:
    """Seconds to wait after the `attempt`-th try (from 1) failed: base_s x 2^(attempt - 1), +-10 %, at most max_s."""
    return min(retry.base_s * 2.0 ** (attempt - 1) * (0.9 + 0.2 * rng01), retry.max_s)


def parse_retry_after(value: str, now_s: float) -> float | None:
    """Seconds that a Retry-After header asks to wait: a number of seconds or an HTTP date (RFC 9110 §10.2.3).

    `now_s` is Unix time. A date in the past means 0; None for anything else.
    """
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text) if len(text) <= 15 else None
    try:
        then = parsedate_to_datetime(text)
        if then.tzinfo is None:  # asctime's form names no zone; HTTP dates are UTC
            then = then.replace(tzinfo=UTC)
        return max(0.0, then.timestamp() - now_s)
    except (ValueError, TypeError, OverflowError):
        return None
