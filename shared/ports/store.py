"""The port to the frontier's tables in the database. Every method is one transaction. Owners' methods begin with a
fence.

Errors:
- OwnershipLost: the fence is out of date, since another owner or transaction came after it. Nothing was written.
- Transient: the database was away, or busy beyond its limits. Nothing was written, or the answer was lost. The caller
  must claim and load again.
- Permanent: these rows can never be written.
- ResourceFull: the disk is full. Nothing was written.
- Unusable: the tables are not those of this software.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from shared.domain.crawl.exclusions import NO_EXCLUSIONS, Exclusions
from shared.domain.crawl.scope_change import ChangedScope
from shared.domain.crawl.spec import Budget
from shared.domain.crawl.wider_scope import ReadablePages, Rediscovered
from shared.domain.frontier.crawl_rows import ChangeMark, CrawlChanges, CrawlRow, CrawlVersion
from shared.domain.frontier.page_signs import PageSigns
from shared.domain.frontier.recrawl_pages import PageCounts
from shared.domain.frontier.seed_contexts import SeedContext
from shared.domain.frontier.states import CrawlState, Fence, Position
from shared.domain.frontier.store_model import (
    Changes,
    Claimed,
    CommandRun,
    Counters,
    DiscoveryResult,
    DiscoveryTransaction,
    LeaseRequest,
    LeaseRow,
    MessageDeadLetter,
    QueueEnd,
    QueueRow,
)
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Partition, Revision, Term

NO_BUDGETS: Final[Mapping[CrawlId, Budget]] = MappingProxyType({})
NO_MARKS: Final[Mapping[CrawlId, int]] = MappingProxyType({})
NO_SIGNS: Final[Mapping[CrawlId, PageSigns | None]] = MappingProxyType({})


class Store(Protocol):
    """The frontier's tables of one cluster: crawls, and the URLs, hosts, leases and counters of its partitions."""

    async def open_cluster(self, partitions: int, public_suffixes: str, now_ms: int) -> tuple[int, str]:
        """Return the number of partitions and the public suffix list (text or name). The first call ever fixes both."""

    async def public_suffixes(self) -> str:
        """Return the public suffix list (its text or its name) that `open_cluster` fixed."""

    async def newest_term(self) -> Term:
        """Return the greatest term under which any partition was claimed."""

    async def put_crawl(self, name: str, spec: str, now_ms: int) -> tuple[CrawlRow, bool]:
        """Create the crawl `name` with this spec, or add a revision if `spec` differs from its active one.

        Return the crawl, and True if anything changed.
        """

    async def crawl(self, crawl_id: CrawlId) -> CrawlRow | None: ...

    async def worked_on(self) -> Sequence[CrawlRow]:
        """Return the crawls that are seeding, running or paused, oldest first. Others cost nothing."""

    async def crawl_changes(
        self, mark: ChangeMark, known: Callable[[CrawlId], CrawlVersion | None], compare: Collection[CrawlId]
    ) -> CrawlChanges:
        """Return what changed in crawls since `mark`. The cost depends on the changes, not on the number of crawls.

        `known` returns the version of a crawl that the caller has read. A transaction that took long may number its
        change too low to be found by `mark`. So each call also compares the crawls in `compare`, and the next few
        crawls that are worked on.
        """

    async def crawl_rows(self, crawl_ids: Collection[CrawlId]) -> Sequence[CrawlRow]:
        """Return the rows of those crawls that are not deleted. Pass at most some 10,000 ids."""

    async def living(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        """Return the ids of those crawls that are not deleted."""

    async def begin_run(self, crawl_id: CrawlId, now_ms: int, *, unblock: bool) -> None:
        """Prepare another run of the database's only crawl, before any partition is claimed.

        Reset the outage counts of hosts, since no request was made between the runs. `unblock`: also unblock the hosts,
        and make URLs that wait for a retry due.
        """

    async def set_state(self, crawl_id: CrawlId, state: CrawlState, reason: str | None, now_ms: int) -> None: ...

    async def add_active_time(self, crawl_id: CrawlId, ms: int) -> None: ...

    async def start_active_time(self, pools: Mapping[CrawlId, str]) -> None:
        """Count the time of a pool's clock as active time of its crawls from now on. `pools` maps a crawl to its pool.

        Crawls that are paused or have ended are left out.
        """

    async def add_pool_time(self, clocks: Mapping[str, int], ms: int) -> None:
        """Add `ms` to the clock of each pool in `clocks`, if the clock still has the value given there.

        So of two leaders that count the same time, one counts it.
        """

    async def counters(self, crawl_id: CrawlId) -> Counters: ...

    async def counters_by_partition(
        self, crawl_ids: Collection[CrawlId]
    ) -> Mapping[CrawlId, Mapping[Partition, Counters]]:
        """Return the counters of each crawl by partition. Partitions in which a crawl has none are left out."""

    async def counters_in(
        self, crawl_ids: Collection[CrawlId], partitions: Collection[Partition]
    ) -> Mapping[CrawlId, Counters]:
        """Return each crawl's counters and their version, summed over these partitions. Crawls without any are left
        out.
        """

    async def tallies(self, crawl_id: CrawlId) -> dict[str, dict[str, int]]:
        """Return a crawl's counts by kind and key, such as "status" -> "200" -> 17, summed over partitions."""

    async def page_rates(self, crawl_id: CrawlId, partition: Partition) -> PageCounts:
        """Return how many of the crawl's stored pages and sitemaps in the partition are in each bucket of rates."""
        ...

    async def scope_revision(self, crawl_id: CrawlId) -> Revision:
        """Return the revision since which the crawl has its present scope, and no host a higher limit of pages."""

    async def widened_revision(self, crawl_id: CrawlId) -> Revision | None:
        """Return the newest revision of the crawl whose scope may admit more than the one before. None without any."""
        ...

    async def host_names(self, ids: Collection[int]) -> Mapping[int, str]:
        """Return the names of those of the hosts that are stored, by id."""

    async def via_hosts(
        self, places: Sequence[tuple[CrawlId, HostId, Sequence[Fingerprint]]]
    ) -> Sequence[Mapping[Fingerprint, str | None]]:
        """Return for each place (crawl, host, URLs) the name of the host that led to each URL; None for a seed."""

    async def crawls_with_contexts(self, partition: Partition, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        """Return those of the crawls of which the partition has a URL with the context of a seed, or had one."""
        ...

    async def contexts_of(
        self, places: Sequence[tuple[CrawlId, HostId, Sequence[Fingerprint]]]
    ) -> Sequence[Mapping[Fingerprint, SeedContext]]:
        """Return for each place (crawl, host, URLs) the contexts of those URLs that have one."""
        ...

    async def due_before(self, crawl_id: CrawlId, before_ms: int) -> bool:
        """Return True if a queued URL of the crawl may have waited for a time up to `before_ms` (Unix ms)."""

    # The control plane's ----------------------------------------------------------------------------------------------

    async def epoch(self) -> int:
        """Return the cluster's epoch: the part of a term that rises when the coordinator is replaced."""

    async def raise_epoch(self, at_least: int) -> int:
        """Raise the epoch to `at_least`, unless it is greater already. Return the epoch afterwards."""

    async def positions(self) -> Mapping[Partition, Position]:
        """Return, for each partition, the positions up to which its reports are applied."""

    async def report_holds(self) -> Mapping[str, int]:
        """Return the purge holds on reports: the number of each holder's last beat
        (shared.domain.frontier.purge_holds).

        The result includes all that was committed before the call.
        """

    async def advance_crawl(
        self,
        crawl_id: CrawlId,
        revision: Revision,
        before: CrawlState,
        after: CrawlState,
        reason: str | None,
        now_ms: int,
        counted: int | None = None,
        change: int | None = None,
        operator_version: int | None = None,
    ) -> bool:
        """Move a crawl from the state `before` to `after`, as the leader decided. Return True if it was moved.

        Return False, and write nothing, if the crawl is at another revision or in another state. With `counted`, also
        if its counters have another version: the leader then decided on old numbers. With `change`, also if that is not
        the number of its last change: it may be in another run by now, with the same state, revision and counters.
        With `operator_version`, also if an operator has changed it since: its seeds must be published again.
        """

    async def uncollected(self) -> Mapping[CrawlId, Sequence[Partition]]:
        """Return some deleted crawls whose rows may remain, each with the partitions that have not removed them yet."""

    async def collected(self, crawl_id: CrawlId, now_ms: int) -> bool:
        """Remove one seed set of a deleted crawl whose other rows are removed. Return False if it had one.

        Without any, record that nothing is left, and return True. Then `uncollected` no longer returns the crawl.
        """

    async def reopen(
        self, after: CrawlId, max_count: int, among: Collection[CrawlId] = ()
    ) -> tuple[Sequence[CrawlId], CrawlId | None]:
        """Set crawls that finished as `complete` running again if they have URLs queued now.

        Return them, and the id to pass as `after` next (None at the end). A call examines the crawls in `among`, and
        the next `max_count` crawls above `after` that have something queued.
        """

    # An owner's transactions ------------------------------------------------------------------------------------------

    async def claim(self, partition: Partition, term: Term) -> Claimed:
        """Make the caller the partition's owner under `term`, and return the partition's state.

        Raise OwnershipLost if an equal or later term owns it.
        """

    async def apply(self, fence: Fence, position: Position, changes: Changes) -> Sequence[QueueEnd]:
        """Write an owner's decisions, and set up to where it has applied reports (`position`).

        Return the queues of `changes.give_up` that may have more URLs to end. Another transaction must end those, since
        a host may have any number of URLs.
        """

    async def reload(self, partition: Partition, term: Term) -> Claimed:
        """Return the partition's state, as `claim` under the same `term` returned it, but as of now.

        Raise OwnershipLost if another term owns the partition, or no claim was committed. A transaction that began
        earlier under this term can no longer commit.
        """

    async def apply_found(
        self,
        fence: Fence,
        position: Position,
        batch: DiscoveryTransaction,
        *,
        next_host: int,
        max_depth: dict[CrawlId, int | None],
        now_ms: int,
        marks: Mapping[CrawlId, int] = NO_MARKS,
        max_requisites: Mapping[CrawlId, int] = NO_MARKS,
        signs: Mapping[CrawlId, PageSigns | None] = NO_SIGNS,
    ) -> DiscoveryResult:
        """Insert a batch's new URLs, merge its known ones, store its dead letters and set `position`. Return what
        changed.

        `max_depth`: the depth limit of each crawl (see merge_link). `marks`: per crawl, the newest command in progress
        that was accepted before the batch. Rows that the batch writes carry it, so that such a command skips them.
        `max_requisites`: the budget of requisites of each crawl that has one. Requisites beyond it are excluded.
        `signs`: the crawls that fetch pages again. None for those that do not use signs of change.
        """

    async def accept_command(
        self, fence: Fence, position: Position, command: CommandRun, now_ms: int
    ) -> CommandRun | None:
        """Set the position behind a command's message, and store the command for `run_command`.

        Return it with its number. Return None if nothing remains to do: the command acts on one host and this
        transaction applied it, or it was accepted before, or its crawl is being deleted. A DELETE ends the other
        commands of its crawl: they count as applied.
        """

    async def run_command(
        self,
        fence: Fence,
        command: CommandRun,
        now_ms: int,
        *,
        sent: Sequence[int] = (),
        upto: int | None = None,
        exclusions: Exclusions = NO_EXCLUSIONS,
        changed: ChangedScope | None = None,
        found: Rediscovered | None = None,
    ) -> int | None:
        """Apply one bounded chunk of a command in progress, beginning after `command.after`.

        Return where the next chunk begins, or None when the command is applied. The same transaction stores that
        progress. Rows written after the command was accepted are not touched (`Changes.marks`). For a REPLAY, queue the
        URLs of dead letters up to `upto` and delete the letters in `sent`. The owner publishes the messages
        (`message_letters`). An EXCLUDE excludes what `exclusions`, those in force now, cover.
        A RESCOPE applies `changed`, the crawl's present scope. Without it nothing remains to do: the crawl is deleted.
        A REDISCOVER applies `found`, which the owner found on `readable_pages`. Without it nothing remains to do.
        """

    async def leased_seeds(self, command: CommandRun) -> Collection[Fingerprint]:
        """Return the leased URLs that the next chunk of a SEED_SET must withdraw."""

    async def readable_pages(self, command: CommandRun) -> ReadablePages:
        """Return the next stored pages, in bounded number, whose links a REDISCOVER must read from the archive."""
        ...

    async def crawls_with_commands(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        """Return which of these crawls have a command in progress. All that was committed before the call counts."""

    async def message_letters(self, command: CommandRun, max_count: int) -> Sequence[MessageDeadLetter]:
        """Return up to `max_count` messages that a REPLAY selects from the dead letters, after `command.after`."""

    async def dispatch(
        self,
        fence: Fence,
        next_lease: int,
        requests: Sequence[LeaseRequest],
        now_ms: int,
        budgets: Mapping[CrawlId, Budget] = NO_BUDGETS,
    ) -> Sequence[LeaseRow]:
        """Lease URLs of hosts' queues. A request gives no lease if its queue is empty or its crawl's budget is used up.

        `budgets` holds the crawls that have one. At most as many URLs are leased as may still become pages, and none
        once the bytes are spent. This holds although other owners lease for the crawl at the same time.
        """

    async def grant(self, fence: Fence, leases: Sequence[LeaseId]) -> None:
        """Count one more grant of each lease. The owner calls it before it sends the grants to workers."""

    async def data_version(self) -> int | None:
        """Return a number that differs after any commit to the database, by any process. None if that is unknown."""

    def silent_s(self) -> float:
        """Return the seconds for which the database has not answered this process."""

    async def still_owner(self, fence: Fence) -> bool:
        """Return True if the partition's term was still the fence's when this was called: it has no later owner."""

    async def ready_queues(
        self, partition: Partition, crawl_id: CrawlId, max_count: int, *, soon_ms: int
    ) -> Sequence[QueueRow]:
        """Return up to `max_count` of a crawl's host queues in a partition that have URLs queued or waiting.

        Queues that may be visited by `soon_ms` come first: neither blocked nor waiting beyond it. Then the least
        recently served come first.
        """

    async def queue_rows(self, keys: Sequence[tuple[CrawlId, HostId]]) -> Sequence[QueueRow]: ...

    async def promote(self, fence: Fence, crawl_id: CrawlId, host_id: HostId, now_ms: int) -> int:
        """Queue a host's WAITING URLs whose time has come, those due for longest first. Return how many.

        One transaction moves a bounded number; the rest stay due.
        """

    async def close(self) -> None: ...
