"""Reports the sitemaps of a host, so that the crawl fetches them.

In each visit, the sitemaps are added as links to the first URL that the visit finishes. Sitemaps that this worker has
reported before are left out. The links of a URL are sent before the URL's outcome. If the visit is lost before both are
sent, a later visit fetches the URL again, and reports the sitemaps.

Sitemaps belong to an origin (scheme, host and port). A host can have several origins.
"""

from collections.abc import Mapping
from math import inf
from typing import Final

import msgspec

from shared.domain.crawl.discover_spec import Sitemaps
from shared.domain.frontier.states import UrlKind
from shared.domain.ids import Fingerprint
from shared.domain.web.sitemaps import WELL_KNOWN_SITEMAP
from shared.domain.web.url import Location, origin_of
from shared.wire.messages import LeftOut, ShardUrl
from workers.discoveries import PageLinks
from workers.page_reading import listing_judge
from workers.robots import Robots
from workers.visit_crawls import VisitCrawl
from workers.visit_report import SettledUrl

HOPS: Final = 1
"""The `hops` of every sitemap that is reported here: a sign that the sitemap is no seed.

For most other links, `hops` is the number of redirects in a row. A link with depth 0 and 0 hops counts as a seed. A
sitemap may have depth 0, so its `hops` must not be 0.
"""


class HostSitemaps:
    """Adds the sitemaps of each origin to the report of one visit, as links of a URL of the origin.

    A sitemap is reported with the depth of this URL. The first finished URL of the origin gets the sitemaps. A later
    URL gets the sitemaps too if its depth is lower. Example: of URLs with depths 3, 4, 2 and 2, the first and the third
    get the sitemaps.
    """

    __slots__ = ("_depths",)

    def __init__(self) -> None:
        self._depths: dict[str, int] = {}

    def added(
        self,
        settled: SettledUrl,
        crawl: VisitCrawl | None,
        host_id: int,
        host: str,
        entry: ShardUrl,
        robots: Mapping[str, Robots],
    ) -> SettledUrl:
        """Return `settled`, the result of visiting `entry`, with the sitemaps of the URL's origin added as links.

        - `host_id`, `host`: those of the shard.
        - `robots`: the robots rules that the visit has, by origin.

        Return `settled` unchanged in these cases:
        - This visit has reported the sitemaps before, with a URL of the same or lesser depth.
        - The crawl reads no sitemaps, or is None.
        - `entry` lies beyond the scope (an extra hop).
        - The robots.txt of the origin must be obeyed and is not known.
        """
        if crawl is None or entry.extra or crawl.spec.discover.sitemaps is Sitemaps.NONE:
            return settled
        origin = origin_of(entry.url)
        if self._depths.get(origin, inf) <= entry.depth or (crawl.obeys_robots(host) and origin not in robots):
            return settled
        self._depths[origin] = entry.depth
        named = robots[origin].sitemaps(origin) if origin in robots else ()
        urls = [location.url for location in named]
        if not urls and crawl.spec.discover.sitemaps is Sitemaps.WELL_KNOWN:
            urls = [origin + WELL_KNOWN_SITEMAP]
        page = Location(entry.url, host, Fingerprint(settled.outcome.fingerprint))
        outlinks = crawl.outlinks.listed(
            page,
            [(url, None) for url in urls],
            listing_judge(crawl, page, entry.depth, hops=HOPS),
            depth=entry.depth,
        )
        outcome = settled.outcome
        if outlinks.excluded and crawl.outlinks.first_of(origin):
            known = {each.reason: each for each in outcome.left_out}
            for reason, n in outlinks.left_out().items():
                before = known.get(reason, LeftOut(reason, 0))
                examples = [*before.examples, *outlinks.examples.get(reason, ())]
                known[reason] = LeftOut(reason, before.n + n, examples)
            outcome = msgspec.structs.replace(outcome, left_out=list(known.values()))
        # A robots.txt vouches for its own host alone, also for a sitemap that lies elsewhere.
        own = tuple([location for location in outlinks.fresh if location.host == host])
        others = tuple([location for location in outlinks.fresh if location.host != host])
        links = [
            PageLinks(crawl, host_id, host, page.fingerprint, some, entry.depth, HOPS, kind)
            for some, kind in ((own, UrlKind.HOST_SITEMAP), (others, UrlKind.SITEMAP))
            if some
        ]
        return msgspec.structs.replace(
            settled, outcome=outcome, found=(*settled.found, *links), outlinks=(*settled.outlinks, outlinks)
        )
