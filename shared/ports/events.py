"""The port to the stream of events. Events are kept for a while; any number of readers may start at any position.

Sequences only grow, even when a new stream replaces the old one, so a sequence identifies one event for ever. The
oldest events are dropped first; a busy subject drops its own oldest. Errors as for the broker.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.ports.broker import Delivered


@dataclass(frozen=True, slots=True)
class EventsState:
    """The state of the stream of events: its creation time (Unix ns), its oldest kept sequence and its last one.

    An empty stream has `first == last + 1`.
    """

    created_ns: int
    first: int
    last: int


class EventReader(Protocol):
    """Reads events from a position in the stream on, in order. Reading acknowledges and deletes nothing."""

    async def read(self, max_count: int, wait_s: float) -> Sequence[Delivered]:
        """Return up to `max_count` events. Wait up to `wait_s` seconds for the first only; return none if none came.

        Raise Transient while the broker is away; reading again continues without a gap or a repeat. Once the stream was
        replaced, always raise Transient (compare `Events.state`).
        """

    async def close(self) -> None:
        """Let the broker forget this reader."""


class Events(Protocol):
    """The broker's stream of events: publishes, looks up and reads them."""

    async def declare(self) -> None:
        """Create the stream of events in the broker, or update its settings. Safe to repeat."""

    async def publish(self, subject: str, data: bytes, message_id: str) -> int:
        """Store an event and return its sequence. A repeat with the same id within two minutes is dropped."""

    async def state(self) -> EventsState: ...

    async def last(self, subject: str) -> Delivered | None:
        """Return the newest stored event whose subject is `subject`, or matches it as a pattern; None without one."""

    async def newest(self, pattern: str) -> Sequence[Delivered]:
        """Return the newest stored event of every subject that the pattern matches, oldest first."""

    async def read(self, subjects: Sequence[str], after: int) -> EventReader:
        """Return a reader of the events on these subjects after sequence `after`. Their patterns must not overlap."""
