"""Find again, in the archive, the links of stored pages that a wider scope admits, and publish them as discoveries.

The pages are read in chunks. The broker acknowledges all links of a chunk before the owner commits the chunk. After a
crash the chunk is read and published again, under a new sender's name. The repeated links change only counters, because
owners know their URLs already.
"""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog
from msgspec import Struct

from api.frontier.dispatch_crawls import DispatchCrawl
from shared.domain.crawl.scope import CompiledScope
from shared.domain.crawl.wider_scope import (
    LINKS_A_CHUNK,
    FoundAgain,
    ReadablePage,
    ReadablePages,
    Rediscovered,
    found_again,
    hops_of_page,
)
from shared.domain.errors import Permanent, Transient
from shared.domain.frontier.command_progress import behind
from shared.domain.frontier.seed_contexts import SeedContext, context_bytes, numbered
from shared.domain.frontier.states import kind_of
from shared.domain.frontier.store_model import CommandRun
from shared.domain.ids import CrawlId, Fingerprint, HostId, Partition, Revision
from shared.domain.web.url import partition_of
from shared.ports.archive import PageArchive
from shared.ports.broker import Broker
from shared.wire.messages import Discoveries, Link, Origin, encode

log = structlog.get_logger("orb.frontier")

_PAGES_AT_ONCE: Final = 10
_KNOWN_LINKS: Final = 50_000
"""Maximum links remembered as published. Beyond that, all links are forgotten, so that some may be published again."""

_LINKS_A_MESSAGE: Final = 500
_CHARS_A_MESSAGE: Final = 512 * 1024
_MESSAGES_A_NAME: Final = 10_000

_Linked = tuple[ReadablePage, FoundAgain]


class _Judge(Struct, frozen=True):
    """The scope by which all links of a chunk are judged. It stays the same if the crawl's spec changes meanwhile."""

    crawl_id: CrawlId
    revision: Revision
    scope: CompiledScope


class Rediscovery:
    """Reads pages from the archive and publishes their links, for the REDISCOVER commands of one partition.

    `archive`: None if this master cannot read the archive. Then chunks with pages raise Transient.
    """

    def __init__(self, archive: PageArchive | None, broker: Broker, partitions: int) -> None:
        self.archive = archive
        self._broker = broker
        self._partitions = partitions
        self._known: dict[tuple[CrawlId, int, Fingerprint, int, int], tuple[int, int]] = {}
        self._producer = ""
        self._sent = 0
        self._marks: dict[tuple[CrawlId, Partition], tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"<Rediscovery {self.archive!r} sent={self._sent}>"

    async def chunk(self, run: CommandRun, crawl: DispatchCrawl, some: ReadablePages) -> Rediscovered:
        """Read the links of the pages in `some`, and publish the links that the crawl's present scope admits.

        After the broker has acknowledged all links, return how many pages were read and links published, and where the
        next chunk continues. The chunk ends early after LINKS_A_CHUNK links. Raise Transient if the archive
        cannot be read now, or if the broker does not store a message.
        """
        if not some.pages:
            return Rediscovered(0, 0, [], some.rest)
        if self.archive is None:
            raise Transient("this master cannot read the archive: start it with --archive")
        judge = _Judge(crawl.crawl_id, crawl.revision, crawl.scope)
        found: list[_Linked] = []
        again: list[tuple[HostId, Fingerprint]] = []
        read, rest = 0, some.rest
        while read < len(some.pages):
            if len(found) >= LINKS_A_CHUNK:
                last = some.pages[read - 1]
                rest = behind(last.host_id, last.fingerprint)
                break
            part = some.pages[read : read + _PAGES_AT_ONCE]
            links, unread = await self.archive.aside(partial(_read, self.archive, judge, part))
            found += links
            again += unread
            read += len(part)
        fresh = [each for each in found if self._is_fresh(judge, each[1])]
        try:
            await self._publish(judge, fresh)
        except Transient:
            # The broker may have stored the message. A repeat under the same number could be taken for it, so a new
            # name is used.
            self._producer = ""
            raise
        self._remember(judge, fresh)
        return Rediscovered(read, len(fresh), again, rest)

    def _is_fresh(self, judge: _Judge, link: FoundAgain) -> bool:
        known = self._known.get(_key(judge, link))
        return known is None or (link.depth, link.hops) < known

    def _remember(self, judge: _Judge, links: Sequence[_Linked]) -> None:
        if len(self._known) + len(links) > _KNOWN_LINKS:
            self._known.clear()
        for _, link in links:
            key, place = _key(judge, link), (link.depth, link.hops)
            self._known[key] = min(place, self._known.get(key, place))

    async def _publish(self, judge: _Judge, links: Sequence[_Linked]) -> None:
        """Publish the links to their partitions, in messages of bounded size. Return when all are acknowledged."""
        by_partition: dict[Partition, list[_Linked]] = defaultdict(list)
        for each in links:
            by_partition[partition_of(each[1].location.host, self._partitions)].append(each)
        for partition, part in by_partition.items():
            begun = chars = 0
            for end, (page, link) in enumerate(part):
                if end - begun == _LINKS_A_MESSAGE or (end > begun and chars > _CHARS_A_MESSAGE):
                    await self._send(judge, partition, part[begun:end])
                    begun, chars = end, 0
                chars += len(link.location.url) + (0 if page.context is None else context_bytes(page.context))
            await self._send(judge, partition, part[begun:])

    async def _send(self, judge: _Judge, partition: Partition, links: Sequence[_Linked]) -> None:
        """Publish one message of links to a partition. After `_MESSAGES_A_NAME` messages, take a new producer name."""
        if not self._producer or self._sent % _MESSAGES_A_NAME == 0:
            self._producer = f"rediscover-{uuid.uuid4().hex}"
            self._marks.clear()
        stream = (judge.crawl_id, partition)
        n, total = self._marks.get(stream, (0, 0))
        n, total = n + 1, total + len(links)
        origins, contexts = _origins(links)
        message = Discoveries(judge.crawl_id, judge.revision, self._producer, n, total, origins, *numbered(contexts))
        message_id = f"{self._producer}.{judge.crawl_id}.{partition}.{n}"
        await self._broker.publish_report(partition, "discovery", encode(message), message_id)
        self._marks[stream] = n, total
        self._sent += 1


def _key(judge: _Judge, link: FoundAgain) -> tuple[CrawlId, int, Fingerprint, int, int]:
    return judge.crawl_id, judge.revision, link.location.fingerprint, link.kind, link.extra


def _origins(links: Sequence[_Linked]) -> tuple[list[Origin], list[SeedContext | None]]:
    """Group links by the page that has them. Return the groups, and the seed context of each page (None without one).

    The links of one page must be adjacent in `links`.
    """
    origins: list[Origin] = []
    contexts: list[SeedContext | None] = []
    for page, link in links:
        if not origins or origins[-1].fingerprint != page.fingerprint:
            origins.append(Origin(page.host_id, page.fingerprint, []))
            contexts.append(page.context)
        url = link.location.url
        origins[-1].links.append(Link(url, link.depth, link.hops, kind=link.kind, extra=link.extra))
    return origins, contexts


def _read(
    archive: PageArchive, judge: _Judge, pages: Sequence[ReadablePage]
) -> tuple[list[_Linked], list[tuple[HostId, Fingerprint]]]:
    """Return the pages' links that the scope admits, and the pages that must be fetched again for their links.

    A page must be fetched again if the scope admits it and its record does not give all its links. Reading blocks the
    calling thread.
    """
    found: list[_Linked] = []
    again: list[tuple[HostId, Fingerprint]] = []
    scope = judge.scope
    for page in pages:
        try:
            outlinks = () if page.location is None else archive.outlinks(page.location)
        except Permanent as error:
            log.warning("archive_record.rejected", crawl=judge.crawl_id, url=page.url, error=str(error))
            outlinks = ()
        found += [(page, link) for link in found_again(scope, page, outlinks)]
        incomplete = page.unlisted or not outlinks or kind_of(page.flags).listing
        if incomplete and hops_of_page(scope, page) is not None:
            again.append((page.host_id, page.fingerprint))
    return found, again
