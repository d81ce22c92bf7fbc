"""The report of one visit and of its host, the part that one flush publishes, and the limits of unreported results."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from shared.domain.frontier.seed_contexts import NO_CONTEXTS, SeedContext, context_at
from shared.domain.ids import Fingerprint, HostId, LeaseId
from shared.domain.reads.items import PageItems, TakenItem
from shared.domain.web.fetch import Answer
from shared.domain.web.robots import Unreachable
from shared.domain.web.url import Location, fingerprint, host_of, origin_of
from shared.wire.messages import HostNote, ShardUrl, UrlOutcome, UrlShard
from workers.discoveries import DiscoveryStream, PageLinks, streams_of
from workers.extract.rules import ExtractedItem
from workers.outlinks import Outlinks, redirect_target
from workers.robots import Robots, RobotsCache, Send
from workers.visit_crawls import VisitCrawl, robots_request

ROOM_PAGES: Final = 5_000
ROOM_LINKS: Final = 200_000
ROOM_ITEM_BYTES: Final = 32 << 20
"""The limit of the bytes of unreported items in one worker. At this limit, visits fetch no further URL.

ROOM_PAGES and ROOM_LINKS limit the unreported pages and links in the same way.

Some results are delayed, because a message of their report cannot be published now. The limits apply to these results
and to the other results separately. So a worker may hold about twice as much as the limits.
"""

_RECENT_S: Final = 60.0
"""A visit reports that robots.txt names no Crawl-delay only if its copy of robots.txt is fresh.

A copy is fresh for this number of seconds plus the host's delay. Another worker, or a visit to the host's other scheme,
may have reported a Crawl-delay since an older copy was fetched."""

_BY_STATUS: Final = "robots_http_"
"""The failure of a robots.txt that is unreachable because of its HTTP status begins so."""


class SettledUrl(msgspec.Struct, frozen=True, gc=False):
    """A URL's outcome, with the links and items of its page.

    - `found`: the links to report.
    - `outlinks`: the results of the worker's `OutlinkResolver` from which `found` was made. After the broker has
      acknowledged the report, the resolver remembers these links, so that no link is reported twice.
    """

    outcome: UrlOutcome
    found: tuple[PageLinks, ...] = ()
    outlinks: tuple[Outlinks, ...] = ()
    items: PageItems | None = None


def contexts_of(shard: UrlShard) -> Mapping[Fingerprint, SeedContext]:
    """Return the seed contexts of the shard's URLs, by fingerprint. URLs without a context are left out."""
    if not shard.contexts:
        return NO_CONTEXTS
    found = ((url.url, context_at(shard.contexts, shard.context_of, at)) for at, url in enumerate(shard.urls))
    return {fingerprint(url): context for url, context in found if context is not None}


def with_context(settled: SettledUrl, context: SeedContext | None) -> SettledUrl:
    """Return `settled` with `context` added to its links and items. If `context` is None, return `settled` unchanged.

    `context`: the seed context of the URL, which is the labels and the source of its seed.
    """
    if context is None:
        return settled
    found = tuple([msgspec.structs.replace(links, context=context) for links in settled.found])
    items = None if settled.items is None else settled.items._replace(context=context)
    return msgspec.structs.replace(settled, found=found, items=items)


def page_items(shard: UrlShard, grant: int, page: Location, at_ms: int, items: Iterable[ExtractedItem]) -> PageItems:
    """Return the items of a page of the shard, as the visit under grant number `grant` reports them."""
    taken = tuple([TakenItem(item.id, item.rule, item.data) for item in items])
    host_id, lease = HostId(shard.host_id), LeaseId(shard.lease)
    return PageItems(host_id, page.fingerprint, page.url, lease, grant, at_ms, taken)


class VisitEnd(msgspec.Struct, frozen=True):
    """The end of a visit, as its last outcome message reports it. There are three kinds of ends:

    - `final`: the visit ended normally. The lease ends, and the URLs `not_attempted` return to the queue.
    - `failed` (not `final`): the worker had an error. The grant ends. The lease continues, and can get another grant.
    - Neither: the visit had lost its grant. Its results are reported. The lease and its grants do not change.

    `note`: facts about the host, such as its latency.
    """

    final: bool
    not_attempted: tuple[Fingerprint, ...] = ()
    note: HostNote | None = None
    failed: bool = False


class Reports(Protocol):
    """The part of `workers.report.Reporter` that a VisitReport calls."""

    def added(self, visit: "VisitReport", page: SettledUrl) -> None:
        """Record that the visit has one more page to report."""

    def ended(self, visit: "VisitReport") -> None:
        """Record that the visit has ended and must be reported now."""

    async def wait_for_capacity(self) -> None:
        """Wait until the unreported results of all visits are below their limits, so that a page may be added."""


class VisitReport:
    """The results of one visit, collected for the reporter.

    - `quiet_since`: when the last response ended (Clock.elapsed). None before the first response.
    - `reported`: a future that is done when everything that `take` has returned so far is reported. None before the
      first call of `take`.
    """

    __slots__ = (
        "_done",
        "_ending",
        "_held",
        "_pages",
        "_reporter",
        "crawl",
        "crawl_id",
        "grant",
        "host_id",
        "lease",
        "quiet_since",
        "reported",
    )

    def __init__(
        self, reporter: "Reports", crawl: VisitCrawl | None, crawl_id: int, lease: LeaseId, grant: int, host_id: int
    ) -> None:
        self._reporter = reporter
        self._pages: list[SettledUrl] = []
        self._ending: VisitEnd | None = None
        self._done: asyncio.Future[None] | None = None
        self._held: asyncio.Future[None] | None = None
        self.reported: asyncio.Future[None] | None = None
        self.crawl = crawl
        self.crawl_id = crawl_id
        self.lease = lease
        self.grant = grant
        self.host_id = host_id
        self.quiet_since: float | None = None

    def add(self, page: SettledUrl) -> None:
        """Add a URL's outcome, links and items. Its record must already be appended to the archive."""
        self._pages.append(page)
        self._reporter.added(self, page)

    async def finish(self, ending: VisitEnd) -> None:
        """End the visit as `ending` says, and wait until all its results are reported and acknowledged."""
        self._ending = ending
        self._done = asyncio.get_running_loop().create_future()
        self._reporter.ended(self)
        await self._done

    async def wait_for_capacity(self) -> None:
        """Wait until this visit may add a page. There are two reasons to wait:

        - The report of earlier results of this visit is delayed, for example because a message cannot be published now
          (`hold`). Only this visit waits for it. So one visit cannot collect many unreported results.
        - The unreported results of all visits together have reached a limit. Then all visits wait.
        """
        if self._held is not None:
            await asyncio.wait({self._held})
        await self._reporter.wait_for_capacity()

    def take(self) -> "FlushPart":
        """Remove the results that were added since the last call. Return them as this visit's part of a flush."""
        pages, self._pages = self._pages, []
        after, self.reported = self.reported, asyncio.get_running_loop().create_future()
        return FlushPart(self, pages, self._ending, after, self.reported)

    def hold(self, part: "FlushPart") -> None:
        """Record that `part` of a flush is delayed. `wait_for_capacity` then waits until this part is reported."""
        self._held = part.done

    def finished(self) -> None:
        """Wake the visit, which waits in the method `finish` until its end is reported. Called by the reporter."""
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def __repr__(self) -> str:
        return f"<VisitReport lease={self.lease} pages={len(self._pages)}>"


@dataclass(slots=True)
class FlushPart:
    """The results of one visit that one flush reports.

    - `after`: a future that is done when the visit's part of an earlier flush is reported. This part waits for it.
    - `done`: a future that is done when this part is reported.
    - `held`: True if the report of this part is delayed, while other parts and flushes continue.
    """

    visit: VisitReport
    pages: list[SettledUrl]
    ending: VisitEnd | None
    after: asyncio.Future[None] | None
    done: asyncio.Future[None]
    held: bool = False

    def waits_for(self, sending: Mapping[DiscoveryStream, "asyncio.Task[None]"]) -> set[asyncio.Future[None]]:
        """Return the futures that this part must wait for: the tasks that send its discovery messages, and `after`.

        `sending` maps each stream to the task that sends its messages.
        """
        unsent = {stream for stream, task in sending.items() if not task.done()}
        needed: set[asyncio.Future[None]] = set()
        if unsent:
            for page in self.pages:
                for links in page.found:
                    needed.update(sending[stream] for stream in streams_of(links) & unsent)
        if self.after is not None and not self.after.done():
            needed.add(self.after)
        return needed


class UnreportedSize(msgspec.Struct):
    """The numbers of pages, links and bytes of items that are not reported yet.

    `full` returns True if one of the numbers has reached its limit.
    """

    pages: int = 0
    links: int = 0
    item_bytes: int = 0

    def add(self, pages: Collection[SettledUrl], sign: int = 1) -> None:
        self.pages += sign * len(pages)
        self.links += sign * sum(map(_links, pages))
        self.item_bytes += sign * sum(map(_item_bytes, pages))

    def full(self) -> bool:
        return self.pages >= ROOM_PAGES or self.links >= ROOM_LINKS or self.item_bytes >= ROOM_ITEM_BYTES


def _links(page: SettledUrl) -> int:
    return sum(len(found.links) for found in page.found)


def _item_bytes(page: SettledUrl) -> int:
    return 0 if page.items is None else sum(len(item.data) for item in page.items.items)


class VisitOrigins:
    """The robots.txt of each origin of a visit's host, to report a failure of only one origin or of the whole host.

    A host may have two origins: http and https on their default ports. Example: the visit cannot connect to the http
    origin for its robots.txt. What the visit reports depends on the https origin:

    - It gives a usable response later in the visit: the http origin fails alone. Only the URLs of this origin fail.
    - It gives none: the visit reports a failure of the host.

    A response is not usable if its status is 429 or 5xx, or if it redirects to the failing origin.

    If the request for robots.txt got a status such as 429 or 503, the origin never fails alone. The host answers and
    asks for a pause.

    `robots`: the robots.txt of each origin that the visit needed.
    """

    __slots__ = ("_alone", "_crawl_delay_ms", "_host", "_postponed", "robots")

    def __init__(self, host: str) -> None:
        self.robots: dict[str, Robots] = {}
        self._host = host
        self._alone: set[str] = set()
        self._postponed: set[str] = set()
        self._crawl_delay_ms = -1

    def read(self, origin: str, robots: Robots, crawl: VisitCrawl, now_ms: int, delay_s: float) -> float:
        """Add the robots.txt of `origin`, as it is at `now_ms` (Unix ms). Return its Crawl-delay, 0 if it names none.

        `delay_s`: the delay between requests to the host.
        """
        self.robots[origin] = robots
        named_s = robots.crawl_delay_s(crawl.token)
        if named_s is not None or (robots.fetched_at_ms and robots.age_s(now_ms) <= delay_s + _RECENT_S):
            self._crawl_delay_ms = max(self._crawl_delay_ms, int((named_s or 0.0) * 1000 + 0.999))
        return named_s or 0.0

    def responded(self, answer: Answer) -> None:
        """Record a response that came after the failures that are known so far."""
        if host_of(answer.url) != self._host or answer.status == 429 or answer.status >= 500:
            return
        location = answer.header("location") if 300 <= answer.status < 400 else None
        to = None if location is None else redirect_target(location, answer.url)
        spared = {origin_of(answer.url)} if to is None else {origin_of(answer.url), origin_of(to)}
        self._alone.update(origin for origin in self.robots if self.silent(origin) and origin not in spared)

    def fails(self, origin: str) -> bool:
        """Return True if the robots.txt of `origin` is unreachable."""
        return (robots := self.robots.get(origin)) is not None and isinstance(robots.policy, Unreachable)

    def silent(self, origin: str) -> bool:
        """Return True if robots.txt of `origin` is unreachable, and not because of its status, such as 429 or 503."""
        return self.fails(origin) and not self.robots[origin].failure.startswith(_BY_STATUS)

    def undecided(self) -> list[str]:
        """Return the origins that fail, if it is not known that they fail alone."""
        return [origin for origin in self.robots if self.fails(origin) and origin not in self._alone]

    def failure(self, origin: str) -> Robots | None:
        """Return the unreachable robots.txt of `origin` if the origin fails alone, else None."""
        return self.robots[origin] if origin in self._alone else None

    async def decide(self, left: Iterable[ShardUrl], crawl: VisitCrawl, cache: RobotsCache, send: Send) -> None:
        """Find out if a failing origin fails alone: request robots.txt from the host's other origin, by `send`.

        The other origin must have given its robots.txt before, or have URLs in `left` (the URLs without an outcome).
        Otherwise nothing is requested.

        `send` returns None if the visit must end before the request, such as for a long host delay. Then:

        - Normally, this visit does not report the failure. The next visit of this worker decides.
        - If an earlier visit already left the decision to the next one, and that one went to another worker, this visit
          reports the failure.
        """
        named = {origin_of(entry.url) for entry in left}
        for origin in filter(self.silent, self.undecided()):
            for other in (f"https://{self._host}", f"http://{self._host}"):
                robots = self.robots.get(other) or await cache.known(other)
                if other == origin or (other not in named if robots is None else robots.failure):
                    continue
                request = robots_request(f"{other}/robots.txt", crawl)
                if await send(request, 0.0) is None and cache.postpone(origin):
                    self._postponed.add(origin)
                break

    def note(self, latency_ms: int, ip: str) -> HostNote:
        """Return what the visit reports about its host. This includes the failure of robots.txt, if there is one.

        A failure is left out if its origin fails alone, or if the next visit decides about it (`decide`). If two
        failures remain, report the one with an HTTP status, since its response may have a Retry-After.

        `latency_ms` and `ip`: those of the last response.
        """
        crawl_delay_ms = self._crawl_delay_ms
        undecided = [origin for origin in self.undecided() if origin not in self._postponed]
        failing = next((self.robots[origin] for origin in sorted(undecided, key=self.silent)), None)
        if failing is None:
            return HostNote(crawl_delay_ms, latency_ms, ip)
        reason = failing.policy.reason if isinstance(failing.policy, Unreachable) else ""
        return HostNote(crawl_delay_ms, latency_ms, ip, failing.failure, reason, failing.retry_after_ms)
