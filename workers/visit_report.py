"""The report of one visit, the part of it that one flush takes, and the bounds of what may be unreported."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

import msgspec

from shared.domain.frontier.seed_contexts import NO_CONTEXTS, SeedContext, context_at
from shared.domain.ids import Fingerprint, LeaseId
from shared.domain.reads.items import PageItems
from shared.domain.web.url import fingerprint
from shared.wire.messages import HostNote, UrlOutcome, UrlShard
from workers.discoveries import DiscoveryStream, PageLinks, streams_of
from workers.outlinks import Outlinks
from workers.visit_crawls import VisitCrawl

ROOM_PAGES: Final = 5_000
ROOM_LINKS: Final = 200_000
ROOM_ITEM_BYTES: Final = 32 << 20
"""Unreported pages, links and item bytes at which visits take no further URL. So much may be in flushes, and as much
again in parts that are held."""


class SettledUrl(msgspec.Struct, frozen=True, gc=False):
    """A URL's outcome, with the links and items of its page. `outlinks` are remembered once the report of the links is
    acknowledged.
    """

    outcome: UrlOutcome
    found: tuple[PageLinks, ...] = ()
    outlinks: tuple[Outlinks, ...] = ()
    items: PageItems | None = None


def contexts_of(shard: UrlShard) -> Mapping[Fingerprint, SeedContext]:
    """Return the contexts of the shard's URLs, by fingerprint."""
    if not shard.contexts:
        return NO_CONTEXTS
    found = ((url.url, context_at(shard.contexts, shard.context_of, at)) for at, url in enumerate(shard.urls))
    return {fingerprint(url): context for url, context in found if context is not None}


def with_context(settled: SettledUrl, context: SeedContext | None) -> SettledUrl:
    """Return the outcome of a URL with that context, which its links and items have, too."""
    if context is None:
        return settled
    found = tuple([replace(links, context=context) for links in settled.found])
    items = None if settled.items is None else settled.items._replace(context=context)
    return msgspec.structs.replace(settled, found=found, items=items)


@dataclass(frozen=True, slots=True)
class VisitEnd:
    """How a visit ends. `final` frees the lease, and the URLs `not_attempted` go back to the queue.

    `failed`: the visit ended by an error of the worker. Its grant ends, and the next grant is for the same lease.
    """

    final: bool
    not_attempted: tuple[Fingerprint, ...] = ()
    note: HostNote | None = None
    failed: bool = False


class Reports(Protocol):
    """What a VisitReport tells its reporter (`workers.report.Reporter`)."""

    def added(self, visit: "VisitReport", page: SettledUrl) -> None:
        """Record that the visit has one more page to report."""

    def ended(self, visit: "VisitReport") -> None:
        """Record that the visit ended and is to be reported now."""

    async def wait_for_capacity(self) -> None:
        """Wait until the pages that are not reported yet leave room for one more."""


class VisitReport:
    """The results of one visit, collected for the reporter.

    `quiet_since`: when the last response ended (Clock.elapsed), None before the first. `reported`: a future that is
    done when all parts taken so far are acknowledged.
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
        """End the visit as `ending` says, and wait until all of it is reported and acknowledged."""
        self._ending = ending
        self._done = asyncio.get_running_loop().create_future()
        self._reporter.ended(self)
        await self._done

    async def wait_for_capacity(self) -> None:
        """Wait until one more page can be accepted and no results of this visit are held up."""
        if self._held is not None:
            await asyncio.wait({self._held})
        await self._reporter.wait_for_capacity()

    def take(self) -> "FlushPart":
        """Return the results that were not reported yet, and hand them over to the flush that calls this."""
        pages, self._pages = self._pages, []
        after, self.reported = self.reported, asyncio.get_running_loop().create_future()
        return FlushPart(self, pages, self._ending, after, self.reported)

    def hold(self, part: "FlushPart") -> None:
        """Let `wait_for_capacity` wait until this delayed part is reported."""
        self._held = part.done

    def finished(self) -> None:
        """Let `finish` return: the flush that reported the visit's end is over."""
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def __repr__(self) -> str:
        return f"<VisitReport lease={self.lease} pages={len(self._pages)}>"


@dataclass(slots=True)
class FlushPart:
    """The results of one visit in one flush. They are reported after `after`, the visit's part of an earlier flush.
    `done` is a future that is done then.

    `held`: it is delayed, and the rest of its flush does not wait for it.
    """

    visit: VisitReport
    pages: list[SettledUrl]
    ending: VisitEnd | None
    after: asyncio.Future[None] | None
    done: asyncio.Future[None]
    held: bool = False

    def waits_for(self, sending: Mapping[DiscoveryStream, "asyncio.Task[None]"]) -> set[asyncio.Future[None]]:
        """Return the futures that this part must wait for: those of its unsent discovery messages, and `after`."""
        unsent = {stream for stream, task in sending.items() if not task.done()}
        needed: set[asyncio.Future[None]] = set()
        if unsent:
            for page in self.pages:
                for links in page.found:
                    needed.update(sending[stream] for stream in streams_of(links) & unsent)
        if self.after is not None and not self.after.done():
            needed.add(self.after)
        return needed


@dataclass(slots=True)
class UnreportedSize:
    """The numbers of pages, links and item bytes that are not reported yet."""

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
