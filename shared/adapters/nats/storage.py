"""Reads how full the storage of JetStream is, and detects streams that cannot store messages.

A client can read the bytes used and the limits of its account and of each stream. A client cannot read the state of the
server's disk. So a failing disk shows only in failed publishes.
"""

from typing import Any, Final

from shared.adapters.nats.connection import NatsConnection
from shared.adapters.nats.jetstream import demand
from shared.domain.ops.watermarks import FillLevel
from shared.wire import subjects

_OURS: Final = (subjects.REPORTS, subjects.visits_stream(""))


async def fullest(connection: NatsConnection, wait_s: float) -> FillLevel | None:
    """Return the fill level of the fullest storage in NATS: the bytes used, and the limit. None: nothing has a limit.

    The NATS account and each of the crawler's streams can have a limit. The fullest is the one with the smallest free
    share of its limit. Streams that delete their oldest messages at their limit are ignored, as they are normally full.
    """
    account = await demand(connection, "INFO", None, wait_s)
    levels = [FillLevel(int(account["storage"]), int(account["limits"]["max_storage"]))]
    offset, total = 0, 1
    while offset < total:
        page = await demand(connection, "STREAM.LIST", {"offset": offset}, wait_s)
        total, listed = int(page["total"]), page["streams"] or []
        if not listed:
            break
        offset += len(listed)
        levels += [_level(stream) for stream in listed if _refuses(stream["config"])]
    bounded = [level for level in levels if level.capacity > 0]
    return min(bounded, key=lambda level: level.free / level.capacity, default=None)


def _refuses(config: dict[str, Any]) -> bool:
    return config["name"].startswith(_OURS) and config.get("discard") == "new"


def _level(stream: dict[str, Any]) -> FillLevel:
    return FillLevel(int(stream["state"]["bytes"]), int(stream["config"].get("max_bytes", -1)))


SILENT_S: Final = 10.0
"""A stream counts as failed if publishes to it have failed for this many seconds, and more than once."""

TRIED_S: Final = 30.0
"""A failed stream counts as working again this many seconds after its last failure.

Masters then publish to it again, and the result shows if it really works."""


class StorageHealth:
    """Detects streams that store nothing, from the results of publishes.

    The first word of a subject identifies its stream. Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._failing: dict[str, tuple[float, float]] = {}

    def __repr__(self) -> str:
        return f"<StorageHealth failing={','.join(self._failing)}>"

    def record_working(self, subject: str) -> None:
        """Record that the stream of `subject` is able to store messages. Forget its earlier failures.

        Call this method after a publish with one of these results:

        - The stream stored the message.
        - The stream refused the message by a rule. This does not mean that the storage fails.

        If the stream could not write the message, or did not answer, call `record_failure` instead.
        """
        self._failing.pop(subject.partition(".")[0], None)

    def record_failure(self, subject: str, now: float) -> None:
        """Record that a publish to `subject` failed at `now`: it got no answer, or the stream could not write it."""
        word = subject.partition(".")[0]
        first, _ = self._failing.get(word, (now, now))
        self._failing[word] = (first, now)

    def forget_failures(self) -> None:
        """Forget all failures, because the connection is lost and the next server may be another one."""
        self._failing.clear()

    def refuses(self, now: float) -> bool:
        """Return True if a stream stores nothing at the time `now`.

        Publishes to it have failed for SILENT_S seconds or longer, and the last failure is less than TRIED_S seconds
        old.
        """
        return any(last - first >= SILENT_S and now - last < TRIED_S for first, last in self._failing.values())
