"""Answers that were made once, and are sent again for as long as nothing of what they show has changed."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from starlette.responses import Response

from api.control.roster import Roster
from api.schemas.crawls import crawl_held, held_of, pool_of
from shared.domain.declared import Stamp
from shared.ports.catalog import Catalog

KEPT: Final = 256
"""Crawls whose answers are kept."""

LARGEST: Final = 1 << 16
"""The largest answer that is kept, in bytes: a crawl with a hundred thousand seeds is made anew each time."""


@dataclass(frozen=True, slots=True)
class _Answer:
    stamp: Stamp
    pool: str
    held: str | None
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

    async def answer(self, name: str, catalog: Catalog, roster: Roster, now: float) -> Response:
        """The crawl as its readers are sent it, with the ETag of all that is shown; `roster` knows at `now` whether it
        is held. It may be sent any number of times, so nobody changes it. Missing where there is no such crawl."""
        stamp = await catalog.stamp(name)
        known = self._answers.get(name)
        if known is not None and known.stamp == stamp and known.held == held_of(stamp.state, known.pool, roster, now):
            return known.response
        crawl = await catalog.crawl(name)
        pool = pool_of(crawl)
        held = held_of(crawl.state, pool, roster, now)
        content = crawl_held(crawl, held).model_dump_json().encode()
        tag = f"{crawl.tag}.{crc32(repr((crawl.stamp, held)).encode()):08x}"
        response = Response(content, media_type="application/json", headers={"ETag": f'"{tag}"'})
        self._answers.pop(name, None)
        if len(content) <= LARGEST:
            self._answers[name] = _Answer(crawl.stamp, pool, held, response)
            if len(self._answers) > KEPT:
                self._answers.popitem(last=False)
        return response
