"""Exceptions for failures of the crawler and its servers, named for what the caller must do.

What the web does is never an exception.
"""


class Permanent(Exception):
    """A retry cannot help: the caller gives up this one message or row, and keeps the evidence."""


class TooLarge(Permanent):
    """The message is larger than the broker accepts: send less in one message."""


class Transient(Exception):
    """The call failed for now. A retry may succeed after `retry_in` seconds."""

    def __init__(self, message: str, *, retry_in: float = 1.0) -> None:
        super().__init__(message)
        self.retry_in = retry_in


class StreamReplaced(Transient):
    """The broker's stream is another one than was read before, or came back shorter: compare positions, load anew."""


class Refused(Transient):
    """A bounded queue is full: the caller keeps its messages, retries later, and stops making more."""


class DiskFull(Transient):
    """A disk is full. It is not known whether the data was written."""


class ResourceFull(DiskFull):
    """A disk or other resource is full. The data was not written, nothing has changed, and the write may be retried."""


class OwnershipLost(Exception):
    """Another process owns the partition, table or leadership now: stop, change nothing more, release what is held."""


class Unusable(Exception):
    """The environment does not allow the process to run, such as a server that does not start. The text has advice."""


def single(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the single exceptions in a group, also those in groups within it."""
    errors: list[BaseException] = []
    for error in group.exceptions:
        errors += single(error) if isinstance(error, BaseExceptionGroup) else [error]
    return errors
