"""What follows from how a fetch ended: the one table of outcomes, retries, waits and blame.

A row says what the end is called, what happens to the URL, and what is to be held against its host:

* `Then.FINAL`: settled, the URL is done (the server's word stands) or failed;
* `Then.RETRY`: tried again after base_s x 2^(attempt - 1) up to `retry.attempts` times, then failed;
* `Then.RETRY_HOST`: it is the host that could not be reached, so no attempt of the URL is used up; the host's block
  holds its URLs back, and `retry.host_attempts` such failures in a row fail them all, reason `HOST_UNREACHABLE`
  (shared/domain/politeness.py). Without that rule a dead host would keep a crawl from ever finishing.

Throttling (429, 503) uses up the URL's attempts *and* blocks the host: one URL that always answers 503 must end too.
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


class Then(Enum):
    """What happens to the URL (module docstring)."""

    FINAL = 1
    RETRY = 2
    RETRY_HOST = 3


@dataclass(frozen=True, slots=True)
class Policy:
    """A row. `host_base_s`: the host's first back-off, None where the host is not to blame; `failed`: a final end of
    this kind counts as failed."""

    category: Category
    then: Then
    host_base_s: float | None = None
    failed: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """What the frontier does. `state` is DONE, FAILED or WAITING; `wait_s` is meant for WAITING and may be 0.

    `host_base_s` not None: the host backs off from this base (with `retry_after_s`), and `unreachable` tells whether
    the failure counts towards giving the host up. `attempt_used`: the URL's attempt counts.
    """

    category: Category
    state: UrlState
    wait_s: float
    attempt_used: bool
    host_base_s: float | None = None
    unreachable: bool = False
    retry_after_s: float | None = None


_THROTTLED: Final = Policy(Category.THROTTLED, Then.RETRY, host_base_s=60.0)
_SERVER_ERROR: Final = Policy(Category.SERVER_ERROR, Then.RETRY)
_CLIENT_ERROR: Final = Policy(Category.CLIENT_ERROR, Then.FINAL)
_GONE: Final = Policy(Category.GONE, Then.FINAL)
_PAGE: Final = Policy(Category.PAGE, Then.FINAL, failed=False)
_REDIRECT: Final = Policy(Category.REDIRECT, Then.FINAL, failed=False)
_UNREACHABLE: Final = Policy(Category.UNREACHABLE, Then.RETRY_HOST, host_base_s=5.0)
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
        503: _THROTTLED,
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
    end: FailureKind | int, *, attempt: int, retry: Retry, rng01: float, retry_after_s: float | None = None
) -> Decision:
    """What follows from the `attempt`-th try (from 1) that ended so; `rng01` in 0..1 spreads the waits by +-10 %.

    A `retry_after_s` of the server's is heeded wherever the URL is tried again, and for the host where it is to blame.
    """
    policy = policy_for(end)
    if policy.then is Then.RETRY_HOST:
        return Decision(
            policy.category,
            UrlState.WAITING,
            0.0,
            attempt_used=False,
            host_base_s=policy.host_base_s,
            unreachable=True,
        )
    if policy.then is Then.RETRY and attempt < retry.attempts:
        wait_s = max(retry_wait_s(retry, attempt, rng01), retry_after_s or 0.0)
        state = UrlState.WAITING
    else:
        wait_s = 0.0
        state = UrlState.FAILED if policy.failed else UrlState.DONE
    return Decision(
        policy.category, state, wait_s, attempt_used=True, host_base_s=policy.host_base_s, retry_after_s=retry_after_s
    )


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
