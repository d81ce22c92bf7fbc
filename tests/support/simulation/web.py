"""A small web that records every request from the server's side, and what an undisturbed crawl of it must end with."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from shared.domain.frontier.states import UrlState
from tests.support.simulation.host_rules import HostRules
from tests.support.simulation.world import World

LATENCY_S: Final = 0.4
_EPSILON: Final = 1e-6


class Kind(Enum):
    PAGE = "page"
    REDIRECT = "redirect"
    GONE = "gone"
    FLAKY = "answers 500 once, then the page"
    BUSY = "answers 503 once, then the page"
    DENIED = "forbidden by robots.txt"


@dataclass(frozen=True)
class Node:
    """A URL: `links` are indices of nodes; a redirect leads to the first."""

    host: int
    kind: Kind
    links: tuple[int, ...] = ()


@dataclass(frozen=True)
class Answer:
    status: int
    links: tuple[str, ...]
    redirect: str | None
    digest: bytes = b""


@dataclass(frozen=True)
class Request:
    """As the server saw it. `rest_s`: what its crawl owes the host."""

    url: str
    crawl: int
    who: str
    rest_s: float
    start: float
    until: float


@dataclass(eq=False)
class SimWeb:
    """`delays`: robots.txt's crawl-delay by host index. Breaches of politeness go to `world.violations`.

    `versions`: a page is another one after so many requests of it by a crawl; 0: its answers have no digest.
    `excluded`: whether an applied exclusion covers a URL, so that a request of it is a breach.
    """

    world: World
    nodes: Sequence[Node]
    delays: dict[int, float] = field(default_factory=dict)
    rules: HostRules = field(default_factory=HostRules)
    seen: dict[str, list[Request]] = field(default_factory=dict)
    served: dict[tuple[int, str], int] = field(default_factory=dict)
    versions: int = 0
    excluded: Callable[[str], bool] = lambda url: False

    def __post_init__(self) -> None:
        self._at = {self.url(i): node for i, node in enumerate(self.nodes)}

    def url(self, i: int) -> str:
        return f"http://h{self.nodes[i].host}.test/{i}"

    def denied(self, url: str) -> bool:
        return self._at[url].kind is Kind.DENIED

    def crawl_delay_s(self, host: str) -> float:
        return self.delays.get(int(host[1 : host.index(".")]), 0.0)

    def begin(
        self, url: str, host: str, crawl: int, who: str, delay_s: float, asked: float
    ) -> "asyncio.Future[Answer]":
        """A request leaves now; its answer comes `LATENCY_S` later.

        `delay_s`: what the crawl's spec asks. `asked`: when the visit sent the question that was last answered.
        """
        now = self.world.now
        rest_s = max(delay_s, self.crawl_delay_s(host), self.rules.delay_s(host, asked))
        if (why := self.rules.breach(host, now, asked)) is not None:
            self.world.blame(f"impolite: {who} asks {url}, though {why}")
        if self.excluded(url):
            self.world.blame(f"{who} asks {url}, which an applied exclusion covers")
        request = Request(url, crawl, who, rest_s, now, now + LATENCY_S)
        for other in self.seen.setdefault(host, []):
            rest = max(rest_s, other.rest_s)
            if rest > 0 and now < other.until + rest - _EPSILON:
                self.world.blame(
                    f"impolite: {who} asks {url} {now - other.until:.3f} s after {other.who}'s {other.url} ended"
                    f" ({rest} s are due)"
                )
        self.seen[host].append(request)
        self.served[crawl, url] = self.served.get((crawl, url), 0) + 1
        answer: asyncio.Future[Answer] = self.world.loop.create_future()
        said = self._answer(url, self.served[crawl, url])
        self.world.loop.call_at(request.until, _arrive, answer, said)
        return answer

    def _answer(self, url: str, times: int) -> Answer:
        node = self._at[url]
        links = tuple(self.url(i) for i in node.links)
        match node.kind:
            case Kind.REDIRECT:
                return Answer(302, (), links[0] if links else None)
            case Kind.GONE:
                return Answer(404, (), None)
            case Kind.FLAKY if times == 1:
                return Answer(500, (), None)
            case Kind.BUSY if times == 1:
                return Answer(503, (), None)
            case _:
                return Answer(200, links, None, digest_of(times // self.versions) if self.versions else b"")

    def expected(
        self, seeds: Sequence[int], max_depth: int | None, excluded: Collection[str] = ()
    ) -> dict[str, UrlState]:
        """What every URL within reach ends as. A redirect's target is as deep as the redirect.

        `excluded`: those that no worker fetches, whatever they are.
        """
        depth: dict[int, int] = dict.fromkeys(seeds, 0)
        waiting = deque(seeds)
        while waiting:
            i = waiting.popleft()
            node = self.nodes[i]
            if node.kind in (Kind.GONE, Kind.DENIED) or self.url(i) in excluded:
                continue
            step = 0 if node.kind is Kind.REDIRECT else 1
            for link in node.links[:1] if node.kind is Kind.REDIRECT else node.links:
                found = depth[i] + step
                if (max_depth is None or found <= max_depth) and found < depth.get(link, 1 << 30):
                    depth[link] = found
                    waiting.append(link)
        ends = {Kind.GONE: UrlState.FAILED, Kind.DENIED: UrlState.EXCLUDED}
        ended = {self.url(i): ends.get(self.nodes[i].kind, UrlState.DONE) for i in depth}
        return ended | {url: UrlState.EXCLUDED for url in excluded if url in ended}

    def pages(self, ends: dict[str, UrlState]) -> set[str]:
        """Of these, the URLs that are pages."""
        return {url for url, end in ends.items() if end is UrlState.DONE and self._at[url].kind is not Kind.REDIRECT}


def digest_of(version: int) -> bytes:
    """Return the digest of a version of a page, as long as a sha1. Later versions are greater."""
    return version.to_bytes(20, "big")


def _arrive(answer: "asyncio.Future[Answer]", said: Answer) -> None:
    if not answer.done():
        answer.set_result(said)
