"""How fast a host is asked that refuses now and then: sites that were described, not our code, are the judges."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from shared.domain.crawl.spec import Politeness, Retry
from shared.domain.frontier.failure import HostEffect, decide
from shared.domain.frontier.politeness import UNREACHABLE_BASE_S, HostHealth, host_delay
from shared.domain.frontier.states import UrlState
from shared.domain.web.fetch import FailureKind

Answer = tuple[int | FailureKind, float | None]
OK: Answer = (200, None)


@dataclass
class Crawl:
    """A crawl of one host with one slot, in simulated seconds. `site(now, url)` answers."""

    site: Callable[[float, int], Answer]
    urls: int
    delay_s: float = 1.0
    retry: Retry = field(default_factory=Retry)
    now: float = 1_000.0
    health: HostHealth = field(default_factory=HostHealth)
    requests: list[float] = field(default_factory=list)
    done: int = 0
    failed: int = 0
    given_up: bool = False

    def run(self, seconds: float = 1e9) -> "Crawl":
        draw = random.Random(7)
        politeness = Politeness(delay_s=self.delay_s)
        queue = deque((0.0, url, 1) for url in range(self.urls))
        until = self.now + seconds
        while queue and self.now < until:
            queue = deque(sorted(queue))
            due, url, attempt = queue.popleft()
            self.now = max(self.now, due, self.health.blocked_until_ms / 1000)
            self.requests.append(self.now)
            end, retry_after_s = self.site(self.now, url)
            now_ms, delay_s = int(self.now * 1000), host_delay(politeness, slowed_s=self.health.slowed_ms / 1000)
            effect = decide(end, attempt=1, retry=self.retry, rng01=0.5).host
            refuses = effect is not None and self.done > 0 and self.health.after(effect)
            decision = decide(
                end,
                attempt=attempt,
                retry=self.retry,
                rng01=draw.random(),
                retry_after_s=retry_after_s,
                host_refuses=refuses,
            )
            if decision.host is None:
                self.health = self.health.answered(now_ms)
            elif decision.host is HostEffect.UNREACHABLE:
                self.health = self.health.failed(
                    now_ms, retry=self.retry, base_s=UNREACHABLE_BASE_S, rng01=draw.random()
                )
            else:
                self.health = self.health.refused(
                    now_ms,
                    decision.host,
                    retry=self.retry,
                    delay_s=delay_s,
                    max_delay_s=politeness.max_delay_s,
                    rng01=draw.random(),
                    retry_after_s=retry_after_s,
                )
            if decision.host is not None and self.health.dead(now_ms, self.retry, gave_pages=self.done > 0):
                self.given_up = True
                break
            match decision.state:
                case UrlState.DONE:
                    self.done += 1
                case UrlState.FAILED:
                    self.failed += 1
                case _:
                    queue.append((self.now + decision.wait_s, url, attempt + decision.attempt_used))
            self.now += host_delay(politeness, slowed_s=self.health.slowed_ms / 1000)
        return self


def test_site_with_2_percent_single_503_keeps_four_fifths_of_pace() -> None:
    """It got 87 of 2,000 pages in 6 minutes."""
    busy = set(random.Random(3).sample(range(2_000), 40))

    def site(now: float, url: int) -> Answer:
        if url in busy:
            busy.discard(url)
            return 503, None
        return OK

    crawl = Crawl(site, 2_000).run()
    assert crawl.done == 2_000
    assert crawl.now - 1_000 <= 2_000 / 0.8


def test_one_urls_long_retry_after_stops_no_other() -> None:
    """It stopped its host for a day with 48 of 300 pages."""
    crawl = Crawl(lambda now, url: (503, 86_400.0) if url == 40 else OK, 300).run(seconds=1_000)
    assert crawl.done == 299


@pytest.mark.parametrize("gives_pages", [False, True])
def test_a_site_that_answers_only_503_gets_at_most_a_request_a_minute(gives_pages: bool) -> None:
    def site(now: float, url: int) -> Answer:
        return OK if gives_pages and now < 1_010 else (503, None)

    crawl = Crawl(site, 1_000).run(seconds=36_000)
    first = 1_010 if gives_pages else 1_000
    refused = [at for at in crawl.requests if at >= first]
    assert len(refused) <= 5 + 36_000 / 60
    assert all(later - earlier >= 50 for earlier, later in pairwise(refused[2:]))


def test_a_site_in_maintenance_for_an_hour_loses_no_page() -> None:
    crawl = Crawl(lambda now, url: (503, None) if 1_100 < now < 4_700 else OK, 500).run()
    assert (crawl.done, crawl.failed, crawl.given_up) == (500, 0, False)


def test_maintenance_with_a_retry_after_over_the_outage_loses_no_page() -> None:
    """After an hour that the host had asked for, one more 503 gave it up."""
    crawl = Crawl(lambda now, url: (503, 3_600.0) if 1_100 < now < 10_000 else OK, 500, retry=Retry(outage_s=600)).run()
    assert (crawl.done, crawl.failed, crawl.given_up) == (500, 0, False)


@pytest.mark.parametrize("allowed_s", [2.0, 5.0, 20.0])
def test_a_site_that_limits_its_pace_ends_up_at_what_it_allows(allowed_s: float) -> None:
    """A rate limit: a request sooner than `allowed_s` after the last accepted one is answered 429."""
    accepted = [0.0]

    def site(now: float, url: int) -> Answer:
        if now - accepted[0] < allowed_s:
            return 429, allowed_s
        accepted[0] = now
        return OK

    crawl = Crawl(site, 1_000).run()
    assert (crawl.done, crawl.failed) == (1_000, 0)
    assert 1_000 * allowed_s <= crawl.now - 1_000 <= 1_000 * allowed_s * 2
    assert len(crawl.requests) <= 1_000 * 1.1, "few requests are refused"


def test_every_tenth_request_answered_429_fails_no_page() -> None:
    asked = [0]

    def site(now: float, url: int) -> Answer:
        asked[0] += 1
        return (429, None) if asked[0] % 10 == 0 else OK

    crawl = Crawl(site, 2_000).run()
    assert (crawl.done, crawl.failed) == (2_000, 0)


@pytest.mark.parametrize(("away_s", "outage_s"), [(40.0, 600.0), (400.0, 600.0), (36_000.0, 86_400.0)])
def test_an_outage_of_a_site_that_gave_pages_fails_none(away_s: float, outage_s: float) -> None:
    """With the server away for 40 s, 941 of 2,000 URLs failed for good, and the exit code was 0."""

    def site(now: float, url: int) -> Answer:
        return (FailureKind.CONNECT, None) if 1_340 < now < 1_340 + away_s else OK

    crawl = Crawl(site, 2_000, retry=Retry(outage_s=outage_s)).run()
    assert (crawl.done, crawl.failed, crawl.given_up) == (2_000, 0, False)
    assert crawl.now - 1_000 <= 2_000 + away_s * 2 + outage_s / 10


def test_a_site_that_never_comes_back_is_given_up_when_its_outage_has_lasted() -> None:
    crawl = Crawl(lambda now, url: OK if now < 1_340 else (FailureKind.CONNECT, None), 2_000, retry=Retry(outage_s=600))
    crawl.run()
    assert crawl.given_up
    assert 1_940 <= crawl.now <= 1_940 + 120


def test_a_host_that_never_answered_is_given_up_soon() -> None:
    crawl = Crawl(lambda now, url: (FailureKind.DNS, None), 2_000).run()
    assert crawl.given_up
    assert len(crawl.requests) == Retry().host_attempts
