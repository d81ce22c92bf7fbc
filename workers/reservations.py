"""Room on the archive's disk for what visits under way may still write.

A visit reserves the largest answer that its crawl takes before it asks for a URL, and gives the room back when the page
is placed in the archive. So a worker never starts a fetch that may not fit, however fast the disk fills.

Other workers may write to the same disk. Each reserves at most half of what is free, and looks again several times a
second while it fetches.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from shared.domain.errors import Transient
from shared.domain.fetch import FetchLimits
from shared.domain.watermarks import Level, Watermarks
from shared.ports.rationing import Gauge
from workers.archive import WarcArchive

RECORD_BYTES: Final = 256 << 10
"""What a page's records take beside its body: heads, metadata, and the frames of a body that does not shrink."""

_LOOK_S: Final = 0.25
_PATIENCE_S: Final = 2.0
"""How long a visit waits for room while nothing of this process gives any back. By then the watermarks hold it."""


class Reservations:
    """The room of one worker process. Without a `gauge` every fetch fits: the disk is looked after elsewhere."""

    def __init__(self, gauge: Gauge | None, marks: Callable[[], Watermarks], archive: WarcArchive) -> None:
        self._gauge = gauge
        self._marks = marks
        self._archive = archive
        self._level: Level | None = None
        self._durable = 0
        self._reserved = 0
        self._largest = FetchLimits().body_bytes + RECORD_BYTES
        self._freed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Reservations {self._reserved} of {self._level!r}>"

    async def level(self) -> Level | None:
        """How full the disk is (`shared.ports.rationing.Gauge`). What one fetch may write counts as used."""
        if self._gauge is None:
            return None
        durable = self._archive.tally.bytes - self._archive.buffered()
        level = await self._gauge()
        if level is None:
            return None
        self._level, self._durable = level, durable
        return level.claiming(self._need(self._largest))

    async def run(self) -> None:
        """Look at the disk several times a second while a fetch is under way; until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._reserved:
                try:
                    await self.level()
                except Transient:
                    continue  # the watermarks log it

    @asynccontextmanager
    async def reserved(self, body_bytes: int, ending: asyncio.Event) -> AsyncIterator[bool]:
        """Hold room for an answer of so many bytes; True if there is any. Waits for other fetches to give theirs back,
        unless the visit is to end."""
        self._largest = max(self._largest, body_bytes + RECORD_BYTES)
        need = self._need(body_bytes + RECORD_BYTES)
        admitted = await self._admitted(need, ending)
        if admitted:
            self._reserved += need
        try:
            yield admitted
        finally:
            if admitted:
                self._reserved -= need
                self._freed.set()

    def fits(self, need: int) -> bool:
        """Whether a fetch that may write so much may start now."""
        if self._level is None:
            return True
        unseen = self._archive.tally.bytes - self._durable
        room = self._level.free - self._marks().stops_at(self._level.most) - unseen
        return need < room if self._reserved == 0 else self._reserved + need <= room / 2

    async def _admitted(self, need: int, ending: asyncio.Event) -> bool:
        while not self.fits(need):
            alone = self._reserved == 0
            self._freed.clear()
            waits = [asyncio.ensure_future(event.wait()) for event in (self._freed, ending)]
            try:
                done, _ = await asyncio.wait(waits, timeout=_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if ending.is_set() or (alone and not done):
                return False
        return True

    def _need(self, size: int) -> int:
        """At most a quarter of the disk, so that a small one is used at all."""
        return size if self._level is None else min(size, self._level.most // 4)
