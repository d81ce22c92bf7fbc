"""Cache the responses to reads of crawls, and send them again while nothing that they show has changed."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from starlette.responses import Response

from api.schemas.crawls import Crawl, Needs, Seen, Surroundings, crawl_seen, needs_of
from shared.domain.reads.declared import DeclaredCrawl, Stamp
from shared.ports.catalog import Catalog

KEPT: Final = 256
"""Maximum crawls whose responses are cached."""

LARGEST: Final = 1 << 16
"""Maximum bytes of a response that is cached. A longer one, of a crawl with many seeds, is made at each read."""


@dataclass(frozen=True, slots=True)
class _CachedAnswer:
    stamp: Stamp
    needs: Needs
    seen: Seen
    response: Response


class CachedCrawlReads:
    """Caches the responses to reads of single crawls.

    A cached response is sent only if nothing that it shows has changed. Each read checks this in the database, which
    takes less time than reading the whole crawl and encoding it as JSON.
    """

    def __init__(self) -> None:
        self._answers: OrderedDict[str, _CachedAnswer] = OrderedDict()

    def __repr__(self) -> str:
        return f"<CachedCrawlReads kept={len(self._answers)}>"

    async def answer(self, name: str, catalog: Catalog, around: Surroundings) -> Response:
        """Return the response to a GET of the crawl `name`, with its ETag. Raise Missing if there is no such crawl.

        `around`: the members of the cluster and their statuses, as this master knows them. The response shows if they
        keep the crawl from being fetched. The response is cached and shared, so no caller may change it.
        """
        stamp = await catalog.stamp(name)
        known = self._answers.get(name)
        if known is not None and known.stamp == stamp and known.seen == known.needs.seen(stamp.state, around):
            return known.response
        crawl = await catalog.crawl(name)
        needs = needs_of(crawl.spec)
        seen = needs.seen(crawl.state, around)
        content = crawl_seen(crawl, seen).model_dump_json().encode()
        response = Response(content, media_type="application/json", headers={"ETag": f'"{shown_tag(crawl, seen)}"'})
        self._answers.pop(name, None)
        if len(content) <= LARGEST:
            self._answers[name] = _CachedAnswer(crawl.stamp, needs, seen, response)
            if len(self._answers) > KEPT:
                self._answers.popitem(last=False)
        return response


def described(crawl: DeclaredCrawl, around: Surroundings) -> tuple[Crawl, str]:
    """Return the body of the response to a GET of this crawl, and its ETag without quotes.

    `around`: the members of the cluster and their statuses, as this master knows them. If workers cannot fetch the
    crawl, the response shows why, such as a full disk.
    """
    seen = needs_of(crawl.spec).seen(crawl.state, around)
    return crawl_seen(crawl, seen), shown_tag(crawl, seen)


def shown_tag(crawl: DeclaredCrawl, seen: Seen) -> str:
    """Return the ETag of the response that shows this crawl, without quotes.

    It is the crawl's version, a dot, and a checksum that changes whenever the response changes.

    `seen`: what the response shows of this master's state.
    """
    # The pressure is included because the blocking reason may hide it.
    shown = crawl.stamp, seen.blocking_reason, seen.pressure, seen.warnings
    return f"{crawl.tag}.{crc32(repr(shown).encode()):08x}"
