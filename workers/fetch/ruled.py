"""A fetcher for each set of egress rules: opened when it is asked for something, closed when nobody needs it.

Crawls that may reach different addresses never share a connection: one that is kept open was checked under the rules
of whoever opened it.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from shared.domain.fetch import Answer, FetchFailed, FetchRequest
from shared.ports.fetcher import Fetcher
from workers.fetch.egress import EgressRules

MOST_FETCHERS: Final = 16
"""Beyond so many the one used least recently is closed; its rules open another when they are met again."""


@dataclass(slots=True)
class _Open:
    fetcher: Fetcher
    under_way: int = 0


@dataclass(frozen=True, slots=True)
class _Under:
    """`Fetcher` under one set of rules, for as long as `fetchers` is open. Holds nothing itself. `key` is the rules in
    words: to hash some dozens of networks at every fetch takes longer than all else here."""

    fetchers: "Fetchers"
    rules: EgressRules
    key: str

    async def fetch(self, request: FetchRequest) -> Answer | FetchFailed:
        return await self.fetchers.fetch(self, request)

    async def close(self) -> None:
        """The fetchers close together."""


class Fetchers:
    """At most `MOST_FETCHERS` are open, and as many more as have a fetch under way: none is closed before those end."""

    def __init__(self, open_fetcher: Callable[[EgressRules], Fetcher]) -> None:
        self._open_fetcher = open_fetcher
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._closed = False

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def under(self, rules: EgressRules) -> _Under:
        """Fetches under these rules; nothing is opened before the first."""
        return _Under(self, rules, repr(rules))

    async def fetch(self, under: _Under, request: FetchRequest) -> Answer | FetchFailed:
        """See `Fetcher`. RuntimeError once these are closed."""
        if self._closed:
            raise RuntimeError("fetch on closed Fetchers")
        held = self._open.get(under.key)
        if held is None:
            held = self._open[under.key] = _Open(self._open_fetcher(under.rules))
        self._open.move_to_end(under.key)
        held.under_way += 1
        try:
            return await held.fetcher.fetch(request)
        finally:
            held.under_way -= 1
            if len(self._open) > MOST_FETCHERS:
                await self._close(self._idle()[: len(self._open) - MOST_FETCHERS])

    async def keep(self, used: Collection[Fetcher]) -> None:
        """Close those of other rules that have no fetch under way."""
        keys = {under.key for under in used if isinstance(under, _Under)}
        await self._close([key for key in self._idle() if key not in keys])

    async def close(self) -> None:
        """Close all; fetches under way are cancelled."""
        self._closed = True
        await self._close(list(self._open))

    def _idle(self) -> list[str]:
        return [key for key, held in self._open.items() if not held.under_way]

    async def _close(self, which: list[str]) -> None:
        for held in [self._open.pop(key) for key in which]:
            await held.fetcher.close()

    def __repr__(self) -> str:
        return f"<Fetchers {len(self._open)} open>"
