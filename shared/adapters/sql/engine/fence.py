"""Lets only the owner of a partition write to it.

Each transaction of an owner begins with one statement, the fence. The fence makes the transaction fail if another
master owns the partition. The function `take_over` makes a master the owner.
"""

from typing import Final

from sqlalchemy import Connection, text

from shared.domain.errors import OwnershipLost
from shared.domain.frontier.states import Fence, Position
from shared.domain.ids import Partition, Term

_ADVANCE = text(
    "UPDATE partitions SET version = version + 1"
    " WHERE partition = :partition AND owner_term = :term AND version = :version"
)
_MOVE = text(
    "UPDATE partitions SET stream_created_ns = :stream_created_ns, outcome_seq = :outcome_seq,"
    " outcome_ns = :outcome_ns, discovery_seq = :discovery_seq, discovery_ns = :discovery_ns"
    " WHERE partition = :partition"
)
_CLAIM = text(
    "UPDATE partitions SET owner_term = :term, version = version + 1"
    " WHERE partition = :partition AND owner_term < :term"
)
_RESUME = text("UPDATE partitions SET version = version + 1 WHERE partition = :partition AND owner_term = :term")

FENCE_VERSION: Final = "(SELECT p.version FROM partitions p WHERE p.partition = :partition)"
"""SQL for the partition's version, in a transaction that has passed the fence."""


def pass_fence(connection: Connection, fence: Fence, position: Position | None = None) -> None:
    """Lock the partition's row, add 1 to its version, and store `position` if one is given.

    `position`: how far the owner has applied the reports. If the row has another term or version than the fence, raise
    OwnershipLost and write nothing.
    """
    keys = {"partition": fence.partition, "term": fence.term, "version": fence.version}
    if connection.execute(_ADVANCE, keys).rowcount != 1:
        raise OwnershipLost(f"partition {fence.partition} is no longer owned under term {fence.term}")
    if position is not None:
        move_position(connection, fence.partition, position)


def move_position(connection: Connection, partition: Partition, position: Position) -> None:
    """Store `position` as the position up to which the reports of the partition are applied.

    The transaction must have passed the fence.
    """
    connection.execute(
        _MOVE,
        {
            "partition": partition,
            "stream_created_ns": position.stream_created_ns,
            "outcome_seq": position.outcome_seq,
            "outcome_ns": position.outcome_ns,
            "discovery_seq": position.discovery_seq,
            "discovery_ns": position.discovery_ns,
        },
    )


def take_over(connection: Connection, partition: Partition, term: Term) -> None:
    """Make the master with this term the partition's owner. Raise OwnershipLost if an equal or later term owns it."""
    if connection.execute(_CLAIM, {"partition": partition, "term": term}).rowcount != 1:
        raise OwnershipLost(f"partition {partition} is owned under a term not older than {term}")


def resume(connection: Connection, partition: Partition, term: Term) -> None:
    """Let the owner of a partition continue after a transaction whose result is unknown, such as after a timeout.

    Add 1 to the partition's version, so that the earlier transaction can no longer commit.

    `term`: the number of the owner's ownership. Raise OwnershipLost if the partition is now owned under another term.
    """
    if connection.execute(_RESUME, {"partition": partition, "term": term}).rowcount != 1:
        raise OwnershipLost(f"partition {partition} is no longer owned under term {term}")
