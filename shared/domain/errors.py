"""Failures of our own, named for what the caller must do. What the web does is never an exception."""


class Permanent(Exception):
    """A retry cannot help: give up this one thing and keep the evidence."""


class TooLarge(Permanent):
    """The broker accepts no message of this size: send less at once."""


class Transient(Exception):
    """A retry may succeed. `retry_in` is the seconds to wait first."""

    def __init__(self, message: str, *, retry_in: float = 1.0) -> None:
        super().__init__(message)
        self.retry_in = retry_in


class StreamReplaced(Transient):
    """The stream is not the one that was read, or came back shorter: compare positions, and load anew."""


class Refused(Transient):
    """A bounded queue is full: the producer keeps its messages and stops making more."""


class DiskFull(Transient):
    """A disk is full. It is unknown whether the data was written."""


class ResourceFull(DiskFull):
    """A resource is full, so the data was not written. Nothing has changed, and the write may be retried."""


class OwnershipLost(Exception):
    """Another process owns this now: stop, change nothing more, and release what is held."""


class Unusable(Exception):
    """The environment does not allow us to run (disk full, an engine that does not start). The text has the remedy."""


def single(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the exceptions of a group, and of the groups in it."""
    errors: list[BaseException] = []
    for error in group.exceptions:
        errors += single(error) if isinstance(error, BaseExceptionGroup) else [error]
    return errors
