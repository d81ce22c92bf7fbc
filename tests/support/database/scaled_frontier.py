"""A frontier of any size, made as an owner makes one: discoveries of new and known links, applied through the store.

URL k of site n is a function of both, so that what is known needs a number a host and no memory of URLs.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.frontier.states import Fence, Position
from shared.domain.frontier.store_model import DiscoveredLink, DiscoveryTransaction, ProducerMark
from shared.domain.ids import CrawlId, Partition, Term, numbered
from shared.domain.web.url import fingerprint, partition_of

PARTITIONS: Final = 16
URLS_A_HOST: Final = 50
NEW: Final = 0.4
"""How much of what pages link to was never seen before."""

LINKS_A_HOST: Final = 50
STREAM_NS: Final = 1
_FIRST_MS: Final = 1_700_000_000_000
_LEVEL: Final = 3


@dataclass(slots=True)
class _Slice:
    """One partition as its owner sees it: its sites, how many URLs of each are known, and where it stands."""

    partition: Partition
    fence: Fence
    next_host: int
    sites: list[int] = field(default_factory=list)
    known: list[int] = field(default_factory=list)
    messages: int = 0
    links: int = 0


class GrowingFrontier:
    """A frontier that grows: `rows` URLs over `rows` / URLS_A_HOST hosts, on whatever engine."""

    def __init__(self, store: SqlStore, crawl_id: CrawlId, *, hosts: int = 100, seed: int = 1) -> None:
        """`hosts` are in one batch, each with LINKS_A_HOST links."""
        self.store, self.crawl_id = store, crawl_id
        self._hosts = hosts
        self.rows = self.bytes = 0
        self._random = random.Random(seed)
        self._slices: list[_Slice] = []
        self._sites = 0

    async def claim(self, term: Term) -> None:
        """Own every partition, again and again as others did in between."""
        known = {one.partition: one for one in self._slices}
        for number in range(PARTITIONS):
            claimed = await self.store.claim(Partition(number), term)
            if claimed.fence.partition not in known:
                self._slices.append(_Slice(claimed.fence.partition, claimed.fence, claimed.next_host))
            else:
                known[claimed.fence.partition].fence = claimed.fence

    async def batch(self, which: int) -> int:
        """Apply one batch to one partition; how many links it had."""
        self._more_sites()
        one = self._slices[which % PARTITIONS]
        links = tuple(self._links(one))
        one.messages += 1
        one.links += len(links)
        mark = ProducerMark(self.crawl_id, "w1", one.messages, one.links)
        found = await self.store.apply_found(
            one.fence,
            Position(STREAM_NS, 0, 0, one.messages, one.messages),
            DiscoveryTransaction(((mark, links, 0),)),
            next_host=one.next_host,
            max_depth={},
            now_ms=_FIRST_MS + self.rows,
        )
        one.fence, one.next_host = one.fence.next(), found.next_host
        self.rows += found.new
        return len(links)

    def _more_sites(self) -> None:
        while self._sites < max(4 * PARTITIONS, self.rows // URLS_A_HOST):
            one = self._slices[partition_of(_host(self._sites), PARTITIONS)]
            one.sites.append(self._sites)
            one.known.append(0)
            self._sites += 1

    def _links(self, one: _Slice) -> Iterator[DiscoveredLink]:
        draw, max_count = self._random, len(one.sites)
        if not max_count:
            return
        for _ in range(self._hosts):
            at = draw.randrange(max_count)
            site, host = one.sites[at], _host(one.sites[at])
            via = fingerprint(url_of(site, 0))
            for _ in range(LINKS_A_HOST):
                number = one.known[at]
                if number and draw.random() >= NEW:
                    number = draw.randrange(number)
                else:
                    one.known[at] += 1
                url = url_of(site, number)
                self.bytes += len(url)
                # The page that links here is one of the same host.
                via_host = numbered(1 + at, one.partition)
                yield DiscoveredLink(self.crawl_id, url, host, fingerprint(url), _LEVEL, 0, 0, via_host, via)


def url_of(site: int, number: int) -> str:
    """The site's URL of this number; 71 characters on average in a frontier of a million."""
    return (
        f"https://{_host(site)}/articles/{number % 97}/all-about-number-{number}.html?ref={number * 7919 % 1_000_003}"
    )


def _host(site: int) -> str:
    return f"www.site-{site}.com"
