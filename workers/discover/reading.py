"""Reads an answer as a page, or as a sitemap or feed. Judges the entries by the scope and the rules of sitemaps.org.

A file is read as a sitemap or feed if its URL was discovered as one, for example in a robots.txt. A crawl that reads
sitemaps or feeds also recognizes those behind ordinary links, by the root element of the XML.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Final

from shared.domain.crawl.discover_spec import Sitemaps
from shared.domain.crawl.recrawl_spec import RecrawlPolicy
from shared.domain.explain.excluded_links import SITEMAP_LOCATION
from shared.domain.frontier.states import UrlKind
from shared.domain.web.fetch import Answer
from shared.domain.web.sitemaps import listing_folder, lists_whole_host
from shared.domain.web.url import Location, origin_of
from shared.wire.messages import ShardUrl
from workers.discover.listing import ListingReader
from workers.discover.xml_listing import Entry, Listing
from workers.page_reading import READ_ON_LOOP, PageReading, listing_judge, page_judge, read
from workers.parse.mime import Media, classify, media_type
from workers.robots import Robots, RobotsCache
from workers.visit_crawls import VisitCrawl

MAX_ORIGINS: Final = 100
"""The approximate maximum of origins whose robots.txt is looked up for one sitemap.

A sitemap may list URLs of another origin only if the robots.txt of that origin names the sitemap. The look-up uses
only a cached robots.txt and fetches none.
"""

LASTMOD_AHEAD_S: Final = 300
"""A `lastmod` that is later than the fetch of its sitemap by more than this many seconds is ignored."""

LASTMOD_BACK_S: Final = 604_800
"""A tolerance of one week, in seconds, for the dates (`lastmod`) in a sitemap or feed that is fetched again.

Entries whose date is later than the previous fetch minus this tolerance are reported again. Example: if the previous
fetch was on 15 May, entries with dates after 8 May are reported again.
"""

ALL_NOW: Final = 10
"""If a file has at least this many entries and all their dates are recent, the dates are ignored (`_Signs.all_now`).

In a shorter file, such dates are probably true."""

_MADE_S: Final = 3_600
_GZIP: Final = b"\x1f\x8b"
_FEEDS: Final = frozenset((Listing.RSS, Listing.ATOM))
_MIME: Final = 128


async def read_answer(
    crawl: VisitCrawl,
    page: Location,
    entry: ShardUrl,
    answer: Answer,
    at_ms: int,
    robots: Mapping[str, Robots],
    cache: RobotsCache,
) -> PageReading:
    """Return what was read from the answer to `entry`: as a sitemap or feed if it is one, else as a page.

    - `page`: the URL of `entry`, as a Location.
    - `at_ms`: when the URL was requested (Unix ms).
    - `robots`: the robots rules that the visit has, by origin.
    - `cache`: supplies the robots rules of other origins. None are fetched for this.

    A large answer is read in a thread.
    """
    kind = UrlKind(entry.kind)
    if entry.extra or not _may_list(crawl, kind, answer):
        if len(answer.decoded) * crawl.scope.weight > READ_ON_LOOP:
            return await asyncio.to_thread(read, crawl, page, entry.depth, entry.hops, answer, at_ms, kind, entry.extra)
        return read(crawl, page, entry.depth, entry.hops, answer, at_ms, kind, entry.extra)
    named = {origin: page in rules.sitemaps(origin) for origin, rules in robots.items()}
    named.setdefault(origin_of(page.url), False)
    while True:
        reading = _ListingReading(crawl, page, entry, answer, at_ms, named)
        if answer.decoded.startswith(_GZIP) or len(answer.decoded) * crawl.scope.weight > READ_ON_LOOP:
            result = await asyncio.to_thread(reading.read)
        else:
            result = reading.read()
        if result is None:
            return read(crawl, page, entry.depth, entry.hops, answer, at_ms, kind, entry.extra)
        if not reading.unknown:
            return result
        for origin in reading.unknown:
            known = await cache.known(origin)
            named[origin] = known is not None and page in known.sitemaps(origin)


def _may_list(crawl: VisitCrawl, kind: UrlKind, answer: Answer) -> bool:
    """Return True if the answer may be a sitemap or feed. Its status must be 2xx, and one of these must be true:

    - The URL was discovered as a sitemap or feed (`kind`).
    - The answer is XML, the URL is not a requisite, and the crawl reads sitemaps or feeds.
    """
    if not 200 <= answer.status < 300:
        return False
    if kind.listing:
        return True
    if kind is UrlKind.REQUISITE:
        return False
    return crawl.spec.discover.any and classify(answer.decoded, answer.joined("content-type")) is Media.XML


class _ListingReading:
    """Reads one answer as a sitemap or feed, here called the file.

    A sitemap may list every URL in its own folder. To list another URL, the sitemap must be named by a robots.txt:

    - If the URL is on the sitemap's host, the robots.txt of the sitemap's origin must name the sitemap.
    - If the URL is on another host, the robots.txt of the URL's origin must name the sitemap.

    `named[origin]` is True if the robots.txt of `origin` names the file, else False. The caller must add the file's own
    origin as a key. Origins of the listed URLs may be missing.

    `unknown`: after `read`, the origins of listed URLs that were missing in `named`. If there are any, the caller must
    add them to `named` and read the answer again with a new object.
    """

    def __init__(
        self, crawl: VisitCrawl, page: Location, entry: ShardUrl, answer: Answer, at_ms: int, named: Mapping[str, bool]
    ) -> None:
        self._crawl, self._page, self._entry, self._answer = crawl, page, entry, answer
        self._at_ms = at_ms
        self._kind = UrlKind(entry.kind)
        self._named = named
        self._whole_host = self._kind is UrlKind.HOST_SITEMAP or named[origin_of(page.url)]
        self._folder = listing_folder(page.url)
        self.unknown: set[str] = set()

    def read(self) -> PageReading | None:
        """Return what was read. Its links are the entries that the scope and the location rules allow.

        Return None if the file must be read as a page. That is so if its URL was not discovered as a sitemap or feed,
        and one of these is true:

        - The file is neither a sitemap nor a feed.
        - The crawl's spec does not let the crawl read sitemaps (or feeds, if the file is a feed).
        """
        page, entry, content_type = self._page, self._entry, self._answer.joined("content-type")
        signs = _Signs(self._crawl, self._entry, self._at_ms)
        reader = ListingReader(page.url, self._answer.decoded, content_type, dates=signs.since_s is not None)
        batches = iter(reader)
        first = next(batches, [])
        if not (self._kind.listing or self._reads(reader.form)):
            return None
        mime = media_type(content_type)[:_MIME]
        if reader.form is None:
            return PageReading(mime, entries=0, problem=f"it is neither a sitemap nor a feed: {reader.problem}")
        index = reader.form is Listing.INDEX
        depth = entry.depth if index else entry.depth + 1
        outlinks = self._crawl.outlinks.listed(
            page,
            signs.checked(chain((first,), batches)),
            self._judge(reader.form),
            depth=depth,
            changed_since=signs.since_s,
        )
        found, lastmods = outlinks.fresh, outlinks.lastmods
        if signs.all_now:
            lastmods = {}
        elif outlinks.renewed:
            found += outlinks.renewed
        if reader.form is Listing.TEXT and not outlinks.urls:
            return PageReading(mime, entries=0, problem="it is no sitemap: none of its lines is a URL")
        return PageReading(
            mime=mime,
            found=found,
            depth=depth,
            hops=entry.hops + 1 if index else 0,
            kind=self._kind_of_children() if index else UrlKind.LISTED,
            links=len(outlinks.fresh) + outlinks.known,
            outlinks=outlinks,
            archived={f"M {reader.form}": outlinks.urls},
            notes=(("outlinksLeftOut", str(outlinks.urls_left_out)),) if outlinks.urls_left_out else (),
            links_found=outlinks.found,
            entries=reader.entries,
            problem=reader.problem,
            left_out=outlinks.left_out(),
            unlisted=sum(outlinks.excluded.values()),
            examples=outlinks.examples,
            lastmods=lastmods,
        )

    def _reads(self, form: Listing | None) -> bool:
        discover = self._crawl.spec.discover
        if form in _FEEDS:
            return discover.feeds
        return form in (Listing.SITEMAP, Listing.INDEX) and discover.sitemaps is not Sitemaps.NONE

    def _kind_of_children(self) -> UrlKind:
        """Return the kind to report for the sitemaps that a sitemap index lists.

        It is HOST_SITEMAP if the index may list every URL of its host, else SITEMAP.
        """
        whole = self._whole_host or lists_whole_host(self._page.url)
        return UrlKind.HOST_SITEMAP if whole else UrlKind.SITEMAP

    def _judge(self, form: Listing) -> Callable[[Location], str | None]:
        page, depth = self._page, self._entry.depth
        if form is Listing.INDEX:
            in_scope = listing_judge(self._crawl, page, depth, hops=self._entry.hops + 1)
        else:
            in_scope = page_judge(self._crawl, page, depth + 1)
        # A feed that no robots.txt names is a page with links: the location rules are for sitemaps.
        if form in _FEEDS and self._kind not in (UrlKind.SITEMAP, UrlKind.HOST_SITEMAP):
            return in_scope
        same_site = form is Listing.INDEX or self._whole_host
        folder, host = self._folder, page.host

        def judge(location: Location) -> str | None:
            reason = in_scope(location)
            if reason is not None or location.url.startswith(folder):
                return reason
            if same_site and location.host == host:
                return None
            origin = origin_of(location.url)
            named = self._named.get(origin)
            if named is None and len(self._named) + len(self.unknown) <= MAX_ORIGINS:
                self.unknown.add(origin)
            return None if named else SITEMAP_LOCATION

        return judge


class _Signs:
    """The dates (`lastmod`) in one sitemap or feed: which are credible, and which are new since the previous fetch.

    A crawl whose spec has `recrawl.policy: adaptive` fetches a page again sooner if the page has a new date. Other
    crawls do not use dates.

    `since_s` (Unix seconds): a later date counts as new, so the caller reports its entry again. It is the time of the
    previous fetch minus LASTMOD_BACK_S, and 0 if there was none. None: the crawl does not use dates.
    """

    def __init__(self, crawl: VisitCrawl, entry: ShardUrl, at_ms: int) -> None:
        used = crawl.spec.recrawl.policy is RecrawlPolicy.ADAPTIVE
        self.since_s = max(0, entry.stored_ms // 1000 - LASTMOD_BACK_S) if used else None
        self._now_s = at_ms // 1000
        self._entries = self._now = 0

    @property
    def all_now(self) -> bool:
        """True if all dates must be ignored, because they seem to be the time at which the site generated the file.

        This is so if the file has at least ALL_NOW entries, and each has a date within _MADE_S (an hour) before the
        fetch, or later. Read this only after all entries were read from `checked`.
        """
        return self._now == self._entries >= ALL_NOW

    def checked(self, batches: Iterator[list[Entry]]) -> Iterator[Entry]:
        """Yield all entries of the batches. Replace each impossible date by 0, which means an unknown date.

        A date is impossible if it is more than LASTMOD_AHEAD_S seconds after the fetch of the file. If the crawl does
        not use dates, all entries stay as they are.

        The entries are also counted for `all_now`. So read `all_now` only after the last entry.
        """
        latest, now = self._now_s + LASTMOD_AHEAD_S, self._now_s - _MADE_S
        for batch in batches:
            if self.since_s is None:
                yield from batch
                continue
            self._entries += len(batch)
            # Count the recent dates before the removal: `all_now` compares their number with that of all entries.
            for entry in batch:
                if entry.lastmod >= now:
                    self._now += 1
                    if entry.lastmod > latest:
                        entry = entry._replace(lastmod=0)
                yield entry
