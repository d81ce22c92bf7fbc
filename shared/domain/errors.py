"""Exceptions for failures of the crawler and its servers, named for what the caller must do.

A failed fetch is a value (`FetchFailed`), never an exception.
"""


class Permanent(Exception):
    """A retry cannot help. The caller gives up the one message or row that caused this, and keeps the evidence."""


class TooLarge(Permanent):
    """The message is larger than the broker accepts: send less in one message."""


class Transient(Exception):
    """The call failed for now. A retry may succeed after `retry_in` seconds."""

    def __init__(self, message: str, *, retry_in: float = 1.0) -> None:
        super().__init__(message)
        self.retry_in = retry_in


class StreamReplaced(Transient):
    """The broker's stream was replaced, or lost messages, since the caller read it.

    So the caller's position may not exist in the present stream, or be that of another message. The caller compares
    its positions with the present stream, and loads its state again.
    """


class Refused(Transient):
    """A bounded queue is full.

    The caller keeps its messages, retries later, and produces no more messages until then.
    """


class DiskFull(Transient):
    """A disk is full. If this is no ResourceFull, it is not known whether the data was written."""


class ResourceFull(DiskFull):
    """A disk is full, and it is certain that nothing was written. So the caller may repeat the write."""


class OwnershipLost(Exception):
    """Another process now owns the partition, table or leadership.

    The caller stops, changes nothing more, and releases its resources.
    """


class Unusable(Exception):
    """The process cannot run in its environment, for example because a server does not start. The text has advice."""


def single(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the single exceptions of a group as a list. A nested group is replaced by its exceptions."""
    errors: list[BaseException] = []
    for error in group.exceptions:
        errors += single(error) if isinstance(error, BaseExceptionGroup) else [error]
    return errors
