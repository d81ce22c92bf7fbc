"""A synthetic site of any size whose pages, links and faults are a pure function of a seed; no page is kept."""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from tests.support.web.http_server import Reply, Request, Respond

_MASK: Final = (1 << 64) - 1
_FILLER: Final = "The spider waits at the centre of the web and feels along each thread what has come to it. "
_LOOPS: Final = 2


def mixed(*numbers: int) -> int:
    """64 well-mixed bits of `numbers` (the finaliser of splitmix64, chained)."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state + number * 0x9E3779B97F4A7C15 + 0x1234567) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


class PageKind(StrEnum):
    """What a page number answers."""

    PAGE = "page"
    FLAKY = "flaky"
    MISSING = "missing"
    REDIRECT = "redirect"
    LOOP = "loop"
    PRIVATE = "private"


class SyntheticSite(msgspec.Struct, frozen=True, tag=True):
    """`pages` numbered pages over `hosts` virtual hosts; page 0, on host 0, is the start and always a plain page.

    Page i lives on host i mod `hosts`. It links to its children in a tree of arity `branching`, so that without faults
    every page is reachable, and to `out_degree - branching` pages drawn by the seed. Rates are parts of 1,000 pages:
    `missing` answer 404, `flaky` answer 500 the first `flaky_failures` times, `redirects` answer 301 to another page,
    `loops` answer 302 to a path that redirects back, `private` lie below a path that robots.txt forbids.
    `latency_s` is per host, used cyclically. `crawl_delay_s` is announced in robots.txt when it is set.
    """

    pages: int
    hosts: int = 1
    seed: int = 1
    branching: int = 5
    out_degree: int = 12
    body_bytes: int = 2_000
    latency_s: tuple[float, ...] = (0.0,)
    crawl_delay_s: float | None = None
    missing: int = 0
    flaky: int = 0
    flaky_failures: int = 1
    redirects: int = 0
    loops: int = 0
    private: int = 0

    def kind(self, page: int) -> PageKind:
        """What page number `page` answers."""
        if page == 0:
            return PageKind.PAGE
        draw = mixed(self.seed, page, 1) % 1000
        for kind, rate in (
            (PageKind.MISSING, self.missing),
            (PageKind.FLAKY, self.flaky),
            (PageKind.REDIRECT, self.redirects),
            (PageKind.LOOP, self.loops),
            (PageKind.PRIVATE, self.private),
        ):
            if draw < rate:
                return kind
            draw -= rate
        return PageKind.PAGE

    def path(self, page: int) -> str:
        """The path of page number `page`."""
        if page == 0:
            return "/"
        return f"/private/{page}" if self.kind(page) is PageKind.PRIVATE else f"/{page % 97}/{page}.html"

    def page_at(self, path: str) -> int | None:
        """The page number whose path is `path`, or None."""
        digits = path.rpartition("/")[2].removesuffix(".html")
        page = 0 if path == "/" else int(digits) if digits.isascii() and digits.isdigit() else -1
        return page if 0 <= page < self.pages and self.path(page) == path else None

    def links(self, page: int) -> list[int]:
        """The pages that page number `page` links to, repeats included."""
        first = page * self.branching + 1
        children = list(range(first, min(first + self.branching, self.pages)))
        drawn = [mixed(self.seed, page, 2, n) % self.pages for n in range(self.out_degree - self.branching)]
        return children + drawn

    def redirect_target(self, page: int) -> int:
        """Where a redirect page points to: a child where it has one, so that what lies below stays reachable."""
        child = page * self.branching + 1
        return child if child < self.pages else mixed(self.seed, page, 3) % self.pages

    def robots(self) -> str:
        """The robots.txt that every host serves."""
        delay = f"Crawl-delay: {self.crawl_delay_s}\n" if self.crawl_delay_s is not None else ""
        return f"User-agent: *\n{delay}Disallow: /private/\n"

    def body(self, page: int, origins: Sequence[str]) -> bytes:
        """The HTML of page number `page`; links on its own host are relative, others absolute."""
        here = page % self.hosts
        anchors = []
        for target in self.links(page):
            there = target % self.hosts
            prefix = "" if there == here else origins[there]
            anchors.append(f'<a href="{prefix}{self.path(target)}">page {target}</a>')
        text = "\n".join(anchors)
        filler = _FILLER * max(0, (self.body_bytes - len(text)) // len(_FILLER))
        return f"<!doctype html><title>Page {page}</title><body><p>{filler}</p>\n{text}\n".encode()

    def expected_pages(
        self, origins: Sequence[str], depth: int | None = None, *, redirect_depth: int = 0
    ) -> dict[str, int]:
        """The URLs that end as a stored page (status 200) in an obedient crawl from page 0, each with its least depth.

        A link is one level deeper; a redirect's target is `redirect_depth` deeper than the redirect. `depth` is the
        deepest level that is fetched. Computed by a search of its own over `links`, not by asking the server.
        """
        least: dict[int, int] = {0: 0}
        waiting = deque([0])
        while waiting:
            page = waiting.popleft()
            at = least[page]
            match self.kind(page):
                case PageKind.PAGE | PageKind.FLAKY:
                    found, below = self.links(page), at + 1
                case PageKind.REDIRECT:
                    found, below = [self.redirect_target(page)], at + redirect_depth
                case PageKind.MISSING | PageKind.LOOP | PageKind.PRIVATE:
                    continue
            if depth is not None and below > depth:
                continue
            for target in found:
                if below < least.get(target, 1 << 60):
                    least[target] = below
                    # A redirect that costs no level goes first: the queue stays in order of depth.
                    (waiting.appendleft if below == at else waiting.append)(target)
        stored = (PageKind.PAGE, PageKind.FLAKY)
        return {origins[p % self.hosts] + self.path(p): d for p, d in least.items() if self.kind(p) in stored}

    def open(self, origins: Sequence[str]) -> Respond:
        """The function that answers for this site, its hosts being at `origins`."""
        failures: dict[int, int] = {}

        def respond(request: Request) -> Reply:
            delay_s = self.latency_s[request.host % len(self.latency_s)]
            path = request.target.partition("?")[0]
            if path == "/robots.txt":
                return Reply(200, (("Content-Type", "text/plain"),), self.robots().encode(), delay_s)
            if path.startswith("/loop/"):
                side, _, number = path.removeprefix("/loop/").partition("/")
                other = (int(side) + 1) % _LOOPS if side.isdigit() else 0
                return Reply(302, (("Location", f"/loop/{other}/{number}"),), b"", delay_s)
            page = self.page_at(path)
            if page is None or page % self.hosts != request.host:
                return Reply(404, (("Content-Type", "text/plain"),), b"no such page\n", delay_s)
            kind = self.kind(page)
            if kind is PageKind.FLAKY and failures.get(page, 0) < self.flaky_failures:
                failures[page] = failures.get(page, 0) + 1
                return Reply(500, (("Content-Type", "text/plain"),), b"try again\n", delay_s)
            match kind:
                case PageKind.MISSING:
                    return Reply(404, (("Content-Type", "text/plain"),), b"no such page\n", delay_s)
                case PageKind.REDIRECT:
                    target = self.redirect_target(page)
                    return Reply(301, (("Location", origins[target % self.hosts] + self.path(target)),), b"", delay_s)
                case PageKind.LOOP:
                    return Reply(302, (("Location", f"/loop/0/{page}"),), b"", delay_s)
                case PageKind.PAGE | PageKind.FLAKY | PageKind.PRIVATE:
                    headers = (("Content-Type", "text/html; charset=utf-8"),)
                    return Reply(200, headers, self.body(page, origins), delay_s)

        return respond
