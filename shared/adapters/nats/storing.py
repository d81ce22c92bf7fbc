"""Whether a broker that answers stores nothing. Pure; times are monotonic seconds."""

from typing import Final

SILENT_S: Final = 10.0
"""A stream that has stored nothing of what was published to it for so long, and that more than once, stores nothing."""

TRIED_S: Final = 30.0
"""So long after the latest failure it may be tried again: whoever is held publishes little, and would not find out."""


class Storing:
    """What became of publishes, by the first word of their subjects, of which each stream has its own. A nats-server
    keeps the failure of a file on a full disk until it is restarted, and leaves publishes unanswered meanwhile."""

    def __init__(self) -> None:
        self._failing: dict[str, tuple[float, float]] = {}

    def __repr__(self) -> str:
        return f"<Storing failing={','.join(self._failing)}>"

    def stored(self, subject: str) -> None:
        """A publish was answered by the stream, be it with a refusal."""
        self._failing.pop(subject.partition(".")[0], None)

    def failed(self, subject: str, now: float) -> None:
        """A publish was not answered, or the stream said that it could not store it."""
        word = subject.partition(".")[0]
        first, _ = self._failing.get(word, (now, now))
        self._failing[word] = (first, now)

    def away(self) -> None:
        """The broker answers nothing at all, or is another one: what was found before says nothing of it."""
        self._failing.clear()

    def refuses(self, now: float) -> bool:
        """Whether some stream stores nothing now."""
        return any(last - first >= SILENT_S and now - last < TRIED_S for first, last in self._failing.values())
