"""robots.txt of the origins that visits fetch from: fetched once, shared by all workers, and cached parsed.

A robots.txt is looked up in this process, then in a key-value bucket of the broker that all workers share (the shared
bucket), and then fetched. At most one visit of a process looks up or fetches the robots.txt of an origin at the same
time. The visit fetches under its own grant, host delay and egress rules.

A redirect may lead to another origin, for whose host the visit has no grant. If the robots.txt of that origin is
cached, it is used. Otherwise it is requested, and cached for that origin as well. Visits of this process send such
requests to one origin one after another, with the host's delay between them.

When a visit has settled all its URLs, it renews a robots.txt that has used up `RENEWED_AT` of its lifetime.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final
from weakref import WeakValueDictionary

import structlog
from msgspec import Struct
from msgspec.structs import replace

from shared.domain.errors import Permanent, Transient
from shared.domain.frontier.failure import retry_after_ms
from shared.domain.web.fetch import Answer, FailureKind, FetchFailed, FetchRequest, Truncation
from shared.domain.web.robots import (
    DELAYS_KEPT,
    MAX_ROBOTS_HOPS,
    TOO_COSTLY,
    UNREACHABLE_LIFETIME_S,
    AllowAll,
    RobotsPolicy,
    RobotsRecord,
    Rules,
    Unreachable,
    outliving_delay,
    policy_of,
    robots_record,
    with_cached,
)
from shared.domain.web.url import Location, host_of, origin_of
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.wire.messages import Malformed
from shared.wire.robots import decode_robots, encode_robots, robots_key
from workers.outlinks import redirect_target
from workers.visit_crawls import VisitCrawl, robots_request

log = structlog.get_logger(__name__)

Send = Callable[[FetchRequest, float], Awaitable[Answer | FetchFailed | None]]
"""A function that sends one request as soon as the host's delay permits, but not before the given time (Clock.elapsed).
It returns None if the visit must end instead."""

CACHE_BYTES: Final = 32 << 20

PARSED_ON_LOOP: Final = 64 << 10
"""A robots.txt with more bytes is parsed in a thread."""

RENEWED_AT: Final = 0.8
"""The share of its lifetime after which a robots.txt is renewed. If that fails, the next attempt is 300 s later."""

MAX_REDIRECTS_KEPT: Final = 10_000
"""The maximum number of origins for which the cache keeps an open redirect of robots.txt: one that a visit received but
could not follow before its end. The next visit of the origin follows the redirect."""

_ENTRY_BYTES: Final = 2_000
_MAX_AGE: Final = re.compile(r"(?:^|[,\s])max-age\s*=\s*\"?(\d{1,9})", re.IGNORECASE)
_KINDS: Final = frozenset(kind.value for kind in FailureKind)


class Robots(Struct, frozen=True):
    """What robots.txt permits on an origin.

    - `failure`: why robots.txt is unreachable, such as `robots_dns` or `robots_http_503`. Empty if it is reachable.
    - `retry_after_ms`: the wait that the response requires, -1 if it requires none.
    - `fetched_at_ms`: when the last request for robots.txt ended (Unix ms), 0 if there was none or it is unreachable.
    """

    policy: RobotsPolicy
    failure: str = ""
    retry_after_ms: int = -1
    fetched_at_ms: int = 0

    def allows(self, url: str, token: str) -> bool:
        """Return True if robots.txt lets the robot `token` (a product token) fetch the canonical `url`."""
        match self.policy:
            case Rules(rules):
                return rules.allows(url, token)
            case AllowAll():
                return True
            case Unreachable():
                return False

    def age_s(self, now_ms: int) -> float:
        """Return the seconds from `fetched_at_ms` to `now_ms` (Unix ms)."""
        return max(0.0, (now_ms - self.fetched_at_ms) / 1000)

    def sitemaps(self, origin: str) -> tuple[Location, ...]:
        """Return the sitemaps that robots.txt names. `origin` is the origin from which it was fetched."""
        return self.policy.rules.sitemaps(origin) if isinstance(self.policy, Rules) else ()

    def crawl_delay_s(self, token: str) -> float | None:
        """Return the seconds between requests that robots.txt requires of the robot `token`. None: it requires none."""
        return self.policy.rules.crawl_delay(token) if isinstance(self.policy, Rules) else None


class _KeptRobots(Struct):
    """The robots.txt of an origin in the cache, or the failure to fetch it (`robots.failure`).

    - `renewed_from_ms`: from this time on (Unix ms), a visit renews a robots.txt that is not a failure.
    - `postponed`: True if the next visit uses the failure as its result, instead of requesting robots.txt again.
    """

    record: RobotsRecord
    robots: Robots
    renewed_from_ms: float
    postponed: bool = False


class _Moved(Struct, frozen=True):
    """Where the robots.txt of an origin is requested next: at the URL `to`.

    - `status`: the status of the redirect to it, 0 if there was none.
    - `hops`: the number of redirects that lead to it.
    - `until_ms`: if a visit ended before the request, a later visit sends it, but not after this time (Unix ms).
    """

    to: str
    status: int = 0
    hops: int = 0
    until_ms: float = 0.0


class RobotsCache:
    """The robots.txt rules of the most recently used origins, up to about `CACHE_BYTES` of text."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._kept: OrderedDict[str, _KeptRobots] = OrderedDict()
        self._bytes = 0
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._requests: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._failed_elsewhere: dict[str, RobotsRecord] = {}
        self._moved: dict[str, _Moved] = {}
        self._free_at: dict[str, float] = {}

    async def of(self, origin: str, crawl: VisitCrawl, send: Send, delay_s: float) -> Robots | None:
        """Return the robots.txt rules of `origin`, parsed for the crawl's product token. `delay_s`: the host's delay.

        If robots.txt must be fetched, call `send` for each request. Return None if `send` returned None.
        """
        robots = await self._known(origin, crawl, send, delay_s)
        return None if robots is None else await _parsed(robots, crawl.token)

    async def known(self, origin: str) -> Robots | None:
        """Return the rules of `origin` without a request to `origin`. Return them even if they have expired.

        The rules come from this process's cache or the shared bucket. Return None if neither has them.
        """
        kept = self._kept.get(origin)
        if kept is not None:
            return kept.robots
        shared = await self._shared(origin)
        return None if shared is None else _understood(shared)

    def postpone(self, origin: str) -> bool:
        """Let the next visit of `origin` use the cached failure of robots.txt, instead of requesting robots.txt again.

        Return False if no failure is cached, or if one was postponed before and no visit has used it since. In the
        second case, the visits may go to another worker.
        """
        kept = self._kept.get(origin)
        if kept is None or not kept.robots.failure:
            return False
        again, kept.postponed = kept.postponed, True
        return not again

    async def renew(self, origin: str, crawl: VisitCrawl, send: Send, delay_s: float) -> None:
        """Fetch the robots.txt of `origin` again, by `send`, if the cached one is near its expiry (RENEWED_AT).

        If robots.txt is unreachable now, keep the cached one until it expires. Return at once if another visit of this
        process is fetching the robots.txt of `origin`.
        """
        lock = _lock_of(self._locks, origin)
        if lock.locked() or not self._renewal_due(origin):
            return
        async with lock:
            shared = await self._shared(origin)
            # Other visits may evict the entry whenever this one awaits.
            kept = self._kept.get(origin)
            newer = shared is not None and (kept is None or shared.fetched_at_ms > kept.record.fetched_at_ms)
            if shared is not None and newer and not (known := _understood(shared)).failure:
                self._keep(origin, shared, known)
            if not self._renewal_due(origin):
                return
            match await self._fetch(origin, crawl, send, delay_s):
                case record, retry_after_ms if not isinstance(policy_of(record), Unreachable):
                    await self._keep_fetched(origin, record, crawl, retry_after_ms, delay_s)
                case _ if (kept := self._kept.get(origin)) is not None:
                    kept.renewed_from_ms = self._clock.unix_ms() + UNREACHABLE_LIFETIME_S * 1000

    def _renewal_due(self, origin: str) -> bool:
        now_ms, kept = self._clock.unix_ms(), self._kept.get(origin)
        return (
            kept is not None
            and not kept.robots.failure
            and kept.renewed_from_ms <= now_ms
            and kept.record.fresh(now_ms)
        )

    async def _known(self, origin: str, crawl: VisitCrawl, send: Send, delay_s: float) -> Robots | None:
        asked_ms = self._clock.unix_ms()
        kept = self._fresh(origin, asked_ms)
        if kept is not None:
            return kept
        async with _lock_of(self._locks, origin):
            return self._fresh(origin, asked_ms) or await self._obtain(origin, crawl, send, delay_s)

    async def _obtain(self, origin: str, crawl: VisitCrawl, send: Send, delay_s: float) -> Robots | None:
        old = self._kept[origin].record if origin in self._kept else None
        shared = await self._shared(origin)
        if shared is not None and (old is None or shared.fetched_at_ms > old.fetched_at_ms):
            old = shared
        if old is not None and old.fresh(self._clock.unix_ms()) and not (known := _understood(old)).failure:
            return self._keep(origin, old, known)
        fetched = await self._fetch(origin, crawl, send, delay_s)
        match fetched:
            case None | Robots():
                return fetched
            case new, retry_after_ms:
                return await self._keep_fetched(origin, with_cached(new, old), crawl, retry_after_ms, delay_s)

    async def _keep_fetched(
        self, origin: str, record: RobotsRecord, crawl: VisitCrawl, retry_after_ms: int, delay_s: float
    ) -> Robots:
        robots = await _parsed(_understood(record), crawl.token)
        record = outliving_delay(record, max(delay_s, robots.crawl_delay_s(crawl.token) or 0.0))
        if robots.failure:
            return self._keep(origin, record, replace(robots, retry_after_ms=retry_after_ms))
        await self._share(origin, record)
        return self._keep(origin, record, robots)

    async def _fetch(
        self, origin: str, crawl: VisitCrawl, send: Send, delay_s: float
    ) -> tuple[RobotsRecord, int] | Robots | None:
        """Fetch robots.txt and follow its redirects. The result is one of these:

        - None: `send` returned None, so the visit must end. The next call continues with the same request.
        - Robots, not to be cached: egress rules or an exclusion forbid any request to `origin`, also for its pages. So
          no robots.txt is needed. These Robots allow all URLs. The request of each page then fails with the reason.
        - A pair, in all other cases: the record to cache, and the Retry-After in ms (-1: none). The record says
          "unreachable" if a request failed. After more than MAX_ROBOTS_HOPS redirects, it says that all is allowed.
        """
        moved = self._moved.pop(origin, None)
        if moved is None or moved.until_ms < self._clock.unix_ms():
            moved = _Moved(f"{origin}/robots.txt")
        while moved.hops <= MAX_ROBOTS_HOPS:
            place, at, asked_ms = moved.to, origin_of(moved.to), self._clock.unix_ms()
            elsewhere = at != origin and place == f"{at}/robots.txt"
            # Nothing else is waited for under this lock: robots.txt that redirect to each other cause no deadlock.
            async with _lock_of(self._requests, at):
                if elsewhere and (known := await self._known_elsewhere(at, asked_ms)) is not None:
                    return known, -1
                fetched = await self._requested(place, crawl, send, first=not moved.hops)
                if at != origin and fetched is not None:
                    self._rest(at, crawl.delay_s(host_of(place)))
                if elsewhere and isinstance(fetched, tuple):
                    await self._keep_elsewhere(at, fetched[0])
            if fetched is None and moved.hops:
                self._continue_later(origin, moved, delay_s)
            if not isinstance(fetched, _Moved):
                return fetched
            moved = replace(fetched, hops=moved.hops + 1)
        return self._record(moved.status, b"", ""), -1

    def _continue_later(self, origin: str, moved: _Moved, delay_s: float) -> None:
        """Let the next visit of `origin` begin at the redirect's target, if it comes soon: the redirect may change."""
        if len(self._moved) >= MAX_REDIRECTS_KEPT:
            del self._moved[next(iter(self._moved))]
        valid_s = max(UNREACHABLE_LIFETIME_S, DELAYS_KEPT * delay_s)
        self._moved[origin] = replace(moved, until_ms=self._clock.unix_ms() + valid_s * 1000)

    def _rest(self, origin: str, delay_s: float) -> None:
        """Let `delay_s` seconds pass before the next request to `origin` that follows a redirect of robots.txt."""
        now = self._clock.elapsed()
        resting = {at: free_at for at, free_at in self._free_at.items() if free_at > now}
        self._free_at = resting | {origin: now + delay_s}

    async def _known_elsewhere(self, origin: str, asked_ms: int) -> RobotsRecord | None:
        """Return what is known of the robots.txt of `origin`, to which the robots.txt of another origin redirects.

        - If another visit's request for the file failed at `asked_ms` (Unix ms) or later, return a record of the
          failure. `asked_ms` is when the caller began to wait for its turn to request the file.
        - If the file is cached and not yet due for renewal, return the cached record.
        - Otherwise return None: the caller must request the file.
        """
        kept, now_ms = self._kept.get(origin), self._clock.unix_ms()
        failed = self._failed_elsewhere.get(origin)
        if failed is not None and failed.fetched_at_ms >= asked_ms:
            return failed
        for record in (None if kept is None else kept.record, await self._shared(origin)):
            if record is None or record.stale_until_ms or isinstance(policy_of(record), Unreachable):
                continue
            if record.fresh(now_ms) and now_ms < record.fetched_at_ms + record.lifetime_s * 1000 * RENEWED_AT:
                return record
        return None

    async def _keep_elsewhere(self, origin: str, record: RobotsRecord) -> None:
        """Cache the robots.txt of `origin`, to which the robots.txt of another origin redirected.

        If the request failed, cache the failure only for other redirects to `origin`. Visits of `origin` itself must
        request the file again. If egress rules or an exclusion denied the request, cache nothing.
        """
        if not isinstance(policy_of(record), Unreachable):
            self._keep(origin, record, _understood(record))
            await self._share(origin, record)
        elif not record.detail.startswith((FailureKind.EGRESS_DENIED, FailureKind.EXCLUDED)):
            now_ms = self._clock.unix_ms()
            recent = {at: failed for at, failed in self._failed_elsewhere.items() if failed.fresh(now_ms)}
            self._failed_elsewhere = recent | {origin: record}

    async def _requested(
        self, place: str, crawl: VisitCrawl, send: Send, *, first: bool
    ) -> tuple[RobotsRecord, int] | Robots | _Moved | None:
        """Send one request for a robots.txt, to the URL `place`, by `send`. The result is one of these:

        - None: `send` returned None, so the visit must end.
        - _Moved: the answer is a redirect with a usable target.
        - Robots that allow all URLs: egress rules or an exclusion forbid the first request. The same rules forbid all
          pages of the origin, so no robots.txt is needed. The request of each page then fails with the reason.
        - A pair, in all other cases: the record, and the Retry-After in ms (-1: none). The record says "unreachable" if
          the request failed, the answer is unusable, or a later request is forbidden.

        `first`: True for the first request, False for a later one: `place` is then the target of a redirect.
        """
        answer = await send(robots_request(place, crawl), 0.0 if first else self._free_at.get(origin_of(place), 0.0))
        match answer:
            case None:
                return None
            case FetchFailed(kind=FailureKind.EGRESS_DENIED | FailureKind.EXCLUDED) if first:
                return Robots(AllowAll(answer.detail))
            case FetchFailed():
                return self._record(0, b"", f"{answer.kind}: {answer.detail}"), -1
            case Answer(truncated=Truncation.TIME | Truncation.DISCONNECT) if 200 <= answer.status < 300:
                return self._record(0, b"", f"{FailureKind.RESET}: robots.txt came in part only"), -1
            case Answer(decode_error=str(error), truncated=None) if 200 <= answer.status < 300:
                return self._record(0, b"", f"{FailureKind.PROTOCOL}: robots.txt cannot be decoded: {error}"), -1
            case Answer() if 300 <= answer.status < 400:
                location = answer.header("location")
                to = None if location is None else redirect_target(location, place)
                if to is None:
                    detail = f"{FailureKind.PROTOCOL}: status {answer.status} without a usable Location"
                    return self._record(0, b"", detail), -1
                return _Moved(to, answer.status)
            case Answer():
                age = _MAX_AGE.search(answer.header("cache-control") or "")
                max_age_s = float(age[1]) if age is not None else None
                record = self._record(answer.status, answer.decoded, "", max_age_s)
                return record, retry_after_ms(answer, self._clock.unix_ms())

    def _record(self, status: int, body: bytes, detail: str, max_age_s: float | None = None) -> RobotsRecord:
        now_ms = self._clock.unix_ms()
        return robots_record(status, body, fetched_at_ms=now_ms, max_age_s=max_age_s, detail=detail)

    def _fresh(self, origin: str, asked_ms: int) -> Robots | None:
        """Return the cached rules of `origin`. Return None if robots.txt must be requested.

        `asked_ms` (Unix ms): when the caller's visit first needed the rules. The cache may hold one of these:

        - Nothing, or an entry whose lifetime has passed: return None.
        - Rules of a reachable robots.txt: return the rules.
        - The failure of a request before `asked_ms`: return it once if it is postponed, else None: try again.
        - The failure of a request since `asked_ms`: return the failure. Another visit tried while this one waited.
        """
        kept = self._kept.get(origin)
        if kept is None or not kept.record.fresh(self._clock.unix_ms()):
            return None
        if kept.robots.failure and kept.record.fetched_at_ms < asked_ms and not kept.postponed:
            return None
        kept.postponed = False
        self._kept.move_to_end(origin)
        return kept.robots

    def _keep(self, origin: str, record: RobotsRecord, robots: Robots) -> Robots:
        old = self._kept.pop(origin, None)
        self._moved.pop(origin, None)
        if old is not None:
            self._bytes -= len(old.record.body) + _ENTRY_BYTES
        # An old copy that is used beyond its lifetime is fetched anew when its extension ends.
        from_ms = record.fetched_at_ms + record.lifetime_s * 1000 * (1.0 if record.stale_until_ms else RENEWED_AT)
        self._kept[origin] = _KeptRobots(record, robots, from_ms, bool(robots.failure and old and old.postponed))
        self._bytes += len(record.body) + _ENTRY_BYTES
        while self._bytes > CACHE_BYTES and len(self._kept) > 1:
            _, forgotten = self._kept.popitem(last=False)
            self._bytes -= len(forgotten.record.body) + _ENTRY_BYTES
        return robots

    async def _shared(self, origin: str) -> RobotsRecord | None:
        """Return the record of `origin` from the shared bucket. Return None if there is none, or reading it fails."""
        try:
            data = await self._broker.get_robots(robots_key(origin))
            return None if data is None else decode_robots(data)
        except (Transient, Permanent, Malformed) as error:
            log.info("shared_robots.skipped", origin=origin, error=str(error))
            return None

    async def _share(self, origin: str, record: RobotsRecord) -> None:
        try:
            await self._broker.put_robots(robots_key(origin), encode_robots(record))
        except (Transient, Permanent) as error:
            log.info("shared_robots.skipped", origin=origin, error=str(error))

    def __repr__(self) -> str:
        return f"<RobotsCache {len(self._kept)} origins>"


def _understood(record: RobotsRecord) -> Robots:
    policy = policy_of(record)
    if not isinstance(policy, Unreachable):
        return Robots(policy, fetched_at_ms=record.fetched_at_ms)
    kind = record.detail.partition(":")[0]
    why = f"http_{record.status}" if record.status else kind if kind in _KINDS else FailureKind.OTHER.value
    return Robots(policy, f"robots_{why}")


def _lock_of(locks: WeakValueDictionary[str, asyncio.Lock], name: str) -> asyncio.Lock:
    """Return the lock for `name`. It exists for as long as a caller uses it."""
    lock = locks.get(name)
    if lock is None:
        lock = locks[name] = asyncio.Lock()
    return lock


async def _parsed(robots: Robots, token: str) -> Robots:
    """Return `robots` with its rules parsed for `token`, in a thread if the file is large.

    If the rules are too costly to match, return Robots that count as unreachable instead.
    """
    if not isinstance(robots.policy, Rules):
        return robots
    rules = robots.policy.rules
    if len(rules) > PARSED_ON_LOOP and not rules.parsed(token):
        await asyncio.to_thread(rules.of, token)
    if rules.of(token).too_costly:
        return Robots(Unreachable(TOO_COSTLY), f"robots_{FailureKind.OTHER}")
    return robots
