"""The port to the stream of events. The broker keeps events for a limited time. Readers may start at any position.

No two events have the same sequence. Sequences only grow, even when a new stream replaces the old one. The oldest
events are deleted first. Each event has a subject, an address by which readers select events. If a subject has too
many events, its oldest ones are deleted. Errors are those of the broker.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from shared.ports.broker import Delivered


class EventsState(Struct, frozen=True):
    """The state of the stream of events: its creation time (Unix ns), and the sequences of its first and last event.

    An empty stream has `first == last + 1`.
    """

    created_ns: int
    first: int
    last: int


class EventReader(Protocol):
    """Reads events in order, starting after a sequence. Reading acknowledges and deletes nothing."""

    async def read(self, max_count: int, wait_s: float) -> Sequence[Delivered]:
        """Return up to `max_count` events in order.

        Wait up to `wait_s` seconds for the first; return none if none came. Raise Transient while the broker is away.
        The next call then continues without a gap or a repeat. If the stream was replaced, every call raises Transient.
        A caller detects that by `Events.state`, and opens a new reader.
        """

    async def close(self) -> None:
        """Delete what the broker keeps for this reader. `read` must not be called afterwards."""


class Events(Protocol):
    """The broker's stream of events: publishes events, looks them up, and opens readers."""

    async def declare(self) -> None:
        """Create the stream of events in the broker, or update its settings. It may be repeated."""

    async def publish(self, subject: str, data: bytes, message_id: str) -> int:
        """Store an event durably and return its sequence.

        A repeat with the same `message_id` within two minutes is not stored.
        """

    async def state(self) -> EventsState: ...

    async def last(self, subject: str) -> Delivered | None:
        """Return the newest stored event on `subject`, which may be a pattern with wildcards. None if there is none."""

    async def newest(self, pattern: str) -> Sequence[Delivered]:
        """Return the newest stored event of each subject that matches `pattern`.

        The events are ordered from old to new.
        """

    async def read(self, subjects: Sequence[str], after: int) -> EventReader:
        """Return a reader of the events on `subjects` after sequence `after`.

        Each of `subjects` may be a pattern with wildcards. They must not overlap: no subject may match two of them.
        """
