"""The port to the frontier's tables in the database. Every method is one transaction.

The write methods of a partition's owner have a parameter `fence`, which is the partition's term and version. They write
nothing if either has changed.

Errors:
- OwnershipLost: another owner or transaction has written after the fence was read. Nothing was written.
- Transient: the database was away, or busy beyond its limits. The caller cannot know whether the rows were written. An
  owner must claim and load its partition again.
- Permanent: the database will never accept the written rows.
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
    """Reads and writes the frontier's tables of a cluster: crawls, and each partition's URLs, hosts and leases."""

    async def open_cluster(self, partitions: int, public_suffixes: str, now_ms: int) -> tuple[int, str]:
        """Return the cluster's number of partitions and its public suffix list.

        The first call for a database stores the given values. Later calls return the stored values and ignore the given
        ones. `public_suffixes`: the text of the list, or for a local crawl only its version.
        """

    async def public_suffixes(self) -> str:
        """Return the text of the public suffix list, or only its version if this is the database of a local crawl.

        - In a cluster: the text of the list, many lines.
        - In a local crawl (`orb crawl`): the version of the package `publicsuffixlist`. The text of the list is in a
          file in the crawl's folder.

        To distinguish the two, look for a line break: a version has none. The first `open_cluster` stored the value.
        """

    async def newest_term(self) -> Term:
        """Return the greatest term under which any partition or the schedules were claimed, 0 if none were."""

    async def put_crawl(self, name: str, spec: str, now_ms: int) -> tuple[CrawlRow, bool]:
        """Create the crawl `name` with this spec, or add a revision if `spec` differs from its active spec.

        Return the crawl, and True if anything changed. A new or changed crawl has the state SEEDING. `spec` is the JSON
        text of the spec.
        """

    async def crawl(self, crawl_id: CrawlId) -> CrawlRow | None: ...

    async def worked_on(self) -> Sequence[CrawlRow]:
        """Return the crawls that are seeding, running or paused, ordered by id.

        The cost depends only on the number of these crawls.
        """

    async def crawl_changes(
        self, mark: ChangeMark, known: Callable[[CrawlId], CrawlVersion | None], compare: Collection[CrawlId]
    ) -> CrawlChanges:
        """Return what changed in crawls since the earlier call that returned `mark`.

        The cost depends on the number of changes, not on the number of crawls.

        - `known` returns the version of a crawl that the caller has read, None if the caller has read none.
        - `compare`: crawls to check in this call, even if they do not seem to have changed. The call also checks a few
          others that are seeding, running or paused. A checked crawl counts as changed if its stored version is not
          the one that `known` returns.
        """
        # Each change has a number, and `mark` has the greatest number that was read. A slow transaction may commit a
        # lower number afterwards. The check finds such a change later.

    async def crawl_rows(self, crawl_ids: Collection[CrawlId]) -> Sequence[CrawlRow]:
        """Return the rows of the crawls in `crawl_ids` that are not deleted. Pass at most some 10,000 ids."""

    async def living(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        """Return the ids in `crawl_ids` whose crawls exist and are not deleted."""

    async def begin_run(self, crawl_id: CrawlId, now_ms: int, *, unblock: bool) -> None:
        """Prepare another run of a local crawl. Call this before a partition is claimed.

        Set the length of each host's present outage to 0. If `unblock` is True, also end the back-off of all hosts, and
        make URLs that wait for a retry due at `now_ms`.
        """

    async def set_state(self, crawl_id: CrawlId, state: CrawlState, reason: str | None, now_ms: int) -> None: ...

    async def add_active_time(self, crawl_id: CrawlId, ms: int) -> None: ...

    async def start_active_time(self, pools: Mapping[CrawlId, str]) -> None:
        """Begin to count each crawl's active time (for `max_seconds`) by the clock of its pool in `pools`.

        A pool's clock is a number of milliseconds in the database, which only `add_pool_time` raises. Nothing changes
        for crawls that are paused or have ended.
        """

    async def add_pool_time(self, clocks: Mapping[str, int], ms: int) -> None:
        """Add `ms` to the clock of each pool in `clocks`. The clock is the time in ms for which the pool could work.

        `clocks` maps each pool to the value of its clock that the caller has read. For example, the value is 9,000 and
        `ms` is 5,000. If 9,000 is still stored, the clock becomes 14,000. If another leader has changed the clock
        meanwhile, it stays unchanged. So the same time is never added twice.
        """

    async def counters(self, crawl_id: CrawlId) -> Counters: ...

    async def counters_by_partition(
        self, crawl_ids: Collection[CrawlId]
    ) -> Mapping[CrawlId, Mapping[Partition, Counters]]:
        """Return the counters of each crawl by partition. Partitions in which a crawl has no counters are left out."""

    async def counters_in(
        self, crawl_ids: Collection[CrawlId], partitions: Collection[Partition]
    ) -> Mapping[CrawlId, Counters]:
        """Return each crawl's counters, summed over these partitions. Crawls without counters there are left out."""

    async def tallies(self, crawl_id: CrawlId) -> dict[str, dict[str, int]]:
        """Return a crawl's counts by kind and key, such as "status" -> "200" -> 17, summed over partitions."""

    async def page_counts(self, crawl_id: CrawlId, partition: Partition) -> PageCounts:
        """Return the numbers of the crawl's pages and sitemaps in the partition, grouped by their rates.

        A page has a rate of change, a sitemap has a rate of fetching. A bucket is a range of rates, such as 4 to 5 a
        day. Example: `result["rates"][70]` is the number of pages whose rate is in bucket 70. The keys such as "rates"
        are in `COUNTED` of the module `recrawl_pages`.
        """
        ...

    async def scope_revision(self, crawl_id: CrawlId) -> Revision:
        """Return the revision since which the crawl's spec has had its present scope.

        Raising the limit of pages for a host counts as a change of the scope.
        """

    async def widened_revision(self, crawl_id: CrawlId) -> Revision | None:
        """Return the newest revision of the crawl whose scope may admit more links than the revision before it.

        Return None if no revision widened the scope.
        """
        ...

    async def host_names(self, ids: Collection[int]) -> Mapping[int, str]:
        """Return the names of the hosts with these ids, by id. Hosts that are not stored are left out."""

    async def via_hosts(
        self, places: Sequence[tuple[CrawlId, HostId, Sequence[Fingerprint]]]
    ) -> Sequence[Mapping[Fingerprint, str | None]]:
        """Return for each place a mapping from the fingerprint of a URL to the host on whose page the URL was found.

        A place is a crawl, a host, and fingerprints of URLs on the host. A seed is mapped to None. If the host of the
        page is no longer stored, the URL is mapped to its own host. URLs that are not stored are left out.
        """

    async def crawls_with_contexts(self, partition: Partition, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        """Return the crawls in `crawl_ids` for which the partition has stored the context of a seed.

        A crawl is returned even if none of its URLs has a context any more.
        """
        ...

    async def contexts_of(
        self, places: Sequence[tuple[CrawlId, HostId, Sequence[Fingerprint]]]
    ) -> Sequence[Mapping[Fingerprint, SeedContext]]:
        """Return for each place the seed contexts of its URLs, as a mapping from fingerprint to context.

        A place is a crawl, a host, and fingerprints of URLs on the host. URLs without a context are left out.
        """
        ...

    async def due_before(self, crawl_id: CrawlId, before_ms: int) -> bool:
        """Return True if a waiting URL of the crawl may be due by `before_ms` (Unix ms), False if certainly none is.

        A URL waits for a retry, or for the next fetch of its page.
        """

    async def waits_for_retry(self, crawl_id: CrawlId) -> bool:
        """Return True if a stored page or a sitemap of the crawl waits for a retry. Ignore retries of new URLs."""

    # The control plane's ----------------------------------------------------------------------------------------------

    async def epoch(self) -> int:
        """Return the cluster's epoch: a number that rises when etcd or the database was replaced by an older state.

        Example: etcd was restored from a backup, so its revisions are lower than before. A term consists of the epoch
        and a revision. With a higher epoch, new terms are still greater than all earlier terms.
        """

    async def raise_epoch(self, at_least: int) -> int:
        """Set the epoch to `at_least` if it is lower. Return the epoch afterwards."""

    async def positions(self) -> Mapping[Partition, Position]:
        """Return each partition's position: the last report of each kind that its owner has applied."""

    async def report_holds(self) -> Mapping[str, int]:
        """Return the holds. While a hold exists and its creator lives, owners must not purge reports.

        A backup creates a hold, for example. The result maps the name of each hold's creator to a number. A live
        creator raises its number every few seconds. If the number stays the same, the creator is dead. Holds committed
        before the call are always included.
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
        """Move a crawl from the state `before` to `after`, with the finish reason `reason`. Return True if moved.

        Return False, and write nothing, if the crawl has changed since the caller read it. The arguments say what the
        caller has read. None is not compared:

        - `before`, `revision`: the state, and the active revision of the spec.
        - `change`: `CrawlRow.change`. Every change of the crawl raises it, also a change of the state.
        - `operator_version`: `CrawlRow.operator_version`. Only changes by an operator raise it.
        - `counted`: the version of the crawl's counters. If it is given, also return False while a change of the
          crawl's seed sets is not published, because that change may add seeds.
        """

    async def uncollected(self) -> Mapping[CrawlId, Sequence[Partition]]:
        """Return deleted crawls that may still have rows, each with the partitions that have not removed their rows.

        A call returns a bounded number of crawls.
        """

    async def collected(self, crawl_id: CrawlId, now_ms: int) -> bool:
        """Finish the removal of a deleted crawl, one step a call. Repeat the call until it returns True.

        Call this only when all partitions have removed their rows of the crawl.

        - If the crawl has seed sets left: remove one of them, and return False.
        - Otherwise: record that the crawl is removed, and return True. `uncollected` no longer returns the crawl.
        """

    async def reopen(
        self, after: CrawlId, max_count: int, among: Collection[CrawlId] = ()
    ) -> tuple[Sequence[CrawlId], CrawlId | None]:
        """Set crawls that finished as `complete`, but have URLs queued now, to running again. If the spec of one was
        changed since, set it to seeding.

        Return these crawls, and the id to pass as `after` to the next call (None after the last crawl). A call examines
        the crawls in `among`, and up to `max_count` crawls that have ids above `after` and queued URLs.
        """

    # An owner's transactions ------------------------------------------------------------------------------------------

    async def claim(self, partition: Partition, term: Term) -> Claimed:
        """Make the caller the partition's owner under `term`.

        Return the partition's state: fence, position, leases, commands. Raise OwnershipLost if the partition was
        claimed under an equal or later term.
        """

    async def apply(self, fence: Fence, position: Position, changes: Changes) -> Sequence[QueueEnd]:
        """Write an owner's `changes`, and set the position up to which it has applied reports to `position`.

        `changes.give_up` names queues whose URLs are given up. A call gives up a bounded number of URLs. Return the
        queues that may have more URLs to give up. The caller passes these queues to its next call.
        """

    async def reload(self, partition: Partition, term: Term) -> Claimed:
        """Return the partition's state after a transaction with an unknown result, such as after a timeout.

        The state either contains what that transaction wrote, or that transaction can never be committed. It can commit
        only if its fence has the partition's present version, and this method gives the partition a new version.

        Raise OwnershipLost if the partition is not claimed under `term`.
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
        """Apply a batch of discoveries, and return what changed. Set the partition's stored position to `position`.

        New URLs are inserted, rows of known URLs are updated, and the batch's dead letters are stored.

        - `next_host`: the next free host number of the partition.
        - `max_depth`: the depth limit of each crawl, None for no limit.
        - `marks`: for each crawl, the number of the newest command that is being applied. It is stored in each row that
          the batch writes. Commands with this number or a lower one then skip the row.
        - `max_requisites`: the budget of requisites of each crawl that has one. Requisites beyond it are excluded.
        - `signs`: for each crawl that fetches pages again, how a date in a sitemap or feed changes the time at which a
          page is fetched again. None: the crawl ignores these dates.
        """

    async def accept_command(
        self, fence: Fence, position: Position, command: CommandRun, now_ms: int
    ) -> CommandRun | None:
        """Store a command for `run_command`, and move the position past its message.

        Return the command with its number. Return None if `run_command` is not needed:
        - The command concerns one host, and this transaction applied it.
        - It was accepted before.
        - Its crawl is being deleted.
        - It is a RESCOPE or REDISCOVER, and one of a newer revision is in progress.

        A DELETE ends the other commands of its crawl, and they are recorded as applied.
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
        """Apply one bounded chunk of a command in progress, beginning after `command.after`, and store the progress.

        Return where the next chunk begins, or None when the whole command is applied. Rows written after the command
        was accepted are skipped. Some kinds of commands need further arguments. All other kinds ignore them.

        - REPLAY: the chunk has the dead letters with numbers up to `upto`. None: up to the command's last letter. A
          letter is a message or a URL. If there are very many URLs, some of them are left for the next chunk.
        - REPLAY, letters of messages: before this call, the caller reads the chunk's messages (`message_letters`) and
          publishes them. `sent` has the numbers of the published letters. This call only deletes these letters.
        - REPLAY, letters of URLs: this call queues the URLs again, and deletes the letters. The caller does nothing.
        - EXCLUDE: this call excludes the URLs that `exclusions` cover. Pass the exclusions in force now.
        - RESCOPE: this call applies `changed`, the crawl's present scope.
        - REDISCOVER: the caller has read the chunk's pages (`readable_pages`) and published their links. This call
          records `found`, the result of that.

        If the crawl of a RESCOPE or REDISCOVER was deleted, pass None for `changed` or `found`. The command then ends.
        """

    async def leased_seeds(self, command: CommandRun) -> Collection[Fingerprint]:
        """Return the leased URLs among those that the next `run_command` of a SEED_SET command is to withdraw.

        A leased URL can be withdrawn only after its lease has ended. So the owner uses the result to recall the leases.
        """

    async def readable_pages(self, command: CommandRun) -> ReadablePages:
        """Return the next stored pages whose links a REDISCOVER command must read from the archive.

        A call returns a bounded number of pages, and the place where the next chunk begins.
        """
        ...

    async def crawls_with_commands(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        """Return the crawls in `crawl_ids` with a command in progress in any partition, or with one to be published.

        A schedule applies `retry-failed` in one transaction, and the leader publishes the command after that.
        Commands that were committed before the call are always seen.
        """

    async def message_letters(self, command: CommandRun, max_count: int) -> Sequence[MessageDeadLetter]:
        """Return up to `max_count` messages that a REPLAY command selects from the dead letters.

        Only letters with numbers greater than `command.after` are returned.
        """

    async def dispatch(
        self,
        fence: Fence,
        next_free_lease: int,
        requests: Sequence[LeaseRequest],
        now_ms: int,
        budgets: Mapping[CrawlId, Budget] = NO_BUDGETS,
    ) -> Sequence[LeaseRow]:
        """Lease URLs from hosts' queues. Return the leases that got URLs.

        A request gets no lease if its queue is empty or the budget of its crawl is spent.

        - `next_free_lease`: the lowest lease number that is free after this call. Example: the requests use 7 and 8
          (`LeaseRequest.lease_id`), so pass 9. The call stores 9, and a later owner begins with it.
        - `budgets`: the budget of each crawl that has one. Only so many URLs are leased that the crawl cannot store
          more than `max_pages` pages. Nothing is leased once `max_bytes` is reached.
        """

    async def grant(self, fence: Fence, leases: Sequence[LeaseId]) -> None:
        """Add 1 to the number of grants of each lease. The owner calls it before it sends these grants to workers."""

    async def data_version(self) -> int | None:
        """Return a number that changes with every commit to the database, by any process.

        Return None if the number cannot be read now, or if this database has none.
        """

    def silent_s(self) -> float:
        """Return the number of seconds since the database last answered this process."""

    async def still_owner(self, fence: Fence) -> bool:
        """Return True if the partition is still claimed under the fence's term at the moment of the call."""

    async def queues_by_readiness(
        self, partition: Partition, crawl_id: CrawlId, max_count: int, *, soon_ms: int
    ) -> Sequence[QueueRow]:
        """Return up to `max_count` host queues of a crawl in a partition that have queued or waiting URLs.

        Queues that may be visited by `soon_ms` (Unix ms) come first: their host is not blocked, and a URL is due. The
        other queues follow. Both groups begin with the least recently served queue.
        """

    async def queue_rows(self, keys: Sequence[tuple[CrawlId, HostId]]) -> Sequence[QueueRow]: ...

    async def promote(self, fence: Fence, crawl_id: CrawlId, host_id: HostId, now_ms: int) -> int:
        """Change URLs of a host from WAITING to QUEUED if they are due at `now_ms` (Unix ms), the longest due first.

        Return the number of changed URLs. A call changes a bounded number. If more are due, repeat the call.
        """

    async def close(self) -> None: ...
