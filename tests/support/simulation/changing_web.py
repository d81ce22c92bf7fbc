"""A web that changes in virtual time: thousands of hosts, drawn by a seed, that a recrawl policy is measured against.

How often pages change follows Cho and Garcia-Molina, The evolution of the web and implications for an incremental
crawler, 2000 (720,000 pages over four months): see RATES. Sitemaps follow what Bing published in February 2023: 58 % of
the hosts have one, 84 % of those have `lastmod`. Of these 79 % are right, 18 % have the time at which the sitemap was
made, and 3 % list some pages only. Large hosts have one more often (SITEMAPS). All rates were fixed before any policy
was tuned.

Pages of a host resemble each other: half of them change as often as is usual there. A fifth of the pages that change
within a day or a week do so at a time of their own, which is no Poisson process. One page in twenty changes its rate at
some time by a factor of up to ten. Some pages vanish, some are copies of others. A response may be late, an error, 429
with Retry-After, or no connection during an outage. Trap hosts link to endless spaces; of these the first pass stored
what the rules of scope admit.

Nothing depends on the order of requests but what they cause themselves. Times are seconds since the start.
"""

import math
import random
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from shared.domain.crawl.scope import CompiledScope
from shared.domain.crawl.spec import CrawlSpec, Scope, ScopeMode, Seed
from shared.domain.web.fetch import FailureKind

DAY_S: Final = 86_400.0
TUNING_SEEDS: Final = (101, 102)
"""The policies are tuned on these two webs only."""

TABLE_SEEDS: Final = (201, 202)
"""The webs of the table, which no tuning has seen."""

SECOND_SEEDS: Final = (301, 302)
"""The webs of the second table."""

RATES: Final = (
    (0.23, 600.0, DAY_S),
    (0.15, DAY_S, 7 * DAY_S),
    (0.16, 7 * DAY_S, 30 * DAY_S),
    (0.16, 30 * DAY_S, 120 * DAY_S),
    (0.30, 120 * DAY_S, 1800 * DAY_S),
)
"""The part of the pages whose mean time between changes lies in a range. It is spread by its logarithm there."""

LIFETIMES: Final = (1.4, 152.2 * DAY_S)
"""Of the second web: shape and scale of the Weibull distribution of pages' mean times between changes, from Brewington
and Cybenko, How dynamic is the web?, 2000 (two million pages over seven months; mean 138 days, median 117). It was
fixed, with its seeds, before a policy ran on it."""

LARGE: Final = 32
SITEMAPS: Final = (0.36, 0.80)
"""The part of hosts that have a sitemap: of those with fewer than LARGE pages (about half of all), and of others."""

DELAY_S: Final = 1.0
TRAP_DEPTH: Final = 12
_NEVER: Final = math.inf
_MASK: Final = (1 << 64) - 1


class Study(Enum):
    """The measurement of the real web that a web's rates of change are drawn from."""

    CHO = "cho"
    BREWINGTON = "brewington"


class Sitemap(Enum):
    """What a host's sitemap says of its pages."""

    NONE = "none, or without lastmod"
    RIGHT = "lastmod is when a page changed"
    ALWAYS_NOW = "lastmod is when the sitemap was made"
    PARTLY = "right, but lists every other page only"


@dataclass(slots=True, eq=False)
class Page:
    """A page. `stored_at`: when the crawl last got it; `next_change`: when it changes first after that.

    `rate` changes to `rate_later` at `turns_at`. With a `period` it changes at `phase`, `phase + period`, and so on.
    """

    number: int
    host: "WebHost"
    rate: float
    rate_later: float
    turns_at: float
    period: float
    phase: float
    dies_at: float
    listed: bool
    copy: bool
    fetches: int = 0
    stored_at: float = 0.0
    next_change: float = _NEVER

    def true_rate(self, now: float) -> float:
        """Return the rate of change at a moment, in changes a second."""
        if self.period:
            return 1 / self.period
        return self.rate if now < self.turns_at else self.rate_later

    def change_after(self, start: float, uniform: float) -> float:
        """Return when the page changes first after `start`."""
        if self.period:
            return self.phase + (math.floor((start - self.phase) / self.period) + 1) * self.period
        events = -math.log1p(-uniform)
        before = self.rate * (self.turns_at - start)
        if before >= events:
            return start + events / self.rate
        return max(start, self.turns_at) + (events - max(before, 0.0)) / self.rate_later


@dataclass(slots=True, eq=False)
class WebHost:
    """A host, and what the requests that it got were like. It answers 429 beyond `limit` requests in an hour.

    `impolite`: requests that came sooner than the delay after a response, or before the end of a Retry-After.
    """

    name: str
    latency_s: float
    error_part: float
    limit: int
    outage: tuple[float, float]
    sitemap: Sitemap
    trap: bool
    pages: list[Page] = field(default_factory=list)
    requests: int = 0
    impolite: int = 0
    _free_at: float = -_NEVER
    _hour: int = -1
    _in_hour: int = 0


@dataclass(frozen=True, slots=True)
class Response:
    """What became of a request: a status, or a failure without one. `changed`: the page is not as it was stored."""

    end: int | FailureKind
    took_s: float
    retry_after_s: float | None = None
    changed: bool = False


class ChangingWeb:
    """The web of one seed. It draws what happens at the n-th request of a page from the seed, the page and n."""

    def __init__(self, seed: int, hosts: int = 2_000, days: float = 360.0, study: Study = Study.CHO) -> None:
        self._range = _range if study is Study.CHO else _fifth
        self._seed = seed * 0x9E3779B97F4A7C15 & _MASK
        drawn = random.Random(seed)
        self.end_s = days * DAY_S
        self.pages: list[Page] = []
        self.hosts = [self._host(drawn, number) for number in range(hosts)]

    def uniform(self, page: Page, salt: int) -> float:
        """Return a number in [0, 1) of this page and its next request."""
        value = self._seed + (page.number << 32) + (page.fetches << 8) + salt & _MASK
        for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
            value = (value ^ value >> 30) * factor & _MASK
        return ((value ^ value >> 31) >> 11) / (1 << 53)

    def store(self, page: Page, now: float) -> None:
        """Take the page as it is now for the stored one."""
        page.stored_at = now
        page.fetches += 1
        page.next_change = page.change_after(now, self.uniform(page, 0))

    def get(self, page: Page, now: float) -> Response:
        """Answer a request for a page. If it is a page, it is the stored one from now on."""
        host = page.host
        draw = self.uniform(page, 1)
        page.fetches += 1
        if (refused := self._reached(host, now, draw)) is not None:
            return refused
        if now >= page.dies_at:
            return self._answered(host, now, Response(404, host.latency_s))
        changed = page.next_change <= now
        response = self._answered(host, now, Response(200, host.latency_s * (0.5 + draw), changed=changed))
        self.store(page, now)
        return response

    def sitemap(self, host: WebHost, now: float) -> tuple[Response, list[tuple[Page, float]]]:
        """Return the response to a request for a sitemap, and the pages whose `lastmod` is later than their last fetch.

        Each comes with its `lastmod`.
        """
        if (refused := self._reached(host, now, 1.0)) is not None:
            return refused, []
        response = self._answered(host, now, Response(200, host.latency_s))
        listed = [page for page in host.pages if page.listed and now < page.dies_at]
        if host.sitemap is Sitemap.ALWAYS_NOW:
            return response, [(page, now) for page in listed]
        return response, [(page, self._last_change(page, now)) for page in listed if page.next_change <= now]

    def _last_change(self, page: Page, now: float) -> float:
        """Return when a page changed last, that has changed since it was stored."""
        if page.period:
            return now - (now - page.phase) % page.period
        ago = -math.log1p(-self.uniform(page, 2)) / page.true_rate(now)
        return max(page.next_change, now - ago)

    def _reached(self, host: WebHost, now: float, draw: float) -> Response | None:
        """Return the response if the host gives none of a page: it is down, has enough of us, or has an error."""
        host.requests += 1
        host.impolite += now < host._free_at
        if host.outage[0] <= now < host.outage[1]:
            host._free_at = now + 5.0 + DELAY_S
            return Response(FailureKind.CONNECT_TIMEOUT, 5.0)
        if (hour := int(now // 3600)) != host._hour:
            host._hour, host._in_hour = hour, 0
        host._in_hour += 1
        if host._in_hour > host.limit:
            wait_s = 3600.0 - now % 3600.0
            host._free_at = now + host.latency_s + wait_s
            return Response(429, host.latency_s, retry_after_s=wait_s)
        if draw < host.error_part:
            return self._answered(host, now, Response(500, host.latency_s))
        return None

    def _answered(self, host: WebHost, now: float, response: Response) -> Response:
        host._free_at = now + response.took_s + DELAY_S
        return response

    def _host(self, drawn: random.Random, number: int) -> WebHost:
        count = min(max(1, int(20 * drawn.paretovariate(1.5))), 500)
        sitemap = Sitemap.NONE
        if drawn.random() < SITEMAPS[count >= LARGE] * 0.84:
            (sitemap,) = drawn.choices((Sitemap.RIGHT, Sitemap.ALWAYS_NOW, Sitemap.PARTLY), (79, 18, 3))
        down = drawn.uniform(0, self.end_s) if drawn.random() < 0.2 else _NEVER
        host = WebHost(
            name=f"h{number}.example",
            latency_s=min(drawn.lognormvariate(math.log(0.3), 0.8), 10.0),
            error_part=drawn.uniform(0.05, 0.2) if drawn.random() < 0.1 else 0.003,
            limit=drawn.randint(5, 60) if drawn.random() < 0.05 else 100_000,
            outage=(down, down + drawn.lognormvariate(math.log(6 * 3600), 1.5)),
            sitemap=sitemap,
            trap=drawn.random() < 0.02,
        )
        if host.trap:
            count += trapped(host.name, number)
        usual = self._range(drawn)
        for _ in range(count):
            page = self._page(drawn, host, usual)
            host.pages.append(page)
            self.pages.append(page)
        return host

    def _page(self, drawn: random.Random, host: WebHost, usual: tuple[float, float]) -> Page:
        low, high = usual if drawn.random() < 0.5 else self._range(drawn)
        every_s, period = _log_uniform(drawn, low, high), 0.0
        if high <= 7 * DAY_S and drawn.random() < 0.2:
            every_s = period = high
        turns = drawn.random() < 0.05
        page = Page(
            number=len(self.pages),
            host=host,
            rate=1 / every_s,
            rate_later=10 ** drawn.uniform(-1, 1) / every_s,
            turns_at=drawn.uniform(0, self.end_s) if turns else _NEVER,
            period=period,
            phase=drawn.uniform(-period, 0.0),
            dies_at=drawn.uniform(0, self.end_s) if drawn.random() < 0.03 else _NEVER,
            listed=host.sitemap is not Sitemap.PARTLY or drawn.random() < 0.5,
            copy=drawn.random() < 0.08,
        )
        page.next_change = page.change_after(0.0, self.uniform(page, 0))
        return page


def trapped(name: str, number: int) -> int:
    """Return how many pages of a host's endless space the rules of scope admit to a crawl.

    Every other trap leads deeper by the same path segment, the others to the next month of a calendar.
    """
    seed = f"http://{name}/"
    scope = CompiledScope(CrawlSpec(seeds=(Seed(url=seed),), scope=Scope(mode=ScopeMode.HOST, max_depth=TRAP_DEPTH)))
    count = 0
    while True:
        url = f"{seed}{'more/' * (count + 1)}" if number % 2 else f"{seed}calendar?month={count + 1}"
        if scope.judge(url, name, depth=count + 1, via_host=name) is not None:
            return count
        count += 1


def _range(drawn: random.Random) -> tuple[float, float]:
    """Return the range of a page's mean time between changes."""
    ((_, low, high),) = drawn.choices(RATES, [part for part, _, _ in RATES])
    return low, high


def _fifth(drawn: random.Random) -> tuple[float, float]:
    """Return the range of a page's mean time between changes: a fifth of the distribution of the second web.

    The first and the last fifth end at the first and the last hundredth.
    """
    shape, scale = LIFETIMES
    fifth = drawn.randrange(5)
    low, high = (min(max(part, 0.01), 0.99) for part in (fifth / 5, (fifth + 1) / 5))
    return scale * (-math.log1p(-low)) ** (1 / shape), scale * (-math.log1p(-high)) ** (1 / shape)


def _log_uniform(drawn: random.Random, low: float, high: float) -> float:
    return math.exp(drawn.uniform(math.log(low), math.log(high)))
