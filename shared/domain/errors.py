"""What *we* could not do, named for what the caller must do. What the web does is never an exception."""


class Permanent(Exception):
    """Doing it again cannot help: give up this one thing, keep the evidence."""


class TooLarge(Permanent):
    """The broker takes no message of this size: send less at once."""


class Transient(Exception):
    """May work later. `retry_in` is seconds to wait first."""

    def __init__(self, message: str, *, retry_in: float = 1.0) -> None:
        super().__init__(message)
        self.retry_in = retry_in


class StreamReplaced(Transient):
    """The stream is another one than was read, or came back shorter: compare positions, and load anew."""


class Refused(Transient):
    """A bounded queue is full: the producer keeps what it has and stops making more."""


class DiskFull(Transient):
    """A disk has no room; of what was to be written nobody knows."""


class NoRoom(DiskFull):
    """What was to be written was not, for want of room: nothing has changed, and the same may be tried again."""


class OwnershipLost(Exception):
    """Somebody else owns this now: stop, change nothing more, and let go of what was held."""


class Unusable(Exception):
    """The environment cannot carry us (disk full, an engine that does not start); the text says what to do."""


def single(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The exceptions of a group, and of the groups in it."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += single(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
