"""A visit and its crawl, which changes in the very moment in which something else happens."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from shared.adapters.local.clock import SystemClock
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.ids import CrawlId, Partition, Revision, numbered
from shared.domain.ops.watermarks import Watermarks
from shared.domain.web.fetch import Answer, FetchRequest, Timings
from shared.domain.web.url import fingerprint, host_of
from shared.ports.specs import PublishedSpec
from shared.wire.messages import ShardUrl, UrlShard
from workers.disk_reservations import DiskReservations
from workers.grant import Grant
from workers.known_links import KnownLinks
from workers.request_slots import Requests
from workers.visit import Visit, VisitContext
from workers.visit_crawls import VisitCrawls
from workers.visit_report import SettledUrl, VisitEnd

CLOCK = SystemClock()
CRAWL = CrawlId(7)
URLS = tuple(f"http://a.test/{number}" for number in range(3))


def published(revision: int = 1, *, agent: str = "one", gone: bool = False, paused: bool = False) -> PublishedSpec:
    spec = parse_spec(
        {"seeds": [URLS[0]], "politeness": {"obey_robots": False, "delay_s": 0}, "fetch": {"user_agent": agent}}
    )
    return PublishedSpec(CRAWL, Revision(revision), spec, 8, gone, paused)


class Stage:
    """A visit's surroundings, which note what it does; `fetched` is called when an answer is there, before anybody else
    can do anything."""

    def __init__(self) -> None:
        self.shown: PublishedSpec | None = published()
        self.agents: list[str] = []
        self.archived: list[str] = []
        self.settled: list[SettledUrl] = []
        self.endings: list[VisitEnd] = []
        self.quiet_since: float | None = None
        self.crawls = VisitCrawls(cast(Any, self), KnownLinks(), lambda _: self)
        self.on_answer: list[PublishedSpec | None] = []
        self.on_look_up: PublishedSpec | None = None

    # the source of specs
    async def spec(self, crawl_id: CrawlId, revision: Revision) -> PublishedSpec:
        assert self.shown is not None
        return self.shown

    def latest(self, crawl_id: CrawlId) -> PublishedSpec | None:
        return self.shown

    async def changes(self) -> AsyncIterator[None]:
        yield

    # the fetcher
    async def look_up(self, url: str, *, limit_s: float, proxy: str | None) -> None:
        if self.on_look_up is not None:
            self.shown = self.on_look_up
            self.under_way.refresh_crawl()

    async def fetch(self, request: FetchRequest) -> Answer:
        self.agents.append(dict(request.headers)["User-Agent"])
        if self.on_answer:
            self.shown = self.on_answer.pop(0)
            self.under_way.refresh_crawl()
        return Answer(request.url, 200, (), b"", b"", b"", b"", "127.0.0.1", Timings())

    async def close(self) -> None:
        pass

    # the archive
    async def keep(self, crawl: object, exchange: Any) -> None:
        self.archived.append(exchange.answer.url)
        await asyncio.Event().wait()

    async def run(self) -> None:
        """Visit all URLs, until it is over or asks the archive for something."""
        crawl = await self.crawls.active(CRAWL, Revision(1))
        shard = UrlShard(
            numbered(1, Partition(0)), CRAWL, 1, numbered(1, Partition(0)), host_of(URLS[0]), 0, 0,
            [ShardUrl(url, 1) for url in URLS],
        )  # fmt: skip
        now = CLOCK.elapsed()
        grant = Grant(1, (0, 1, 2), sent=now, arrived=now, expires_s=600.0, rest_s=0.0)
        equipment = VisitContext(
            clock=CLOCK, crawls=self.crawls, owners=cast(Any, None), robots=cast(Any, None), archive=cast(Any, self),
            reservations=DiskReservations(None, Watermarks, cast(Any, self)), reporter=cast(Any, self),
            ack_wait_s=600.0, requests=Requests(1, CLOCK.elapsed),
        )  # fmt: skip
        self.under_way = Visit(equipment, cast(Any, None), shard, crawl, grant, "w1/1")
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            visiting = group.create_task(self.under_way.run())
            while not self.archived and not visiting.done():  # noqa: ASYNC110  a double has no event
                await asyncio.sleep(0)
            if self.archived:
                visiting.cancel()

    # the reporter, and the visit's report
    def visit(self, *_: object) -> "Stage":
        return self

    async def wait_for_capacity(self) -> None:
        pass

    def add(self, page: SettledUrl) -> None:
        self.settled.append(page)

    async def finish(self, ending: VisitEnd) -> None:
        self.endings.append(ending)


def test_response_arriving_during_deletion_is_not_archived() -> None:
    stage = Stage()
    stage.on_answer = [published(gone=True)]
    asyncio.run(stage.run())
    assert stage.archived == []
    assert stage.settled == []
    [ending] = stage.endings
    assert (ending.final, set(ending.not_attempted)) == (True, {fingerprint(url) for url in URLS})


def test_an_answer_that_arrives_in_the_moment_of_a_pause_is_archived() -> None:
    stage = Stage()
    stage.on_answer = [published(paused=True)]
    asyncio.run(stage.run())
    assert stage.archived == [URLS[0]]


@pytest.mark.parametrize("changed", [published(paused=True), published(gone=True)], ids=["paused", "gone"])
def test_change_while_the_host_is_looked_up_holds_for_the_request(changed: PublishedSpec) -> None:
    stage = Stage()
    stage.on_look_up = changed
    asyncio.run(stage.run())
    assert stage.agents == []
    [ending] = stage.endings
    assert set(ending.not_attempted) == {fingerprint(url) for url in URLS}


def test_a_spec_that_cannot_be_seen_any_more_or_is_older_changes_nothing() -> None:
    async def story() -> None:
        stage = Stage()
        stage.shown = published(3, agent="three")
        crawl = await stage.crawls.active(CRAWL, Revision(3))
        assert crawl is not None
        for shown in (None, published(2, agent="two"), published(3, agent="three")):
            stage.shown = shown
            assert stage.crawls.now(crawl) is crawl
        stage.shown = published(3, agent="three", paused=True)
        paused = stage.crawls.now(crawl)
        assert paused is not None
        assert (paused.revision, paused.paused, paused.scope) == (3, True, crawl.scope), "nothing is compiled anew"
        stage.shown = published(2, gone=True)
        assert stage.crawls.now(paused) is None

    asyncio.run(story())
