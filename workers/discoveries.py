"""The discovery messages of one process: which link goes to which partition, in messages of bounded size, numbered."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from shared.domain.ids import CrawlId, Fingerprint, Partition, Revision, partition_of_id
from shared.domain.retention import named_for, week_of
from shared.domain.url import Location, partition_of
from shared.wire.messages import Discoveries, Link, Origin, encode
from workers.crawls import ActiveCrawl

MOST_LINKS: Final = 2_000
MOST_BYTES: Final = 512 * 1024
"""What a message may hold; half of the smallest limit a broker is likely to have."""

_LINK_BYTES: Final = 16
_ORIGIN_BYTES: Final = 40


@dataclass(frozen=True, slots=True)
class Found:
    """Links found on one page, all at one depth, to be reported."""

    crawl: ActiveCrawl
    host_id: int
    host: str
    page: Fingerprint
    links: tuple[Location, ...]
    depth: int
    hops: int


class Stream(NamedTuple):
    """What messages are numbered in: a crawl's discoveries for one partition."""

    crawl_id: CrawlId
    partition: Partition


class Batch(NamedTuple):
    """Links for one message, under one revision of the spec."""

    spec: Revision
    origins: list[Origin]
    links: int


def sorted_out(pages: Iterable[Found]) -> dict[Stream, list[Batch]]:
    """The links of `pages` by stream, in their order, in batches within `MOST_LINKS` and `MOST_BYTES`.

    A link that stands there already, as near to the seeds, is left out: all of these are acknowledged before any of the
    pages' outcomes is published.
    """
    streams: dict[Stream, _Filling] = {}
    for page in pages:
        crawl, own = page.crawl, partition_of_id(page.host_id)
        for url, host, _ in page.links:
            partition = own if host == page.host else partition_of(host, crawl.partitions)
            stream = Stream(crawl.crawl_id, partition)
            filling = streams.get(stream)
            if filling is None:
                filling = streams[stream] = _Filling()
            filling.add(page, url)
    return {stream: list(filling.batches()) for stream, filling in streams.items()}


def streams_of(page: Found) -> set[Stream]:
    """Return the streams that the page's links go to (see `sorted_out`)."""
    crawl, own = page.crawl, partition_of_id(page.host_id)
    hosts = {host for _, host, _ in page.links}
    return {
        Stream(crawl.crawl_id, own if host == page.host else partition_of(host, crawl.partitions)) for host in hosts
    }


class _Filling:
    """Batches of one stream being filled."""

    __slots__ = ("_bytes", "_done", "_links", "_nearest", "_origin", "_origins", "_page", "_spec")

    def __init__(self) -> None:
        self._done: list[Batch] = []
        self._nearest: dict[str, tuple[int, int]] = {}
        self._page: Found | None = None
        self._spec = Revision(0)
        self._begin()

    def _begin(self) -> None:
        self._origins: list[Origin] = []
        self._origin: list[Link] = []
        self._links = self._bytes = 0

    def add(self, page: Found, url: str) -> None:
        place = page.depth, page.hops
        if page.crawl.revision == self._spec:
            nearest = self._nearest.get(url)
            if nearest is not None and nearest <= place:
                return
        else:
            self._nearest.clear()
        self._nearest[url] = place
        size = len(url) + _LINK_BYTES
        if self._links and (
            self._links >= MOST_LINKS or self._bytes + size > MOST_BYTES or page.crawl.revision != self._spec
        ):
            self._finish()
        if page is not self._page or not self._origins:
            self._page, self._spec, self._origin = page, page.crawl.revision, []
            self._origins.append(Origin(page.host_id, page.page, self._origin))
            self._bytes += _ORIGIN_BYTES
        self._origin.append(Link(url, page.depth, page.hops))
        self._links += 1
        self._bytes += size

    def _finish(self) -> None:
        self._done.append(Batch(self._spec, self._origins, self._links))
        self._begin()

    def batches(self) -> Iterator[Batch]:
        if self._links:
            self._finish()
        yield from self._done


@dataclass(slots=True)
class _Mark:
    """How far a stream is numbered under the name of a week. `pending`: a message was made and is not acknowledged."""

    week: int
    n: int = 0
    total: int = 0
    pending: bool = False


class Numbering:
    """The numbers of one producer's messages: n + 1 is made only once n is acknowledged.

    Each week numbers begin anew under another name, so that owners may forget the names of weeks long past, and this
    the streams that have come to rest. A name is never taken up again, whatever the clock does.
    """

    def __init__(self, producer: str) -> None:
        self.producer = producer
        self._week = 0
        self._marks: dict[Stream, _Mark] = {}

    def __len__(self) -> int:
        """The streams that are remembered."""
        return len(self._marks)

    def message(self, stream: Stream, batch: Batch, now_ms: int) -> tuple[bytes, str]:
        """The next message of the stream and its id; the same until `acknowledged` is called."""
        if week_of(now_ms) > self._week:
            self._week = week_of(now_ms)
            self._marks = {known: mark for known, mark in self._marks.items() if mark.pending}
        mark = self._marks.setdefault(stream, _Mark(self._week))
        mark.pending = True
        name = named_for(self.producer, mark.week)
        message = Discoveries(
            crawl=stream.crawl_id,
            spec=batch.spec,
            producer=name,
            n=mark.n + 1,
            total=mark.total + batch.links,
            origins=batch.origins,
        )
        return encode(message), f"{name}.{stream.crawl_id}.{stream.partition}.{mark.n + 1}"

    def acknowledged(self, stream: Stream, batch: Batch) -> None:
        """The broker has stored the stream's latest message."""
        mark = self._marks[stream]
        mark.n, mark.total, mark.pending = mark.n + 1, mark.total + batch.links, False
        if mark.week < self._week:
            del self._marks[stream]
