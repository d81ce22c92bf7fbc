"""Read the stream of events from any position: every stored event after it, once and in order.

Gaps are reported.
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


class LossReason(StrEnum):
    """Why events may be missing: the oldest were removed before they were read, or the stream was replaced."""

    EXPIRED = "expired"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class EventGap:
    """A gap in the stream: events between the sequences `after` and `resumes_at`, both exclusive, may be missing."""

    reason: LossReason
    after: int
    resumes_at: int


class EventCursor:
    """One client's position in the stream of events. Call `open` first, then `next` repeatedly, and `close` at the end.

    Only one task at a time may use it.
    """

    def __init__(self, events: Events, subjects: Sequence[str], after: int | None) -> None:
        """Prepare a cursor on the events whose subjects in the broker match `subjects`.

        `after`: read the events after this sequence; 0: from the oldest stored event; None: only events stored from now
        on.
        """
        self._events = events
        self._subjects = tuple(subjects)
        self._after = after
        self._position = 0
        self._stored_to: int | None = None
        self._stream: int | None = None
        self._reader: EventReader | None = None
        self._doubtful = False

    def __repr__(self) -> str:
        return f"<EventCursor {' '.join(self._subjects)} at={self._position}>"

    @property
    def position(self) -> int:
        """The sequence up to which all events were returned. A new cursor that starts after it misses no event."""
        return self._position

    @property
    def is_past_stored(self) -> bool:
        """True once a cursor that began with stored events has returned them all. Only new events follow.

        Stored events are those that were in the stream before `open`.

        - With a number as `after`: the cursor begins with the stored events after this sequence. If there are none, the
          value is True as soon as `open` has returned.
        - With `after=None`: the value is always False, because the cursor does not begin with stored events.
        """
        return self._stored_to is not None and self._position >= self._stored_to

    async def open(self) -> EventGap | None:
        """Start to read.

        Return the gap between the requested position and the first stored event, or None if there is none. Raise
        Transient while the broker is unavailable.
        """
        state = await self._events.state()
        self._stream = state.created_ns
        self._position, gap = resume_position(state, self._after)
        if self._after is not None:
            newest = [await self._events.last(subject) for subject in self._subjects]
            self._stored_to = max((each.sequence for each in newest if each is not None), default=0)
        self._reader = await self._events.read(self._subjects, self._position)
        return gap

    async def next(self, wait_s: float) -> Sequence[Delivered | EventGap]:
        """Return the next events and gaps, after waiting up to `wait_s` seconds.

        The result is empty if none came, or if the broker is unavailable.
        """
        begun = asyncio.get_running_loop().time()
        gaps: list[Delivered | EventGap] = []
        try:
            if self._doubtful and (gap := await self._checked()) is not None:
                gaps.append(gap)
            assert self._reader is not None, "open it first"
            events = await self._reader.read(_BATCH, 0.0 if gaps else wait_s)
        except Transient as error:
            # The broker is unavailable or the stream was replaced. Check for a gap once the broker answers again.
            log.debug("event_reading.delayed", error=str(error))
            self._doubtful = True
            if gaps:
                return gaps
            left_s = wait_s - (asyncio.get_running_loop().time() - begun)
            await asyncio.sleep(max(0.0, min(error.retry_in, left_s)))
            return []
        if events:
            self._position = events[-1].sequence
        return [*gaps, *events]

    def doubt(self) -> None:
        """Make the next read check for a gap. Call it after a pause, because events may have been removed meanwhile."""
        self._doubtful = True

    def skip_others(self, state: EventsState) -> None:
        """Move the position past events of other subjects, which `next` does not return.

        Call this only after `next` returned nothing. `state`: the state of the stream, read before that call of `next`.

        Example: the position is 5, and the last sequence in `state` is 20. `next` then returned nothing, so the events
        6 to 20 are all of other subjects. The position becomes 20.

        If the stream may have been replaced, the position stays the same.
        """
        # If `state` were read after `next`, events of this cursor's subjects that came in between would be skipped.
        if not self._doubtful and state.created_ns == self._stream:
            self._position = max(self._position, state.last)

    async def close(self) -> None:
        """Close the broker's consumer of this cursor. Do nothing if it is not open."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    async def _checked(self) -> EventGap | None:
        state = await self._events.state()
        self._doubtful = False
        if self._reader is not None and state.created_ns == self._stream and state.last >= self._position:
            return _expired(state, self._position)
        with suppress(Transient):
            await self.close()
        self._doubtful = True
        position, _ = resume_position(state, self._position)
        self._reader = await self._events.read(self._subjects, position)
        gap = EventGap(LossReason.REPLACED, self._position, position + 1)
        self._stream, self._position, self._doubtful = state.created_ns, position, False
        return gap


def resume_position(state: EventsState, after: int | None) -> tuple[int, EventGap | None]:
    """Return the sequence after which to read, and the gap of removed events before it (None: no gap).

    `after`: the requested sequence; 0 for the oldest stored event, None for the end of the stream.
    """
    if after is None:
        return state.last, None
    start = state.first - 1
    if after == 0:
        return start, None
    if after > state.last:
        return start, EventGap(LossReason.REPLACED, after, state.first)
    return max(after, start), _expired(state, after)


def _expired(state: EventsState, position: int) -> EventGap | None:
    return EventGap(LossReason.EXPIRED, position, state.first) if position < state.first - 1 else None
