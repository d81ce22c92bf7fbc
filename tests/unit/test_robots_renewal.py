"""robots.txt is renewed behind the pages of a visit before it expires, and a failure then changes nothing."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shared.domain.web.fetch import Answer, FailureKind, FetchFailed, FetchLimits, FetchRequest, Timings
from shared.domain.web.robots import MAX_LIFETIME_S, UNREACHABLE_LIFETIME_S, RobotsRecord
from shared.ports.broker import Broker
from shared.wire.robots import decode_robots, encode_robots
from workers import robots
from workers.robots import RENEWED_AT, Robots, RobotsCache
from workers.visit_crawls import VisitCrawl

ORIGIN = "http://a.test"
START_MS = 1_800_000_000_000
CRAWL = cast(
    VisitCrawl,
    SimpleNamespace(
        token="orb",
        headers=(),
        limits=FetchLimits(),
        spec=SimpleNamespace(fetch=SimpleNamespace(proxy=None, http2=True)),
    ),
)


class Web:
    """An origin, a bucket of shared records and a clock. `robots`: the body that is served, or None for a failure."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.robots: bytes | None = b"User-agent: *\nDisallow: /old\n"
        self.requests = 0
        self.shared: bytes | None = None
        self.cache = RobotsCache(cast(Broker, self), cast(Any, self))

    def unix_ms(self) -> int:
        return self.now_ms

    async def get_robots(self, key: str) -> bytes | None:
        return self.shared

    async def put_robots(self, key: str, data: bytes) -> None:
        self.shared = data

    async def send(self, request: FetchRequest, earliest: float) -> Answer | FetchFailed | None:
        self.requests += 1
        await asyncio.sleep(0)
        if self.robots is None:
            return FetchFailed(request.url, FailureKind.RESET, "closed", Timings())
        return Answer(request.url, 200, (), b"", b"", self.robots, self.robots, "127.0.0.1", Timings())

    def pass_share(self, share: float) -> None:
        """Let this share of a robots.txt's lifetime pass."""
        self.now_ms += int(share * MAX_LIFETIME_S * 1000)

    async def rules(self) -> Robots:
        robots = await self.cache.of(ORIGIN, CRAWL, self.send, 0.0)
        assert robots is not None
        return robots

    async def renew(self) -> None:
        await self.cache.renew(ORIGIN, CRAWL, self.send, 0.0)


def test_robots_txt_is_renewed_once_it_has_used_up_most_of_its_lifetime() -> None:
    async def story() -> None:
        web = Web()
        await web.renew()
        assert web.requests == 0, "nothing is known of the origin"
        await web.rules()
        web.pass_share(RENEWED_AT - 0.01)
        await web.renew()
        assert web.requests == 1
        web.pass_share(0.02)
        web.robots = b"User-agent: *\nDisallow: /new\n"
        await asyncio.gather(web.renew(), web.renew(), web.renew())
        assert web.requests == 2, "one visit at a time renews it"
        assert not (await web.rules()).allows(f"{ORIGIN}/new", "orb")
        web.pass_share(RENEWED_AT - 0.01)
        assert not (await web.rules()).allows(f"{ORIGIN}/new", "orb")
        assert web.requests == 2, "it is valid for a whole lifetime again"
        assert web.shared is not None
        assert decode_robots(web.shared).fetched_at_ms > START_MS

    asyncio.run(story())


def test_robots_txt_that_cannot_be_renewed_stays_valid_until_it_expires() -> None:
    async def story() -> None:
        web = Web()
        await web.rules()
        web.pass_share(0.9)
        web.robots = None
        for requests in (2, 2):
            await web.renew()
            assert web.requests == requests, "the next attempt waits"
        rules = await web.rules()
        assert (rules.failure, rules.allows(f"{ORIGIN}/old", "orb"), web.requests) == ("", False, 2)
        web.now_ms += int(UNREACHABLE_LIFETIME_S * 1000)
        await web.renew()
        assert web.requests == 3
        web.pass_share(0.2)
        await web.renew()
        assert web.requests == 3, "an expired one is fetched by the visit that needs it"

    asyncio.run(story())


def test_renewal_takes_the_copy_of_another_worker_without_a_request() -> None:
    async def story() -> None:
        web = Web()
        await web.rules()
        web.pass_share(0.9)
        other = RobotsRecord(
            status=200, body=b"User-agent: *\nDisallow: /new\n", fetched_at_ms=web.now_ms, lifetime_s=MAX_LIFETIME_S
        )
        web.shared = encode_robots(other)
        await web.renew()
        assert (web.requests, (await web.rules()).allows(f"{ORIGIN}/new", "orb")) == (1, False)

    asyncio.run(story())


def test_renewal_that_the_visit_cannot_send_changes_nothing() -> None:
    async def story() -> None:
        web = Web()
        await web.rules()
        web.pass_share(0.9)

        async def ended(request: FetchRequest, earliest: float) -> None:
            return None

        await web.cache.renew(ORIGIN, CRAWL, ended, 0.0)
        assert not (await web.rules()).allows(f"{ORIGIN}/old", "orb")

    asyncio.run(story())


@pytest.mark.parametrize("served", [None, b"User-agent: *\nDisallow: /new\n"])
def test_renewal_goes_on_when_its_entry_is_evicted_meanwhile(
    served: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other visits keep the robots.txt of so many origins that there is no memory for this one."""

    async def story() -> None:
        web = Web()
        await web.rules()
        web.pass_share(0.9)
        web.robots, web.shared = served, None
        monkeypatch.setattr(robots, "CACHE_BYTES", 0)

        async def send(request: FetchRequest, earliest: float) -> Answer | FetchFailed | None:
            await web.cache.of("http://b.test", CRAWL, web.send, 0.0)
            return await web.send(request, earliest)

        await web.cache.renew(ORIGIN, CRAWL, send, 0.0)
        monkeypatch.undo()
        web.robots = b"User-agent: *\nDisallow: /new\n"
        assert not (await web.rules()).allows(f"{ORIGIN}/new", "orb")

    asyncio.run(story())


def test_redirect_reached_by_a_visit_is_kept_for_so_many_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robots, "MAX_REDIRECTS_KEPT", 1)
    asked: list[str] = []
    visits: list[list[str]] = []

    async def story() -> None:
        web = Web()

        async def send(request: FetchRequest, earliest: float) -> Answer | None:
            asked.append(request.url)
            if not request.url.endswith("/robots.txt"):
                return None
            return Answer(request.url, 301, (("location", "/r"),), b"", b"", b"", b"", "127.0.0.1", Timings())

        for origin in ("http://a.test", "http://b.test", "http://b.test", "http://a.test"):
            asked.clear()
            assert await web.cache.of(origin, CRAWL, send, 30.0) is None
            visits.append(list(asked))

    asyncio.run(story())
    first = ["http://a.test/robots.txt", "http://a.test/r"]
    assert visits == [first, ["http://b.test/robots.txt", "http://b.test/r"], ["http://b.test/r"], first]


@pytest.mark.parametrize(
    ("delay_s", "passed_s", "copied", "asked"),
    [
        (30.0, 299, False, "/r"),
        (30.0, 301, False, "/robots.txt"),
        (1_000.0, 1_999, False, "/r"),
        (1_000.0, 2_001, False, "/robots.txt"),
        (30.0, 1, True, "/robots.txt"),
    ],
)
def test_redirect_reached_by_a_visit_is_kept_for_a_short_time(
    delay_s: float, passed_s: int, copied: bool, asked: str
) -> None:
    """It was kept for a day. A target that had gone since then allowed the whole site."""
    requests: list[str] = []

    async def story() -> None:
        web = Web()

        async def send(request: FetchRequest, earliest: float) -> Answer | None:
            requests.append(request.url.removeprefix(ORIGIN))
            if len(requests) != 1:
                return None
            return Answer(request.url, 301, (("location", "/r"),), b"", b"", b"", b"", "127.0.0.1", Timings())

        assert await web.cache.of(ORIGIN, CRAWL, send, delay_s) is None
        web.now_ms += passed_s * 1000
        if copied:
            web.shared = encode_robots(RobotsRecord(status=200, fetched_at_ms=web.now_ms, lifetime_s=60.0))
            assert await web.cache.of(ORIGIN, CRAWL, send, delay_s) is not None
            web.shared, web.now_ms = None, web.now_ms + 61_000
        assert await web.cache.of(ORIGIN, CRAWL, send, delay_s) is None

    asyncio.run(story())
    assert requests == ["/robots.txt", "/r", asked]
