"""A fetcher for each set of egress rules: few are open at a time, and none is closed over a fetch that it is at."""

import asyncio
from typing import Any, cast

import pytest

from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.ids import CrawlId, Revision
from shared.domain.web.fetch import Answer, FetchRequest, Timings
from shared.ports.specs import PublishedSpec
from workers.fetch import pool as ruled
from workers.fetch.egress import EgressRules
from workers.known_links import KnownLinks
from workers.visit_crawls import VisitCrawls

REQUEST = FetchRequest("http://a.test/")


class Noted:
    """A fetcher that waits where it is told to, and refuses what it may not do."""

    def __init__(self, web: "Web", rules: EgressRules) -> None:
        self.web, self.rules, self.at = web, rules, 0

    async def look_up(self, url: str, *, limit_s: float, proxy: str | None) -> None:
        assert self in self.web.open, "it was closed"

    async def fetch(self, request: FetchRequest) -> Answer:
        assert self in self.web.open, "it was closed"
        self.at += 1
        try:
            await self.web.answers.wait()
        finally:
            self.at -= 1
        return Answer(request.url, 200, (), b"", b"", b"", b"", "127.0.0.1", Timings())

    async def close(self) -> None:
        assert self.web.ending or not self.at, "a fetch was under way"
        self.web.open.remove(self)


class Web:
    """Publishes crawls 1, 2, ..., each of which may reach an address of its own; notes the fetchers that are open."""

    def __init__(self) -> None:
        self.open: list[Noted] = []
        self.opened = 0
        self.answers = asyncio.Event()
        self.gone: set[CrawlId] = set()
        self.ending = False
        self.crawls = VisitCrawls(cast(Any, self), KnownLinks(), self.make)

    def make(self, rules: EgressRules) -> Noted:
        self.opened += 1
        self.open.append(made := Noted(self, rules))
        return made

    def latest(self, crawl_id: CrawlId) -> PublishedSpec:
        spec = parse_spec({"seeds": ["http://a.test/"], "egress": {"allow": [f"10.0.{crawl_id}.0/24"]}})
        return PublishedSpec(crawl_id, Revision(1), spec, 8, gone=crawl_id in self.gone)

    async def spec(self, crawl_id: CrawlId, revision: Revision) -> PublishedSpec:
        return self.latest(crawl_id)

    async def fetch(self, crawl_id: int) -> None:
        crawl = await self.crawls.active(CrawlId(crawl_id), Revision(1))
        assert crawl is not None
        assert isinstance(await crawl.fetcher.fetch(REQUEST), Answer)


def test_open_fetchers_are_bounded_and_closed_ones_reopen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ruled, "MAX_FETCHERS", 3)

    async def story() -> None:
        web = Web()
        web.answers.set()
        for crawl_id in (1, 2, 3, 1, 4, 5):
            await web.fetch(crawl_id)
            assert len(web.open) <= 3
        assert [str(each.rules.allow[0]) for each in web.open] == ["10.0.1.0/24", "10.0.4.0/24", "10.0.5.0/24"]
        assert web.opened == 5
        await web.fetch(2)
        assert web.opened == 6
        await web.crawls.close()
        assert web.open == []

    asyncio.run(story())


def test_fetches_under_way_end_before_their_fetcher_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ruled, "MAX_FETCHERS", 2)

    async def story() -> None:
        web = Web()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(web.fetch(crawl_id)) for crawl_id in (1, 2, 3, 4, 1)]
            while sum(each.at for each in web.open) < 5:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0)
            assert len(web.open) == 4, "each is at something"
            tasks[1].cancel()
            await asyncio.wait([tasks[1]])
            assert len(web.open) == 3
            web.answers.set()
        assert len(web.open) == 2
        web.ending = True
        await web.crawls.close()

    asyncio.run(story())


def test_unused_fetcher_closes_and_crawls_of_same_rules_share_one() -> None:
    async def story() -> None:
        web = Web()
        web.answers.set()
        one, two = [await web.crawls.active(CrawlId(number), Revision(1)) for number in (1, 2)]
        assert one is not None
        assert two is not None
        await one.fetcher.fetch(REQUEST)
        await two.fetcher.fetch(REQUEST)
        await web.crawls.tidy()
        assert len(web.open) == 2, "both are used"
        web.gone.add(CrawlId(1))
        assert web.crawls.now(one) is None
        web.answers.clear()
        late = asyncio.create_task(one.fetcher.fetch(REQUEST))  # a visit that has not seen it yet
        while not any(each.at for each in web.open):  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0)
        await web.crawls.tidy()
        assert len(web.open) == 2, "it is at something"
        web.answers.set()
        await late
        await web.crawls.tidy()
        assert [str(each.rules.allow[0]) for each in web.open] == ["10.0.2.0/24"]
        await web.crawls.close()
        with pytest.raises(RuntimeError, match="closed FetcherPool"):
            await two.fetcher.fetch(REQUEST)

    asyncio.run(story())
