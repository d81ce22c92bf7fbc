"""A pool with one fetcher for each set of egress rules: opened at its first fetch, closed when no crawl uses it.

Every request of a worker goes through it: pages, robots.txt and its redirects. It also refuses excluded URLs, at the
last moment before the request.

Crawls with different egress rules never share a connection.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from shared.domain.crawl.exclusions import NO_EXCLUSIONS, Exclusions
from shared.domain.web.fetch import Answer, FailureKind, FetchFailed, FetchRequest, Timings
from shared.domain.web.url import host_of
from shared.ports.fetcher import Fetcher
from workers.fetch.egress import EgressRules

MAX_FETCHERS: Final = 16
"""Above this number the least recently used fetcher is closed. The next fetch under its rules opens a new one."""


@dataclass(slots=True)
class _PooledFetcher:
    fetcher: Fetcher
    under_way: int = 0


@dataclass(frozen=True, slots=True)
class _Under:
    """A handle through which a crawl fetches under its egress rules. It has no connections itself.

    The handle can be used like any `Fetcher`. It passes each fetch to the pool `fetchers`. The pool opens a real
    fetcher for the rules, or finds the open one by `key`, the text of the rules.
    """

    fetchers: "FetcherPool"
    rules: EgressRules
    key: str

    async def look_up(self, url: str, *, limit_s: float, proxy: str | None) -> None:
        async with self.fetchers.using(self) as fetcher:
            await fetcher.look_up(url, limit_s=limit_s, proxy=proxy)

    async def fetch(self, request: FetchRequest) -> Answer | FetchFailed:
        return await self.fetchers.fetch(self, request)

    async def close(self) -> None:
        """Do nothing: the pool closes all its fetchers together."""


class FetcherPool:
    """The open fetchers, one for each set of egress rules. A crawl uses them through a handle, which `under` returns.

    Above `MAX_FETCHERS` open fetchers, the least recently used ones are closed. Fetchers with a fetch under way are
    counted, but never closed for this limit.
    """

    def __init__(
        self,
        open_fetcher: Callable[[EgressRules], Fetcher],
        exclusions: Callable[[], Exclusions] = lambda: NO_EXCLUSIONS,
    ) -> None:
        """Create a pool without open fetchers.

        - `open_fetcher`: opens a fetcher that applies the given egress rules.
        - `exclusions`: returns the exclusions in force now.
        """
        self._open_fetcher = open_fetcher
        self._exclusions = exclusions
        self._open: OrderedDict[str, _PooledFetcher] = OrderedDict()
        self._closed = False

    def __len__(self) -> int:
        """Return the number of open fetchers."""
        return len(self._open)

    def under(self, rules: EgressRules) -> _Under:
        """Return a handle that connects only where `rules` allow. Its first fetch opens a fetcher, if none is open."""
        within = replace(rules, excluded=lambda address: self._exclusions().of_address(address))
        return _Under(self, within, repr(rules))

    async def fetch(self, under: _Under, request: FetchRequest) -> Answer | FetchFailed:
        """Send the request under the egress rules of `under`, and return the result.

        If an exclusion covers the URL, send nothing and return FetchFailed. Raise RuntimeError if the pool is closed.
        """
        if exclusions := self._exclusions():
            target = exclusions.first(request.url, host_of(request.url))
            if target is not None:
                detail = f"the exclusion {target} covers it"
                return FetchFailed(request.url, FailureKind.EXCLUDED, detail, Timings(), sent=False)
        async with self.using(under) as fetcher:
            return await fetcher.fetch(request)

    @asynccontextmanager
    async def using(self, under: _Under) -> AsyncIterator[Fetcher]:
        """Yield the open fetcher that has the egress rules of `under`. If none is open, open one.

        While the caller is inside the `async with` block, only the method `close` can close the yielded fetcher.
        Raise RuntimeError if the pool is closed.
        """
        if self._closed:
            raise RuntimeError("fetch on a closed FetcherPool")
        pooled = self._open.get(under.key)
        if pooled is None:
            pooled = self._open[under.key] = _PooledFetcher(self._open_fetcher(under.rules))
        self._open.move_to_end(under.key)
        pooled.under_way += 1
        try:
            yield pooled.fetcher
        finally:
            pooled.under_way -= 1
            if len(self._open) > MAX_FETCHERS:
                await self._close(self._idle()[: len(self._open) - MAX_FETCHERS])

    async def keep(self, used: Collection[Fetcher]) -> None:
        """Close the open fetchers whose egress rules no crawl uses any more, except those with a fetch under way.

        `used`: for each crawl in use, the handle that the method `under` returned for its egress rules.
        """
        keys = {under.key for under in used if isinstance(under, _Under)}
        await self._close([key for key in self._idle() if key not in keys])

    async def close(self) -> None:
        """Close all fetchers, which cancels the fetches under way."""
        self._closed = True
        await self._close(list(self._open))

    def _idle(self) -> list[str]:
        return [key for key, pooled in self._open.items() if not pooled.under_way]

    async def _close(self, keys: list[str]) -> None:
        for pooled in [self._open.pop(key) for key in keys]:
            await pooled.fetcher.close()

    def __repr__(self) -> str:
        return f"<FetcherPool {len(self._open)} open>"
