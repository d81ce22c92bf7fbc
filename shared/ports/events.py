"""The port to the stream of events: what happened, kept for a while, read from any place in it by any number.

Sequences only grow, also from one stream to the next that takes its place: a sequence names one event for ever. What is
old goes first; of one subject that is told much, its own oldest. Errors as of the broker.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.ports.broker import Delivered


@dataclass(frozen=True, slots=True)
class EventsState:
    """The stream as it is: when it was created (Unix ns), the oldest sequence kept and the last one given.

    An empty stream has `first == last + 1`.
    """

    created_ns: int
    first: int
    last: int


class EventReader(Protocol):
    """Reads events from a position on, in order; nothing is acknowledged."""

    async def read(self, most: int, wait_s: float) -> Sequence[Delivered]:
        """Up to `most` events; waits up to wait_s for the first, never for the others; empty when none came.

        Transient while the broker is away, and reading again goes on without a gap or a repeat; for ever Transient once
        the stream was replaced (compare `Events.state`).
        """
        ...

    async def close(self) -> None:
        """Let go of what the broker keeps for this reader."""
        ...


class Events(Protocol):
    """The stream of events."""

    async def declare(self) -> None:
        """Make the stream be as declared; safe to repeat."""
        ...

    async def publish(self, subject: str, data: bytes, message_id: str) -> int:
        """Store an event; its sequence. A repeat with the same id within two minutes is stored once."""
        ...

    async def state(self) -> EventsState: ...

    async def last(self, subject: str) -> Delivered | None:
        """The newest event on a subject, or on any that a pattern names; None when none is kept."""
        ...

    async def newest(self, pattern: str) -> Sequence[Delivered]:
        """The newest event of every subject that the pattern names, oldest first."""
        ...

    async def read(self, subjects: Sequence[str], after: int) -> EventReader:
        """A reader of what was stored after sequence `after` on these subjects, which may not overlap."""
        ...
