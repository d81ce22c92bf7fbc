"""The report of one visit, the part of it that a flush takes, and the bounds of what may be unreported."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from shared.domain.ids import Fingerprint, LeaseId
from shared.domain.reads.items import PageItems
from shared.wire.messages import HostNote, UrlOutcome
from workers.discoveries import DiscoveryStream, PageLinks, streams_of
from workers.outlinks import Outlinks
from workers.visit_crawls import VisitCrawl

ROOM_PAGES: Final = 5_000
ROOM_LINKS: Final = 200_000
ROOM_ITEM_BYTES: Final = 32 << 20
"""Unreported pages, links and item bytes at which visits take no further URL. So much may be in flushes, and as much
again in parts that are held."""


@dataclass(frozen=True, slots=True)
class SettledUrl:
    """A URL's outcome, with the links and items of its page. `outlinks` is acknowledged when the links are."""

    outcome: UrlOutcome
    found: PageLinks | None = None
    outlinks: Outlinks | None = None
    items: PageItems | None = None


@dataclass(frozen=True, slots=True)
class VisitEnd:
    """How a visit ends. `final` frees the lease, and the URLs `not_attempted` go back to the queue.

    `failed`: the visit ended by an error of the worker. The grant ends, and the lease stays for the next grant.
    """

    final: bool
    not_attempted: tuple[Fingerprint, ...] = ()
    note: HostNote | None = None
    failed: bool = False


class Reports(Protocol):
    """Receives the reports of visits."""

    def added(self, visit: "VisitReport", page: SettledUrl) -> None:
        """Note that the visit added a page."""
        ...

    def ended(self, visit: "VisitReport") -> None:
        """Note that the visit ended."""
        ...

    async def wait_for_capacity(self) -> None:
        """Wait until the reporter can accept one more page."""
        ...


class VisitReport:
    """The report of one visit.

    `quiet_since`: when the last response ended (Clock.elapsed), None before the first. `reported` is done when all
    parts taken so far are acknowledged.
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
        """Add a settled URL. Its record must already be placed in the archive."""
        self._pages.append(page)
        self._reporter.added(self, page)

    async def finish(self, ending: VisitEnd) -> None:
        """Wait until the whole visit is reported and its outcome is acknowledged."""
        self._ending = ending
        self._done = asyncio.get_running_loop().create_future()
        self._reporter.ended(self)
        await self._done

    async def wait_for_capacity(self) -> None:
        """Wait until the reporter can accept one more page and no part of this visit is held."""
        if self._held is not None:
            await asyncio.wait({self._held})
        await self._reporter.wait_for_capacity()

    def take(self) -> "FlushPart":
        """Take what is to be reported now. The flush then owns it."""
        pages, self._pages = self._pages, []
        after, self.reported = self.reported, asyncio.get_running_loop().create_future()
        return FlushPart(self, pages, self._ending, after, self.reported)

    def hold(self, part: "FlushPart") -> None:
        """Take no further page until the part is reported."""
        self._held = part.done

    def finished(self) -> None:
        """Complete `finish`: the flush that took the ending has ended."""
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def __repr__(self) -> str:
        return f"<VisitReport lease={self.lease} pages={len(self._pages)}>"


@dataclass(slots=True)
class FlushPart:
    """A visit's part of a flush. It is reported after `after`, the visit's part of an earlier flush, and then `done`.

    `held`: it is delayed, and the rest of its flush does not wait for it.
    """

    visit: VisitReport
    pages: list[SettledUrl]
    ending: VisitEnd | None
    after: asyncio.Future[None] | None
    done: asyncio.Future[None]
    held: bool = False

    def waits_for(self, sending: Mapping[DiscoveryStream, "asyncio.Task[None]"]) -> set[asyncio.Future[None]]:
        """Return what this part must wait for: its unfinished discovery messages, and `after`."""
        unsent = {stream for stream, task in sending.items() if not task.done()}
        needed: set[asyncio.Future[None]] = set()
        if unsent:
            for page in self.pages:
                if page.found is not None:
                    needed.update(sending[stream] for stream in streams_of(page.found) & unsent)
        if self.after is not None and not self.after.done():
            needed.add(self.after)
        return needed


@dataclass(slots=True)
class UnreportedSize:
    """The pages, links and item bytes that are not reported yet."""

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
    return len(page.found.links) if page.found is not None else 0


def _item_bytes(page: SettledUrl) -> int:
    return 0 if page.items is None else sum(len(item.data) for item in page.items.items)
