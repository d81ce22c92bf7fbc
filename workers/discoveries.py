"""Builds the discovery messages of one worker process: links by partition, in numbered messages of bounded size."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct, field

from shared.domain.frontier.seed_contexts import SeedContext, context_bytes, numbered
from shared.domain.frontier.states import UrlKind
from shared.domain.ids import CrawlId, Fingerprint, Partition, Revision, partition_of_id
from shared.domain.ops.retention import named_for, week_of
from shared.domain.web.url import Location, partition_of
from shared.wire.messages import Discoveries, Link, Origin, encode
from workers.page_reading import PageReading
from workers.visit_crawls import VisitCrawl

MAX_LINKS: Final = 2_000
MAX_BYTES: Final = 512 * 1024
"""MAX_LINKS and MAX_BYTES limit the links and the size of a message. Most brokers accept at least twice MAX_BYTES."""

_LINK_BYTES: Final = 16
_ORIGIN_BYTES: Final = 40
_LASTMOD_BYTES: Final = 5


class PageLinks(Struct, frozen=True):
    """Links of one page that are to be reported, all with the same depth and `kind`.

    - `host_id`, `host`, `page`: the host and the fingerprint of the page.
    - `hops`: how many redirects, sitemaps or stylesheets in a row led to the links.
    - `extra`: how many extra hops led to the links, 0 if they are in scope.
    - `context`: the seed context of the page.
    - `lastmods`: by URL, when a link last changed according to a sitemap or feed (Unix seconds). Links without a
      known time are left out.
    """

    crawl: VisitCrawl
    host_id: int
    host: str
    page: Fingerprint
    links: tuple[Location, ...]
    depth: int
    hops: int
    kind: UrlKind = UrlKind.PAGE
    extra: int = 0
    context: SeedContext | None = None
    lastmods: Mapping[str, int] = field(default_factory=dict)


def links_of(crawl: VisitCrawl, host_id: int, page: Location, reading: PageReading) -> tuple[PageLinks, ...]:
    """Return all links of a page that are to be reported: outlinks in scope and beyond it, feeds, and requisites."""
    links: list[PageLinks] = []
    for some, extra in ((reading.found, 0), (reading.beyond, reading.extra)):
        if some:
            links.append(
                PageLinks(
                    crawl,
                    host_id,
                    page.host,
                    page.fingerprint,
                    some,
                    reading.depth,
                    reading.hops,
                    reading.kind,
                    extra,
                    lastmods=reading.lastmods,
                )
            )
    if reading.feeds is not None and reading.feeds.fresh:
        feeds = reading.feeds
        links.append(PageLinks(crawl, host_id, page.host, page.fingerprint, feeds.fresh, feeds.depth, 1, UrlKind.FEED))
    if reading.requisites is not None and reading.requisites.fresh:
        needed, hops = reading.requisites, reading.requisite_hops
        links.append(
            PageLinks(crawl, host_id, page.host, page.fingerprint, needed.fresh, needed.depth, hops, UrlKind.REQUISITE)
        )
    return tuple(links)


class DiscoveryStream(NamedTuple):
    """A crawl and a partition. The discovery messages for each pair are numbered separately. Not a stream of NATS."""

    crawl_id: CrawlId
    partition: Partition


class DiscoveryBatch(NamedTuple):
    """The links of one discovery message, all found under one revision of the spec.

    - `origins`: pages, each with its links in this message (shared.wire.messages.Origin). Not the origins of URLs.
    - `links`: the number of links of all these pages together.
    - `contexts`: the seed context of each page, None for a page without one.
    - `lastmods`: for each page a list: when each of its links last changed (Unix seconds, 0: unknown). Zeros at the end
      of a list may be left out. `lastmods` is empty if all times are unknown.
    """

    spec: Revision
    origins: list[Origin]
    links: int
    contexts: Sequence[SeedContext | None] = ()
    lastmods: list[list[int]] = []  # noqa: RUF012  a tuple's default, never changed


def batches_by_stream(pages: Iterable[PageLinks]) -> dict[DiscoveryStream, list[DiscoveryBatch]]:
    """Return the links of `pages` by stream (crawl and partition), in batches of at most `MAX_LINKS` and `MAX_BYTES`.

    The order of links is kept. A repeated link is dropped unless it has a lower depth than before, or the same depth
    and fewer hops. The caller must send all messages of a page's streams before the page's outcome.
    """
    streams: dict[DiscoveryStream, _Filling] = {}
    for page in pages:
        crawl, own = page.crawl, partition_of_id(page.host_id)
        for link in page.links:
            partition = own if link.host == page.host else partition_of(link.host, crawl.partitions)
            stream = DiscoveryStream(crawl.crawl_id, partition)
            filling = streams.get(stream)
            if filling is None:
                filling = streams[stream] = _Filling()
            filling.add(page, link.url)
    return {stream: list(filling.batches()) for stream, filling in streams.items()}


def streams_of(page: PageLinks) -> set[DiscoveryStream]:
    """Return the streams (crawl and partition) in which the page's links are reported."""
    crawl, own = page.crawl, partition_of_id(page.host_id)
    hosts = {link.host for link in page.links}
    return {
        DiscoveryStream(crawl.crawl_id, own if host == page.host else partition_of(host, crawl.partitions))
        for host in hosts
    }


class _Filling:
    """Fills batches with the links of one crawl to one partition. When a batch is full, the next one begins."""

    __slots__ = (
        "_bytes",
        "_contexts",
        "_done",
        "_lastmods",
        "_links",
        "_nearest",
        "_origin",
        "_origins",
        "_page",
        "_spec",
    )

    def __init__(self) -> None:
        self._done: list[DiscoveryBatch] = []
        self._nearest: dict[tuple[str, bool, int, int], tuple[int, int]] = {}
        self._page: PageLinks | None = None
        self._spec = Revision(0)
        self._begin()

    def _begin(self) -> None:
        self._origins: list[Origin] = []
        self._origin: list[Link] = []
        self._contexts: list[SeedContext | None] = []
        self._lastmods: dict[int, list[int]] = {}
        self._links = self._bytes = 0

    def add(self, page: PageLinks, url: str) -> None:
        lastmod = page.lastmods.get(url, 0) if page.lastmods else 0
        place, link = (page.depth, page.hops), (url, page.kind is UrlKind.REQUISITE, page.extra, lastmod)
        if page.crawl.revision == self._spec:
            nearest = self._nearest.get(link)
            if nearest is not None and nearest <= place:
                return
        else:
            self._nearest.clear()
        self._nearest[link] = place
        size = len(url) + _LINK_BYTES
        if self._links and (
            self._links >= MAX_LINKS or self._bytes + size > MAX_BYTES or page.crawl.revision != self._spec
        ):
            self._finish()
        if page is not self._page or not self._origins:
            self._page, self._spec, self._origin = page, page.crawl.revision, []
            self._origins.append(Origin(page.host_id, page.page, self._origin))
            self._contexts.append(page.context)
            self._bytes += _ORIGIN_BYTES + (0 if page.context is None else context_bytes(page.context))
        self._origin.append(Link(url, page.depth, page.hops, kind=page.kind, extra=page.extra))
        if lastmod:
            lastmods = self._lastmods.setdefault(len(self._origins) - 1, [])
            lastmods += [0] * (len(self._origin) - 1 - len(lastmods))
            lastmods.append(lastmod)
            self._bytes += _LASTMOD_BYTES
        self._links += 1
        self._bytes += size

    def _finish(self) -> None:
        lastmods = [self._lastmods.get(place, []) for place in range(len(self._origins))] if self._lastmods else []
        self._done.append(DiscoveryBatch(self._spec, self._origins, self._links, self._contexts, lastmods))
        self._begin()

    def batches(self) -> Iterator[DiscoveryBatch]:
        if self._links:
            self._finish()
        yield from self._done


class _Mark(Struct):
    """The numbering of the discovery messages of one crawl and partition in one week.

    - `n`: the number of the last acknowledged message, 0 before the first.
    - `total`: the number of links in all acknowledged messages.
    - `pending`: message `n` + 1 was made, and is not acknowledged yet.
    """

    week: int
    n: int = 0
    total: int = 0
    pending: bool = False


class Numbering:
    """Numbers the discovery messages of one process, separately for each stream (crawl and partition).

    Message n + 1 is made only after message n was acknowledged. Every week the numbers restart at 1, under a new
    producer name in the messages. A message that is unacknowledged at that time keeps its number and producer name.
    Its stream restarts after the acknowledgement. If the clock is set back, the week stays the same.
    """

    def __init__(self, producer: str) -> None:
        self.producer = producer
        self._week = 0
        self._marks: dict[DiscoveryStream, _Mark] = {}

    def __len__(self) -> int:
        """Return the number of streams that had a message this week, or have an unacknowledged one."""
        return len(self._marks)

    def message(self, stream: DiscoveryStream, batch: DiscoveryBatch, now_ms: int) -> tuple[bytes, str]:
        """Encode a batch as the next message of its stream (crawl and partition). Return the message and its id.

        The message and its id contain the next number of the stream. Call `acknowledged` once the broker has stored the
        message. Until then, further calls for the stream use the same number. `now_ms` (Unix ms) decides the week.
        """
        if week_of(now_ms) > self._week:
            self._week = week_of(now_ms)
            self._marks = {known: mark for known, mark in self._marks.items() if mark.pending}
        mark = self._marks.setdefault(stream, _Mark(self._week))
        mark.pending = True
        name = named_for(self.producer, mark.week)
        contexts, context_of = numbered(batch.contexts)
        message = Discoveries(
            crawl=stream.crawl_id,
            spec=batch.spec,
            producer=name,
            n=mark.n + 1,
            total=mark.total + batch.links,
            origins=batch.origins,
            contexts=contexts,
            context_of=context_of,
            lastmods=batch.lastmods,
        )
        return encode(message), f"{name}.{stream.crawl_id}.{stream.partition}.{mark.n + 1}"

    def acknowledged(self, stream: DiscoveryStream, batch: DiscoveryBatch) -> None:
        """Record that the broker has stored the batch, so that the stream's next message gets the next number."""
        mark = self._marks[stream]
        mark.n, mark.total, mark.pending = mark.n + 1, mark.total + batch.links, False
        if mark.week < self._week:
            del self._marks[stream]
