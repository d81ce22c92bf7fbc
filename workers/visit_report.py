"""What one visit has to report, the part of it that a flush takes, and how much may wait for that."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from shared.domain.ids import Fingerprint, LeaseId
from shared.domain.items import PageItems
from shared.wire.messages import HostNote, UrlOutcome
from workers.crawls import ActiveCrawl
from workers.discoveries import Found, Stream, streams_of
from workers.outlinks import Outlinks

ROOM_PAGES: Final = 5_000
ROOM_LINKS: Final = 200_000
ROOM_ITEM_BYTES: Final = 32 << 20
"""Pages, links and bytes of items in hand above which no visit takes a further URL: so much may be on its way, and as
much again may be held."""


@dataclass(frozen=True, slots=True)
class SettledUrl:
    """A URL with its outcome, the links it led to and the items it gave. `outlinks`: to be acknowledged when the links
    are."""

    outcome: UrlOutcome
    found: Found | None = None
    outlinks: Outlinks | None = None
    items: PageItems | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a visit ends; `final` frees the lease, what was `not_attempted` goes back to the queue.

    `failed`: by an error of ours. The grant ends, and the lease stays for the next one.
    """

    final: bool
    not_attempted: tuple[Fingerprint, ...] = ()
    note: HostNote | None = None
    failed: bool = False


class Reports(Protocol):
    """Takes what visits have to report."""

    def added(self, visit: "VisitReport", page: SettledUrl) -> None:
        """A page came."""
        ...

    def ended(self, visit: "VisitReport") -> None:
        """A visit ended."""
        ...

    async def room(self) -> None:
        """Wait until there is room for one more page."""
        ...


class VisitReport:
    """What one visit has to report.

    `quiet_since`: when its last response ended (Clock.elapsed), None without one. `reported` is done when all that was
    taken of it is acknowledged.
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
        self, reporter: "Reports", crawl: ActiveCrawl | None, crawl_id: int, lease: LeaseId, grant: int, host_id: int
    ) -> None:
        self._reporter = reporter
        self._pages: list[SettledUrl] = []
        self._ending: Ending | None = None
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
        """A URL is settled, its record placed in the archive."""
        self._pages.append(page)
        self._reporter.added(self, page)

    async def finish(self, ending: Ending) -> None:
        """Returns when everything of this visit is reported and the outcome is acknowledged."""
        self._ending = ending
        self._done = asyncio.get_running_loop().create_future()
        self._reporter.ended(self)
        await self._done

    async def room(self) -> None:
        """Wait until there is room for one more page, and none of this visit is held."""
        if self._held is not None:
            await asyncio.wait({self._held})
        await self._reporter.room()

    def take(self) -> "Taken":
        """What is to be reported now; it is then the flush's."""
        pages, self._pages = self._pages, []
        after, self.reported = self.reported, asyncio.get_running_loop().create_future()
        return Taken(self, pages, self._ending, after, self.reported)

    def hold(self, part: "Taken") -> None:
        """Take no further page until the part is reported."""
        self._held = part.done

    def finished(self) -> None:
        """The flush that took the ending is through."""
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def __repr__(self) -> str:
        return f"<VisitReport lease={self.lease} pages={len(self._pages)}>"


@dataclass(slots=True)
class Taken:
    """A visit's part of a flush. It is reported behind `after`, the visit's part of an earlier one; then it is `done`.

    `held`: it waits for something that others do not wait for.
    """

    visit: VisitReport
    pages: list[SettledUrl]
    ending: Ending | None
    after: asyncio.Future[None] | None
    done: asyncio.Future[None]
    held: bool = False

    def waits_for(self, sending: Mapping[Stream, "asyncio.Task[None]"]) -> set[asyncio.Future[None]]:
        """Return what is not done of that which this part must be reported behind: messages being sent, and `after`."""
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
class InHand:
    """What is not reported yet."""

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
