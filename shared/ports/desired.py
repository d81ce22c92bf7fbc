"""The port to desired state: hot configuration, members that are to drain, exclusions, host policies and seed sets.

Every method is one transaction. Missing, Exists, Full and Stale have the meaning of the catalog's errors. Transient,
Permanent and Unusable have the meaning of the store's errors. The leader publishes what is stored here to the members
(`api.leader.config_publisher` and `exclusion_publisher`). It sends the commands for policies and seed sets to owners
(`host_policy_publisher` and `seed_set_publisher`).
"""

from collections.abc import Sequence
from typing import Protocol

from shared.domain.ids import Partition
from shared.domain.ops.config import Drains, HotConfig, MemberRole, StoredConfig
from shared.domain.ops.exclusions import ExclusionList, ExclusionTerms, StoredExclusion
from shared.domain.ops.host_policies import HostLimits, HostPolicyCommand, HostPolicySpec, StoredHostPolicy
from shared.domain.ops.seed_sets import SeedSetCommand, SeedSetSpec, StoredSeedSet
from shared.domain.reads.declared import Actor, PutOutcome, Repeatable


class Desired(Protocol):
    """Reads and writes the desired state in the database: configuration, drains, exclusions, host policies, seed sets.

    Parameters that several methods have:
    - `expected`: tags (HTTP ETags). Raise Stale if the present version has none of them. Raise Missing if there is no
      present version. None: no condition.
    - `partitions`: the cluster's number of partitions.
    """

    async def config(self) -> StoredConfig:
        """Return the newest revision of the hot configuration.

        Before the first `put_config` this is an empty revision 0.
        """

    async def config_revision(self, revision: int) -> StoredConfig:
        """Return the revision `revision` of the hot configuration. Raise Missing if it does not exist."""

    async def config_revisions(self, *, before: int, max_count: int) -> Sequence[StoredConfig]:
        """Return up to `max_count` revisions of the hot configuration below the number `before`, newest first."""

    async def put_config(
        self,
        wanted: HotConfig,
        *,
        expected: frozenset[str] | None,
        actor: Actor,
        now_ms: int,
        document: str | None = None,
    ) -> tuple[StoredConfig, bool]:
        """Store `wanted` as a new revision of the hot configuration, unless the newest revision equals it.

        Return the newest revision afterwards, and True if it is new.

        - `document`: the text to store, which may have fields of a later version. None: `wanted` as JSON.
        - `expected`: tags (HTTP ETags) of revisions. Raise Stale if the newest revision has none of them. None: no
          condition.
        """

    async def drains(self) -> Drains:
        """Return the ids of the members that operators have ordered to drain, whether they run or not."""

    async def drain(self, role: MemberRole, member: str, *, actor: Actor, now_ms: int) -> bool:
        """Order a member to drain. Return True if it was not ordered before.

        Raise Refused if the number of members that are ordered to drain is at its limit.
        """

    async def undrain(self, role: MemberRole, member: str, *, actor: Actor, now_ms: int) -> bool:
        """Withdraw the order to a member to drain. Return True if there was one."""

    async def forget_drains(self, missing: Drains, *, before_ms: int, now_ms: int) -> Drains:
        """Withdraw the orders to drain that are older than `before_ms` and name a member in `missing`.

        Return the members of the withdrawn orders. Times are Unix ms.
        """

    async def exclusions(self, *, after: int, max_count: int, target: str | None = None) -> Sequence[StoredExclusion]:
        """Return up to `max_count` exclusions with ids greater than `after`, ordered by id.

        Ended exclusions are included. If `target` (in canonical form) is given, return only the exclusion with that
        target.
        """

    async def exclusion(self, exclusion_id: int) -> StoredExclusion:
        """Return the exclusion with this id, whether it has ended or not. Raise Missing if there is none."""

    async def add_exclusion(
        self,
        target: str,
        terms: ExclusionTerms,
        partitions: int,
        *,
        actor: Actor,
        now_ms: int,
        repeatable: Repeatable | None = None,
    ) -> StoredExclusion:
        """Store an exclusion of `target`, which is in canonical form. Return the stored exclusion.

        Also store a command of the kind `exclude`. By this command, the owner of each of the `partitions` partitions
        applies the exclusion to the URLs that the partition already has.

        If the request is repeated (`repeatable`), return the exclusion as it was first created. Raise Exists if another
        exclusion has the target. Raise Full if the number of exclusions, or the bytes of all targets, would exceed the
        limit.
        """

    async def put_exclusion(
        self,
        exclusion_id: int,
        terms: ExclusionTerms,
        partitions: int,
        *,
        expected: frozenset[str] | None,
        actor: Actor,
        now_ms: int,
    ) -> StoredExclusion:
        """Replace the terms of an exclusion. Return the exclusion. If the terms are the same, change nothing.

        Also store a command of the kind `exclude`. By this command, the owner of each of the `partitions` partitions
        applies the exclusion to the URLs that the partition already has.

        Raise Missing if the exclusion does not exist, and Stale if its present ETag is not in `expected`.
        """

    async def delete_exclusion(
        self, exclusion_id: int, *, expected: frozenset[str] | None, actor: Actor, now_ms: int
    ) -> None:
        """Delete an exclusion, so that it no longer applies to any crawl.

        Raise Missing, or Stale if its present ETag is not in `expected`.
        """

    async def exclusions_revision(self) -> int:
        """Return the revision of the list of exclusions, which each change raises. 0 means it was never changed."""

    async def exclusions_in_force(self, now_ms: int) -> ExclusionList:
        """Return the exclusions that have not ended at `now_ms` (Unix ms).

        `to_command` of the result has the exclusions whose command (`exclude`) was not sent to the owners yet.
        """

    async def exclusion_commanded(self, exclusion_id: int, revision: int) -> None:
        """Record that the owners were sent the command (`exclude`) for revision `revision` of an exclusion."""

    async def host_policies(self, *, after: str, max_count: int) -> Sequence[StoredHostPolicy]:
        """Return up to `max_count` policies of hosts whose names sort after `after`, ordered by the host's name."""

    async def host_policy(self, host: str) -> StoredHostPolicy:
        """Return the policy of a host. Raise Missing if the host has no policy."""

    async def put_host_policy(
        self,
        host: str,
        partition: Partition,
        spec: HostPolicySpec,
        limits: HostLimits,
        *,
        expected: frozenset[str] | None,
        actor: Actor,
        now_ms: int,
        new: bool = False,
    ) -> tuple[StoredHostPolicy, PutOutcome]:
        """Store `spec` as the policy of a host, and store the command by which the host's owner applies the policy.

        Return the stored policy, and what was done. If the host has the same policy already, write nothing.

        - `host`: the name of the host, in canonical form (`host_named` in shared.domain.web.url).
        - `partition`: the partition of the host.
        - `limits`: the delay, block and slots that `spec` sets, as numbers. The command contains them.
        - `expected`: raise Missing if the host has no policy, or Stale if the policy's ETag is not one of these. None:
          do not check.
        - `new`: raise Stale if the host has a policy, even if it is the same.

        Raise Full if the number of policies is at its limit.
        """

    async def delete_host_policy(self, host: str, *, expected: frozenset[str] | None, actor: Actor, now_ms: int) -> str:
        """Delete the policy of a host. Return the id of the command by which the host's owner stops applying it.

        Raise Missing, or Stale if its present ETag is not in `expected`.
        """

    async def host_policy_commands(self, after: int) -> Sequence[HostPolicyCommand]:
        """Return the next commands of host policies that are not published yet, ordered by revision.

        Only commands with a revision greater than `after` are returned, and at most a fixed number of them.
        """

    async def host_policy_commanded(self, revision: int) -> None:
        """Record that the command for the host policy's change with this revision was published.

        `host_policy_commands` then no longer returns this command.
        """

    async def seed_sets(self, crawl: str, *, after: str, max_count: int) -> Sequence[StoredSeedSet]:
        """Return up to `max_count` seed sets of a crawl with names after `after`, ordered by name.

        Leave out their seeds. `crawl` is the name of the crawl. Raise Missing if it does not exist.
        """

    async def seed_set(self, crawl: str, name: str) -> StoredSeedSet:
        """Return the seed set `name` of the crawl named `crawl`.

        Raise Missing if the crawl or the set does not exist.
        """

    async def put_seed_set(
        self,
        crawl: str,
        name: str,
        spec: SeedSetSpec,
        partitions: int,
        *,
        expected: frozenset[str] | None,
        new: bool,
        actor: Actor,
        now_ms: int,
    ) -> tuple[StoredSeedSet, PutOutcome]:
        """Create or replace a seed set of a crawl, and store the command that applies the change.

        Return the set, and what was done. If the set is the same, change nothing.

        - `crawl`: the name of the crawl. Raise Missing if it does not exist.
        - `partitions`: the cluster's number of partitions.
        - `expected`: raise Missing if the set does not exist, or Stale if its ETag is not one of these. None: do not
          check.
        - `new`: raise Stale if the set exists.

        Raise Full if the crawl's number of sets is at its limit.
        """

    async def delete_seed_set(
        self,
        crawl: str,
        name: str,
        partitions: int,
        *,
        expected: frozenset[str] | None,
        actor: Actor,
        now_ms: int,
    ) -> str:
        """Delete a seed set of the crawl named `crawl`. Return the id of the command that withdraws its seeds.

        Raise Missing, or Stale if its present ETag is not in `expected`. `partitions`: the cluster's number of
        partitions.
        """

    async def seed_set_commands(self, after: int) -> Sequence[SeedSetCommand]:
        """Return the next changes of seed sets that are not published yet, ordered by revision.

        Only changes with a revision greater than `after` are returned, and at most a fixed number of them.
        """

    async def seed_set_commanded(self, revision: int) -> None:
        """Record that the command for the seed set's change with this revision was published.

        `seed_set_commands` then no longer returns this change.
        """
