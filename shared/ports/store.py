"""The port to the frontier's truth. Every method is one transaction; owners' methods begin with their fence.

Errors: OwnershipLost when the fence refused (nothing was written), Transient when the database was away or busy beyond
its limits (nothing was written, or the answer was lost: the caller must claim and load again), Permanent when these
rows can never be written, NoRoom when the disk is full (nothing was written), Unusable when the schema is not ours.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from shared.domain.crawl import Budget
from shared.domain.frontier import CrawlState, Fence, Position
from shared.domain.ids import CrawlId, HostId, LeaseId, Partition, Revision, Term
from shared.domain.ledger import (
    Changes,
    Claimed,
    CommandRun,
    Counters,
    CrawlRow,
    Found,
    FoundBatch,
    LeaseRequest,
    LeaseRow,
    MessageLetter,
    QueueEnd,
    QueueRow,
)

NO_BUDGETS: Final[Mapping[CrawlId, Budget]] = MappingProxyType({})
NO_MARKS: Final[Mapping[CrawlId, int]] = MappingProxyType({})


class Store(Protocol):
    """The tables of one cluster."""

    async def open_cluster(self, partitions: int, public_suffixes: str, now_ms: int) -> tuple[int, str]:
        """The number of partitions and the public suffix list, or its name, fixed by the first call ever."""
        ...

    async def public_suffixes(self) -> str:
        """What `open_cluster` fixed."""
        ...

    async def newest_term(self) -> Term:
        """The greatest term any partition was claimed under."""
        ...

    async def put_crawl(self, name: str, spec: str, now_ms: int) -> tuple[CrawlRow, bool]:
        """Create the crawl or give it a new revision when `spec` differs; whether anything changed."""
        ...

    async def crawl(self, crawl_id: CrawlId) -> CrawlRow | None: ...

    async def worked_on(self) -> Sequence[CrawlRow]:
        """The crawls in which something may move (shared.domain.frontier.WORKED_ON), oldest first. What has ended costs
        nothing here, however many there are."""
        ...

    async def crawl_rows(self, crawl_ids: Collection[CrawlId]) -> Sequence[CrawlRow]:
        """Return those of the crawls that are not deleted, whatever their state; at most some 10,000 at once."""
        ...

    async def living(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        """Return those of the crawls that are not deleted."""
        ...

    async def begin_run(self, crawl_id: CrawlId, now_ms: int, *, unblock: bool) -> None:
        """Begin a run of a crawl that has the database for itself, before any partition is claimed.

        Outages are counted anew, since nothing was asked between the runs. `unblock`: hosts are blocked no longer, and
        URLs that wait for another try are due.
        """
        ...

    async def set_state(self, crawl_id: CrawlId, state: CrawlState, reason: str | None, now_ms: int) -> None: ...

    async def add_active_time(self, crawl_id: CrawlId, ms: int) -> None: ...

    async def add_active_time_to_all(self, ms: int, *, held: Collection[CrawlId]) -> None:
        """Add to the time of every crawl that is worked on and not paused, but for those `held`, in one statement."""

    async def counters(self, crawl_id: CrawlId) -> Counters: ...

    async def counters_by_partition(
        self, crawl_ids: Collection[CrawlId]
    ) -> Mapping[CrawlId, Mapping[Partition, Counters]]:
        """Return several crawls' counters in each partition that has any."""
        ...

    async def counters_in(
        self, crawl_ids: Collection[CrawlId], partitions: Collection[Partition]
    ) -> Mapping[CrawlId, Counters]:
        """Return several crawls' counters and versions, summed over some partitions, without crawls that have none."""
        ...

    async def tallies(self, crawl_id: CrawlId) -> dict[str, dict[str, int]]:
        """kind -> key -> count, summed over partitions."""
        ...

    # The control plane's ----------------------------------------------------------------------------------------------

    async def epoch(self) -> int:
        """The cluster's epoch, by which terms of a coordinator that was replaced are older than those of the next."""
        ...

    async def raise_epoch(self, at_least: int) -> int:
        """Make the epoch `at_least`; it never falls. What it is afterwards."""
        ...

    async def positions(self) -> Mapping[Partition, Position]:
        """How far each partition's subjects are applied."""
        ...

    async def report_holds(self) -> Mapping[str, int]:
        """The beat of every hold on the reports (shared.domain.holds), by a read that began after this call."""
        ...

    async def advance_crawl(
        self,
        crawl_id: CrawlId,
        revision: Revision,
        before: CrawlState,
        after: CrawlState,
        reason: str | None,
        now_ms: int,
        counted: int | None = None,
    ) -> bool:
        """What a leader finds: from one state to the next; whether it was still at this revision in the state `before`.

        With `counted`, also only while that is the version of its counters: what the leader looked at is still so,
        however long ago it looked.
        """
        ...

    async def uncollected(self) -> Mapping[CrawlId, Sequence[Partition]]:
        """Deleted crawls whose rows are not known to be removed, some of them; with the partitions that have not done
        it."""
        ...

    async def collected(self, crawl_id: CrawlId, now_ms: int) -> None:
        """Every partition has removed a deleted crawl's rows: it is not looked at again."""
        ...

    async def reopen(self, after: CrawlId) -> tuple[Sequence[CrawlId], CrawlId | None]:
        """Let crawls run again that were finished as complete and have something queued now: which, and behind which to
        go on; None at the end. It looks at a bounded number of those above `after` that have something queued."""
        ...

    # An owner's transactions ------------------------------------------------------------------------------------------

    async def claim(self, partition: Partition, term: Term) -> Claimed:
        """Own the partition under `term`; OwnershipLost when an equal or later term owns it."""
        ...

    async def apply(self, fence: Fence, position: Position, changes: Changes) -> Sequence[QueueEnd]:
        """Write an owner's decisions and move the position; the queues of `give_up` that may have more to end, for
        another transaction: a host may have any number of URLs."""
        ...

    async def reload(self, partition: Partition, term: Term) -> Claimed:
        """What a claim under `term` finds now; OwnershipLost when another term owns it, or none was committed.

        No transaction begun under this term before can commit any more.
        """
        ...

    async def apply_found(
        self,
        fence: Fence,
        position: Position,
        batch: FoundBatch,
        *,
        next_host: int,
        max_depth: dict[CrawlId, int | None],
        now_ms: int,
        marks: Mapping[CrawlId, int] = NO_MARKS,
    ) -> Found:
        """Insert what is new of the batch, merge what is known (`max_depth`: each crawl's limit), move the position.

        `marks`: per crawl the newest command in progress that was accepted before the batch, and so touches nothing of
        it.
        """
        ...

    async def accept_command(
        self, fence: Fence, position: Position, command: CommandRun, now_ms: int
    ) -> CommandRun | None:
        """Move the position past a command's message and keep the command, to be applied by `run_command`.

        Returns it with its number. Returns None if nothing is left to do: the command acts on one host and is applied
        by this transaction, or was accepted before, or its crawl is being deleted. A DELETE ends the other commands of
        its crawl: they count as applied.
        """
        ...

    async def run_command(
        self, fence: Fence, command: CommandRun, now_ms: int, *, sent: Sequence[int] = (), upto: int | None = None
    ) -> int | None:
        """Apply one bounded chunk of a command in progress: what lies beyond `command.after`.

        Returns where the next chunk begins, which is kept by the same transaction, or None when the command is applied.
        It touches no row that was written behind the command (`Changes.marks`). Of a REPLAY it queues the URLs of
        letters up to `upto` and forgets the letters in `sent`; messages are their owner's to publish
        (`message_letters`).
        """
        ...

    async def crawls_with_commands(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        """Return those of the crawls that have a command in progress, by a read that began after this call."""
        ...

    async def message_letters(self, command: CommandRun, most: int) -> Sequence[MessageLetter]:
        """Return up to `most` of the messages that a REPLAY means, in the order of their numbers, beyond
        `command.after`."""
        ...

    async def dispatch(
        self,
        fence: Fence,
        next_lease: int,
        requests: Sequence[LeaseRequest],
        now_ms: int,
        budgets: Mapping[CrawlId, Budget] = NO_BUDGETS,
    ) -> Sequence[LeaseRow]:
        """Lease URLs; a request whose queue had nothing, or whose crawl may take nothing more, gives no row.

        `budgets`, of crawls that have one: no more URLs are out than may still become pages, and none once the bytes
        are spent, whoever else leases for the crawl at the same time.
        """
        ...

    async def grant(self, fence: Fence, leases: Sequence[LeaseId]) -> None:
        """Count one more grant of each lease, before it is answered."""
        ...

    async def still_owner(self, fence: Fence) -> bool:
        """Whether the partition's term is still the fence's, by a read that began after this call."""
        ...

    async def ready_queues(
        self, partition: Partition, crawl_id: CrawlId, most: int, *, soon_ms: int
    ) -> Sequence[QueueRow]:
        """Queues with something queued or waiting, up to `most`.

        First those that may be visited by `soon_ms` (neither blocked nor waiting beyond it), then by who was served
        least recently.
        """
        ...

    async def queue_rows(self, keys: Sequence[tuple[CrawlId, HostId]]) -> Sequence[QueueRow]: ...

    async def promote(self, fence: Fence, crawl_id: CrawlId, host_id: HostId, now_ms: int) -> int:
        """Move WAITING URLs that are due back to the queue, the longest due first, as many as one transaction may hold;
        how many. What is left stays due."""
        ...

    async def close(self) -> None: ...
