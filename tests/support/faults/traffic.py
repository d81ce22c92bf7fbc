"""What goes on while a cluster is struck: crawls one after another over the same hosts, seeds, verbs and reads, and
what their clients were told."""

import itertools
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg

from tests.support.api.cluster_clients import Answer, AnyMaster, Background
from tests.support.faults.faulted_cluster import MASTERS, FaultedCluster
from tests.support.web.synthetic_site import PageKind, SyntheticSite
from tests.support.web.web_server import Site, Web

DELAY_S: Final = 0.1
CLIENTS: Final = ("writer", "reader")
_UNDER_WAY: Final = "SELECT count(*) FROM crawls WHERE name LIKE 'c%' AND state <> 'finished'"
UNDER_WAY: Final = 2
"""Crawls that are not finished at any time."""
SEEDS: Final = 5
"""In one upload."""
PAUSE_S: Final = 0.3
STEP_S: Final = 0.2
WIDE_AFTER: Final = 16
"""So many steps are done before a crawl gets all of its hosts, so that it has pages to read again."""
READ_S: Final = 0.1


@dataclass
class DeclaredCrawl:
    """A crawl, the seeds that a client was told are kept, and all that were offered: an answer may be lost.

    `narrow`: its scope may exclude some hosts now.
    """

    id: int
    name: str
    site: int
    seeds: set[str] = field(default_factory=set)
    offered: set[str] = field(default_factory=set)
    deleted: bool = False
    narrow: bool = False


class Traffic:
    """Keeps it going on a thread, until the block of `traffic` ends."""

    def __init__(self, rig: FaultedCluster, web: Web, sites: int) -> None:
        self.crawls: list[DeclaredCrawl] = []
        self.doomed: list[DeclaredCrawl] = []
        """Crawls that are deleted while they run; the last one may have been spared."""
        self._rig = rig
        self._web = web
        self._numbers = itertools.count(1)
        self._draw = random.Random(len(self._web.sites))
        self.rescoped = 0
        """How often a master has said that it changed a scope."""
        self._plain = [plain_pages(site) for site in web.sites[:sites]]
        self._over = threading.Event()
        self._starts = dict.fromkeys(CLIENTS, 0)
        self._clients = {task: AnyMaster(rig.cluster, list(MASTERS)) for task in CLIENTS}

    def statuses(self) -> Counter[int]:
        """How often clients got each answer, those among them that mean 'not now' (502, 503, 504) left out."""
        return Counter(answer.status for one in self._clients.values() for answer in one.history.answers)

    def step(self) -> None:
        """Declare a crawl where too few are under way, and do one thing to the newest."""
        if not self.crawls or self._unfinished() < UNDER_WAY:
            self._declare(self.crawls, "c")
            return
        crawl = self.crawls[-1]
        number = next(self._numbers)
        narrow = [each for each in self.crawls if each.narrow]
        match number % 16:
            case 3 if not self._spared:
                self._declare(self.doomed, "d")
            case 7 | 15:
                self._paused(crawl)
            case 10:
                self._delete()
            case 9 if narrow and number > WIDE_AFTER:
                self._widened(narrow[0])
            case 1 | 5 | 13 if narrow:
                self._rescoped(narrow[-1], self._draw.sample(range(1, self._hosts(narrow[-1])), 2))
            case _:
                self._seeded(crawl, number)

    def step_unless_quiet(self) -> None:
        """A step, once a fault lets clients write."""
        with self._rig.quiet:
            self.step()

    def read(self) -> None:
        """One list of crawls."""
        self._ask("reader", "GET", "/v1/crawls")

    def over(self) -> None:
        """Wait for no master any longer."""
        self._over.set()

    def end(self) -> None:
        """Let every crawl go on that a lost answer left paused, and delete the one that was spared."""
        self._over.clear()
        for crawl in self.crawls:
            while not self._widened(crawl):
                time.sleep(PAUSE_S)
            self._resumed(crawl)
        while self._spared:
            self._delete()

    def close(self) -> None:
        for one in self._clients.values():
            one.close()

    def _unfinished(self) -> int:
        try:
            [(count,)] = self._rig.cluster.query(
                "SELECT count(*) FROM crawls WHERE state NOT IN ('finished', 'deleted')"
            )
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            return UNDER_WAY  # not known yet; there is time
        return int(count)

    @property
    def _spared(self) -> bool:
        return bool(self.doomed) and not self.doomed[-1].deleted

    def _declare(self, among: list[DeclaredCrawl], letter: str) -> None:
        """Under one Idempotency-Key until a master has carried it out, which happens once however often it is asked."""
        number = len(among)
        site = number % len(self._plain)
        name = f"{letter}{number + 1}"
        origins = self._web.origins_of(site)
        # Every other crawl leaves out half of its hosts at first.
        narrow = among is self.crawls and number % 2 == 0
        exclude = origins[1::2] if narrow else ()
        body = {"name": name, "spec": spec(origins[0], name, exclude)}
        answer = self._ask("writer", "POST", "/v1/crawls", body, **{"Idempotency-Key": name})
        if answer is not None:
            assert answer.status == 201, answer
            among.append(DeclaredCrawl(answer.body["id"], name, site, narrow=narrow))

    def _hosts(self, crawl: DeclaredCrawl) -> int:
        return len(self._web.origins_of(crawl.site))

    def _rescoped(self, crawl: DeclaredCrawl, out: Sequence[int]) -> bool:
        """Exclude only these of the crawl's hosts. Return True once a master has said so."""
        origins = self._web.origins_of(crawl.site)
        patch = {"spec": {"scope": {"exclude": excluding(origins[host] for host in out)}}}
        answer = self._ask("writer", "PATCH", f"/v1/crawls/{crawl.name}", patch)
        assert answer is None or answer.status == 200, answer
        self.rescoped += answer is not None
        return answer is not None

    def _widened(self, crawl: DeclaredCrawl) -> bool:
        """Let the crawl have all of its hosts. Return True if it has."""
        if crawl.narrow and self._rescoped(crawl, ()):
            crawl.narrow = False
        return not crawl.narrow

    def _delete(self) -> None:
        """The doomed crawl that was spared so far; 404 where an answer was lost before."""
        if self._spared:
            answer = self._ask("writer", "DELETE", f"/v1/crawls/{self.doomed[-1].name}")
            if answer is not None:
                assert answer.status in (204, 404), answer
                self.doomed[-1].deleted = True

    def _seeded(self, crawl: DeclaredCrawl, number: int) -> None:
        """A few seeds that no page links to; they count only where the answer says that they are kept."""
        origins, plain = self._web.origins_of(crawl.site), self._plain[crawl.site]
        pages = [plain[at % len(plain)] for at in range(number * SEEDS, (number + 1) * SEEDS)]
        site = self._web.sites[crawl.site]
        assert isinstance(site, SyntheticSite)
        urls = [f"{origins[page % len(origins)]}{site.path(page)}?upload={number}" for page in pages]
        crawl.offered |= set(urls)
        answer = self._ask(
            "writer",
            "POST",
            f"/v1/crawls/{crawl.name}/seeds",
            {"seeds": urls},
            **{"Idempotency-Key": f"{crawl.name}-{number}"},
        )
        if answer is not None and answer.status == 200 and answer.body["accepted"] == len(urls):
            crawl.seeds |= set(urls)

    def _paused(self, crawl: DeclaredCrawl) -> None:
        if self._ask("writer", "POST", f"/v1/crawls/{crawl.name}/pause") is not None:
            time.sleep(PAUSE_S)
        self._resumed(crawl)

    def _resumed(self, crawl: DeclaredCrawl) -> None:
        """Until a master has said so, or that there is nothing to resume (409)."""
        while self._ask("writer", "POST", f"/v1/crawls/{crawl.name}/resume") is None:
            if self._over.wait(PAUSE_S):
                return

    def _ask(self, who: str, method: str, path: str, body: object = None, **headers: str) -> Answer | None:
        """Ask the masters where they are now: one that was started again listens elsewhere."""
        one = self._clients[who]
        if (started := self._rig.starts) != self._starts[who]:
            one.refresh()
            self._starts[who] = started
        answer = one.ask(method, path, body, **headers)
        if answer is None:
            self._starts[who] = -1  # a starting master has not published its address yet
        return answer


def plain_pages(site: Site) -> list[int]:
    """The pages that always answer 200, whatever query is added to their path."""
    assert isinstance(site, SyntheticSite)
    return [page for page in range(site.pages) if site.kind(page) is PageKind.PAGE]


def agent(name: str) -> str:
    """The User-Agent of a crawl, by which the web servers' logs tell one crawl's requests from another's."""
    return f"orb-faults/1.0 ({name})"


def excluding(origins: Iterable[str]) -> list[str]:
    """Return patterns of all URLs of these origins."""
    return [f"^{re.escape(origin)}/" for origin in origins]


def spec(seed: str, name: str, exclude: Sequence[str] = ()) -> dict[str, Any]:
    """Any host but those of the origins in `exclude`, politely and patiently."""
    return {
        "seeds": [seed],
        "fetch": {"user_agent": agent(name)},
        "scope": {"mode": "any", "exclude": excluding(exclude)},
        "politeness": {"delay_s": DELAY_S},
        "retry": {"base_s": 0.2, "attempts": 8},
        "egress": {"allow": ["127.0.0.0/8"]},
    }


@contextmanager
def traffic(rig: FaultedCluster, web: Web, sites: int) -> Iterator[Traffic]:
    """Crawls of the first `sites` sites, seeds, verbs and reads for the block; at its end nothing is left paused."""
    made = Traffic(rig, web, sites)
    try:
        with Background(made.step_unless_quiet, STEP_S), Background(made.read, READ_S):
            try:
                yield made
            finally:
                made.over()
        made.end()
    finally:
        made.close()
