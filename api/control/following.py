"""Following the stream of events from any place in it: everything that is kept from there on, once and in order, and a
word where something may be missing.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import structlog

from shared.domain.errors import Transient
from shared.ports.broker import Delivered
from shared.ports.events import EventReader, Events, EventsState

log = structlog.get_logger("orb.control")

_BATCH: Final = 100


class Lost(StrEnum):
    """Why events may be missing: the oldest went before they were read, or the stream is another than it was."""

    EXPIRED = "expired"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Gap:
    """Of what lies between these two sequences, some may be missing."""

    reason: Lost
    after: int
    resumes_at: int


class Following:
    """One reader's way through the stream. For one caller at a time; close it."""

    def __init__(self, events: Events, subjects: Sequence[str], after: int | None) -> None:
        """From behind the sequence `after`; 0: from the oldest that is kept; None: from now on."""
        self._events = events
        self._subjects = tuple(subjects)
        self._after = after
        self._position = 0
        self._kept_to: int | None = None
        self._stream: int | None = None
        self._reader: EventReader | None = None
        self._doubtful = False

    def __repr__(self) -> str:
        return f"<Following {' '.join(self._subjects)} at={self._position}>"

    @property
    def position(self) -> int:
        """Everything up to here was given out: who goes on behind it misses nothing."""
        return self._position

    @property
    def is_past_kept(self) -> bool:
        """Whether everything was given out that was kept when it was opened; False for one that began with the
        present."""
        return self._kept_to is not None and self._position >= self._kept_to

    async def open(self) -> Gap | None:
        """Begin; what may be missing between `after` and the first event. Transient while the broker is away."""
        state = await self._events.state()
        self._stream = state.created_ns
        self._position, gap = place(state, self._after)
        if self._after is not None:
            newest = [await self._events.last(subject) for subject in self._subjects]
            self._kept_to = max((each.sequence for each in newest if each is not None), default=0)
        self._reader = await self._events.read(self._subjects, self._position)
        return gap

    async def next(self, wait_s: float) -> Sequence[Delivered | Gap]:
        """What came next; empty when nothing came in `wait_s`, be it that the broker is away."""
        begun = asyncio.get_running_loop().time()
        found: list[Delivered | Gap] = []
        try:
            if self._doubtful and (gap := await self._checked()) is not None:
                found.append(gap)
            assert self._reader is not None, "open it first"
            events = await self._reader.read(_BATCH, 0.0 if found else wait_s)
        except Transient as error:
            # Away, or no longer the stream that was read: what was left out is looked for once it answers again.
            log.debug("events.away", error=str(error))
            self._doubtful = True
            if found:
                return found
            left_s = wait_s - (asyncio.get_running_loop().time() - begun)
            await asyncio.sleep(max(0.0, min(error.retry_in, left_s)))
            return []
        if events:
            self._position = events[-1].sequence
        return [*found, *events]

    def doubt(self) -> None:
        """Look, before going on, whether events went before they were read: for a reader who took his time."""
        self._doubtful = True

    def caught_up(self, state: EventsState) -> None:
        """Nothing came since the stream stood so: whoever goes on may do so behind its end."""
        if not self._doubtful and state.created_ns == self._stream:
            self._position = max(self._position, state.last)

    async def close(self) -> None:
        """Free what the broker keeps for it."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    async def _checked(self) -> Gap | None:
        state = await self._events.state()
        self._doubtful = False
        if self._reader is not None and state.created_ns == self._stream and state.last >= self._position:
            return _expired(state, self._position)
        with suppress(Transient):
            await self.close()
        self._doubtful = True
        position, _ = place(state, self._position)
        self._reader = await self._events.read(self._subjects, position)
        gap = Gap(Lost.REPLACED, self._position, position + 1)
        self._stream, self._position, self._doubtful = state.created_ns, position, False
        return gap


def place(state: EventsState, after: int | None) -> tuple[int, Gap | None]:
    """Behind which sequence to read, and what may be missing before it."""
    if after is None:
        return state.last, None
    start = state.first - 1
    if after == 0:
        return start, None
    if after > state.last:
        return start, Gap(Lost.REPLACED, after, state.first)
    return max(after, start), _expired(state, after)


def _expired(state: EventsState, position: int) -> Gap | None:
    return Gap(Lost.EXPIRED, position, state.first) if position < state.first - 1 else None
