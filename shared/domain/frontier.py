"""The frontier's vocabulary: states of a URL, what an owner may write, and the pure rules that decide between them."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from shared.domain.ids import Partition, Term


class UrlState(IntEnum):
    """Where a URL is. QUEUED and WAITING together are `queued` in the identity; a dead letter is FAILED."""

    QUEUED = 0
    WAITING = 1
    LEASED = 2
    DONE = 3
    FAILED = 4
    EXCLUDED = 5


class End(IntEnum):
    """What a worker says of a URL: the server answered, no answer came, or a rule forbade asking."""

    ANSWERED = 1
    FAILED = 2
    DENIED = 3


class CrawlState(StrEnum):
    """A crawl's life. CREATED: declared, never started. SEEDING: its first seeds are not all acknowledged, so it cannot
    be finished."""

    CREATED = "created"
    SEEDING = "seeding"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    DELETED = "deleted"


WORKED_ON: Final = frozenset({CrawlState.SEEDING, CrawlState.RUNNING, CrawlState.PAUSED})
"""States in which a crawl has something in the frontier that may move."""


COUNTED_AS_PAGE: Final = 1
"""Flag of a URL whose page already counts in `pages` (a page fetched again takes no further budget)."""

FOUND_NEARER: Final = 2
"""Flag of a leased URL that was found at a lesser depth than it was sent with: an owner that takes over knows by it
that the page is to be queued again (merge_link); it goes when the URL is settled."""

COUNTED_LOSSES: Final = 4
"""Flag of a URL whose fetch counts in the tallies `left_out` or `truncated`: another fetch replaces what it counted."""

ANSWER_S: Final = 3.0
"""So long a worker waits for an owner's answer before it puts the shard off."""

LEVEL_MS: Final = 3_600_000
"""Ageing: an hour of waiting weighs as much as one level of depth or of priority."""


def rank_of(queued_at_ms: int, depth: int, priority: int) -> int:
    """The order in a host's queue, least first.

    Breadth-first by depth, raised by priority, with ageing: as every URL ages at the same rate, `age` cancels out of
    every comparison and the order of two URLs never changes, so the rank is a constant that an index can hold.
    """
    return queued_at_ms + (depth - priority) * LEVEL_MS


@dataclass(frozen=True, slots=True)
class Position:
    """How far a partition's two subjects are applied: in which stream (its creation, Unix ns), sequence and broker time
    (Unix ns) of the last message of each."""

    stream_created_ns: int = 0
    outcome_seq: int = 0
    outcome_ns: int = 0
    discovery_seq: int = 0
    discovery_ns: int = 0

    def of(self, kind: str) -> int:
        """The sequence applied of a kind of report."""
        return self.outcome_seq if kind == "outcome" else self.discovery_seq

    def at_ns(self, kind: str) -> int:
        """Return when the last message applied of a kind of report was stored."""
        return self.outcome_ns if kind == "outcome" else self.discovery_ns

    def moved(self, kind: str, sequence: int, at_ns: int) -> "Position":
        """The position after applying the report at `sequence`."""
        if kind == "outcome":
            return Position(self.stream_created_ns, sequence, at_ns, self.discovery_seq, self.discovery_ns)
        return Position(self.stream_created_ns, self.outcome_seq, self.outcome_ns, sequence, at_ns)


def same_stream(position: Position, created_ns: int, last_sequence: int) -> bool:
    """Whether `position` still names a place in the stream as it is now.

    False when the stream was created anew or is behind us (restored from a backup): everything in it is unread, and
    reading starts at 0. Sequences alone cannot tell, since a new stream counts from 1 again.
    """
    if position.stream_created_ns == 0:
        return position.outcome_seq == 0 and position.discovery_seq == 0
    return position.stream_created_ns == created_ns and last_sequence >= max(
        position.outcome_seq, position.discovery_seq
    )


@dataclass(frozen=True, slots=True)
class Fence:
    """What every owner's transaction begins with: it commits only under this term and directly after this version."""

    partition: Partition
    term: Term
    version: int

    def next(self) -> "Fence":
        """The fence after one committed transaction."""
        return Fence(self.partition, self.term, self.version + 1)


class Merge(IntEnum):
    """What a link to a known URL changes."""

    NOTHING = 0
    LOWER_DEPTH = 1
    QUEUE_AGAIN = 2


def merge_link(state: UrlState, known_depth: int, found_depth: int, max_depth: int | None) -> Merge:
    """Least depth wins, so that the set of pages does not depend on who found a link first.

    A page already done is queued again when its links come nearer to the seeds and a depth limit is set: what they lead
    to may now lie within the limit.
    """
    if found_depth >= known_depth:
        return Merge.NOTHING
    if state is UrlState.DONE and max_depth is not None and found_depth < max_depth:
        return Merge.QUEUE_AGAIN
    return Merge.LOWER_DEPTH
