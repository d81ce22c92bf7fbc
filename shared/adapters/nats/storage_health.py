"""Detect a broker that answers but stores nothing. Pure; times are monotonic seconds."""

from typing import Final

SILENT_S: Final = 10.0
"""A stream counts as failed if publishes to it have failed for this long, and more than once."""

TRIED_S: Final = 30.0
"""After this time without a failure publishes may be tried again: paused masters publish little, so they must probe."""


class StorageHealth:
    """The results of publishes, by the first word of their subjects, which differs for each stream.

    After a write fails on a full disk, a nats-server does not answer publishes until it is restarted.
    """

    def __init__(self) -> None:
        self._failing: dict[str, tuple[float, float]] = {}

    def __repr__(self) -> str:
        return f"<StorageHealth failing={','.join(self._failing)}>"

    def stored(self, subject: str) -> None:
        """Record that the stream answered a publish, even with a refusal."""
        self._failing.pop(subject.partition(".")[0], None)

    def failed(self, subject: str, now: float) -> None:
        """Record that a publish got no answer, or that the stream could not store it."""
        word = subject.partition(".")[0]
        first, _ = self._failing.get(word, (now, now))
        self._failing[word] = (first, now)

    def away(self) -> None:
        """Forget earlier failures: the broker is not connected, or may be another one."""
        self._failing.clear()

    def refuses(self, now: float) -> bool:
        """Return True if a stream stores nothing now."""
        return any(last - first >= SILENT_S and now - last < TRIED_S for first, last in self._failing.values())
