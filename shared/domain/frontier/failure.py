"""The one table of fetch outcomes: what each means for the URL (done, failed, retry, wait) and for its host.

A row (`Policy`) has the category of the outcome, what happens to the URL, and the effect on its host:

* `Disposition.FINAL`: the URL is done or failed, and is not tried again.
* `Disposition.RETRY`: the URL is tried again after base_s x 2^(attempt - 1). It fails after `retry.attempts` attempts.
* `Disposition.RETRY_HOST`: the host could not be reached. This uses up no attempt of the URL. All URLs of the host wait
  until its back-off ends.

A host that could not be reached `retry.host_attempts` times in a row is given up: all its URLs fail, with the reason
`HOST_UNREACHABLE` (`HostHealth.dead`). A host that gave pages of the crawl before is given up only after
`retry.outage_s` seconds.

A URL whose robots.txt is unreachable while another origin of its host answers has a reason such as `robots_connect`. It
counts as FailureKind.OTHER: the attempts are those of the URL, and the host is unchanged.

A 429 or 503 uses up an attempt of the URL. If the last answer is a 429, the URL has `THROTTLED_TIMES` x
`retry.attempts` attempts. The exception is a host that gave pages before and now refuses as a whole
(`HostHealth.refusing`), such as a site in maintenance. Its 429 and 503 answers use up no attempts.
"""

from collections.abc import Mapping
from datetime import UTC
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from shared.domain.crawl.spec import Retry
from shared.domain.frontier.states import UrlState
from shared.domain.web.fetch import Answer, FailureKind

HOST_UNREACHABLE: Final = "host_unreachable"
"""The failure reason of URLs whose host was given up."""


class Category(StrEnum):
    """The categories of fetch results, by the names that counters and displays use."""

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
    """The effect of a fetch's result on the delay and the block of its host, which `HostHealth` applies."""

    THROTTLED = 1
    """The host asks for a slower pace: it is blocked for a while, and its delay doubles."""
    BUSY = 2
    """The host answered 503. The cause may be this URL alone, so the host is blocked only for a short while."""
    UNREACHABLE = 3
    """The host could not be reached: it is probed with growing pauses."""


THROTTLED_TIMES: Final = 3
"""A URL that gets only 429 answers fails after THROTTLED_TIMES x `retry.attempts` attempts."""


class Disposition(Enum):
    """What happens to a URL after a fetch.

    FINAL: it is done or failed. RETRY: it is tried again later, which uses up an attempt. RETRY_HOST: it waits until
    its host can be reached, which uses up no attempt.
    """

    FINAL = 1
    RETRY = 2
    RETRY_HOST = 3


class Policy(Struct, frozen=True):
    """A row of the table of outcomes: what one kind of result means for the URL and its host.

    `host`: the effect on the host, None if there is none. `failed`: a URL that ends with this result is FAILED.
    Otherwise it is DONE.
    """

    category: Category
    disposition: Disposition
    host: HostEffect | None = None
    failed: bool = True


class Decision(Struct, frozen=True):
    """What the frontier does with a URL after a fetch.

    - `state`: DONE, FAILED or WAITING.
    - `wait_s`: seconds until a WAITING URL is tried again. It may be 0.
    - `attempt_used`: the attempt counts against the URL's limit.
    - `host`: the effect on the host, None if there is none.
    """

    category: Category
    state: UrlState
    wait_s: float
    attempt_used: bool
    host: HostEffect | None = None


_THROTTLED: Final = Policy(Category.THROTTLED, Disposition.RETRY, HostEffect.THROTTLED)
_BUSY: Final = Policy(Category.THROTTLED, Disposition.RETRY, HostEffect.BUSY)
_SERVER_ERROR: Final = Policy(Category.SERVER_ERROR, Disposition.RETRY)
_CLIENT_ERROR: Final = Policy(Category.CLIENT_ERROR, Disposition.FINAL)
_GONE: Final = Policy(Category.GONE, Disposition.FINAL)
_PAGE: Final = Policy(Category.PAGE, Disposition.FINAL, failed=False)
_REDIRECT: Final = Policy(Category.REDIRECT, Disposition.FINAL, failed=False)
_UNREACHABLE: Final = Policy(Category.UNREACHABLE, Disposition.RETRY_HOST, HostEffect.UNREACHABLE)
_BROKEN: Final = Policy(Category.BROKEN, Disposition.RETRY)

BY_STATUS: Final[Mapping[int, Policy]] = MappingProxyType(
    {
        304: Policy(Category.NOT_MODIFIED, Disposition.FINAL),
        404: _GONE,
        408: Policy(Category.CLIENT_ERROR, Disposition.RETRY),
        410: _GONE,
        425: Policy(Category.CLIENT_ERROR, Disposition.RETRY),
        429: _THROTTLED,
        501: Policy(Category.SERVER_ERROR, Disposition.FINAL),
        503: _BUSY,
        505: Policy(Category.SERVER_ERROR, Disposition.FINAL),
    }
)
"""The rows for single statuses, which take precedence over the rows for classes of statuses (`BY_CLASS`).

The row for 304 applies only if the request had no condition: the URL fails. A 304 to a conditional request means that
the page is unchanged, and needs no row."""
BY_CLASS: Final[Mapping[int, Policy]] = MappingProxyType({2: _PAGE, 3: _REDIRECT, 4: _CLIENT_ERROR, 5: _SERVER_ERROR})
OTHER_STATUS: Final = Policy(Category.BROKEN, Disposition.FINAL)
"""The row for every HTTP status outside 200..599 that has no row of its own."""

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
        FailureKind.HEADERS_TOO_LARGE: Policy(Category.BROKEN, Disposition.FINAL),
        FailureKind.EGRESS_DENIED: Policy(Category.REFUSED, Disposition.FINAL),
        FailureKind.EXCLUDED: Policy(Category.REFUSED, Disposition.FINAL),
        FailureKind.OTHER: _BROKEN,
    }
)


def policy_for(end: FailureKind | int) -> Policy:
    """Return the row of the table of outcomes for a failure kind or an HTTP status."""
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
    """Return what to do with a URL whose attempt ended with `end`, a failure kind or an HTTP status.

    - `attempt`: the number of this attempt, from 1.
    - `rng01`: a random number in 0..1, which spreads waits by +-10 %.
    - `retry_after_s`: the server's Retry-After in seconds. A URL that is tried again waits at least as long.
    - `host_refuses`: the host gave pages before, and now refuses as a whole. A 429 or 503 then uses up no attempt.
    """
    policy = policy_for(end)
    if policy.disposition is Disposition.RETRY_HOST:
        return Decision(policy.category, UrlState.WAITING, 0.0, attempt_used=False, host=policy.host)
    wait_s = 0.0
    state = UrlState.FAILED if policy.failed else UrlState.DONE
    spared = host_refuses and policy.host is not None
    attempts = retry.attempts * (THROTTLED_TIMES if policy.host is HostEffect.THROTTLED else 1)
    if policy.disposition is Disposition.RETRY and (spared or attempt < attempts):
        wait_s = max(retry_wait_s(retry, attempt, rng01), retry_after_s or 0.0)
        state = UrlState.WAITING
    return Decision(policy.category, state, wait_s, attempt_used=not spared, host=policy.host)


def retry_wait_s(retry: Retry, attempt: int, rng01: float) -> float:
    """Return the seconds to wait after a URL's attempt number `attempt` (from 1).

    They are base_s x 2^(attempt - 1), spread by +-10 % with the random number `rng01` in 0..1, and at most max_s.
    """
    return min(retry.base_s * 2.0 ** (attempt - 1) * (0.9 + 0.2 * rng01), retry.max_s)


def parse_retry_after(value: str, now_s: float) -> float | None:
    """Return the seconds that the value of a Retry-After header asks to wait. Return None if it is invalid.

    The value is a number of seconds or an HTTP date (RFC 9110 §10.2.3). `now_s` is the present Unix time. A date in the
    past gives 0.
    """
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text) if len(text) <= 15 else None
    from email.utils import parsedate_to_datetime  # it imports 30 modules, and few sites send a date

    try:
        then = parsedate_to_datetime(text)
        if then.tzinfo is None:  # The asctime format has no zone, and HTTP dates are UTC.
            then = then.replace(tzinfo=UTC)
        return max(0.0, then.timestamp() - now_s)
    except (ValueError, TypeError, OverflowError):
        return None


def retry_after_ms(answer: Answer, now_ms: int) -> int:
    """Return the wait in ms that the answer's Retry-After header requires, -1 without a valid header."""
    value = answer.header("retry-after")
    wait_s = None if value is None else parse_retry_after(value, now_ms / 1000)
    return -1 if wait_s is None else int(min(wait_s, 1e9) * 1000)
