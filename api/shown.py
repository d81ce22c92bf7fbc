"""Answers that were made once, and are sent again for as long as nothing of what they show has changed."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from starlette.responses import Response

from api.schemas.crawls import Crawl, Needs, Seen, Surroundings, crawl_seen, needs_of
from shared.domain.declared import DeclaredCrawl, Stamp
from shared.ports.catalog import Catalog

KEPT: Final = 256
"""Crawls whose answers are kept."""

LARGEST: Final = 1 << 16
"""The largest answer that is kept, in bytes: a crawl with a hundred thousand seeds is made anew each time."""


@dataclass(frozen=True, slots=True)
class _Answer:
    stamp: Stamp
    needs: Needs
    seen: Seen
    response: Response


class ShownCrawls:
    """The answers to reads of single crawls.

    The stamp of a crawl is read for every one of them, and compared with that of the crawl that was shown: nobody is
    shown anything older than what is stored. Reading the rest and making its JSON took a third of an answer.
    """

    def __init__(self) -> None:
        self._answers: OrderedDict[str, _Answer] = OrderedDict()

    def __repr__(self) -> str:
        return f"<ShownCrawls kept={len(self._answers)}>"

    async def answer(self, name: str, catalog: Catalog, around: Surroundings) -> Response:
        """Return the crawl as its readers are sent it, with the ETag of all that is shown. It may be sent any number of
        times, so that no caller may change it. Raise Missing if there is no such crawl."""
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
            self._answers[name] = _Answer(crawl.stamp, needs, seen, response)
            if len(self._answers) > KEPT:
                self._answers.popitem(last=False)
        return response


def described(crawl: DeclaredCrawl, around: Surroundings) -> tuple[Crawl, str]:
    """Return the crawl as it is shown now, and the tag that a read of the same would have."""
    seen = needs_of(crawl.spec).seen(crawl.state, around)
    return crawl_seen(crawl, seen), shown_tag(crawl, seen)


def shown_tag(crawl: DeclaredCrawl, seen: Seen) -> str:
    """Return the tag of all that is shown of a crawl: its version, and behind a dot what changes while it runs."""
    return f"{crawl.tag}.{crc32(repr((crawl.stamp, seen.held, seen.warnings)).encode()):08x}"
