"""The port to desired state: hot configuration, members that are to drain, exclusions, host policies and seed sets.

Every method is one transaction. Errors: Missing, Exists, Full and Stale as for the catalog, Transient, Permanent and
Unusable as for the store. The leader publishes what is stored here (`api.leader.config_publisher` and
`exclusion_publisher`); members follow what is published. It sends the owners of hosts their policies
(`host_policy_publisher`), and the owners of URLs the changes of seed sets (`seed_set_publisher`).
"""

from collections.abc import Sequence
from typing import Protocol

from shared.domain.ids import Partition
from shared.domain.ops.config import Drains, HotConfig, MemberRole, StoredConfig
from shared.domain.ops.exclusions import ExclusionList, ExclusionTerms, StoredExclusion
from shared.domain.ops.host_policies import HostLimits, HostPolicyCommand, HostPolicySpec, StoredHostPolicy
from shared.domain.ops.seed_sets import SeedSetCommand, SeedSetSpec, StoredSeedSet
from shared.domain.reads.declared import Actor, Repeatable


class Desired(Protocol):
    """The desired state in the database: hot configuration, members to drain, exclusions, host policies, seed sets."""

    async def config(self) -> StoredConfig:
        """Return the newest revision of the hot configuration, or the empty revision 0 if there is none."""

    async def config_revision(self, revision: int) -> StoredConfig:
        """Return the hot configuration's revision of that number. Raise Missing if it does not exist."""

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
        """Store `wanted` as a new revision, unless the newest equals it. Return the newest revision, and True if it is
        new.

        `document`: the text to store, which may have fields of a later version. None: `wanted` as JSON.
        `expected`: tags (HTTP ETags) of revisions, one of which must be the newest, else raise Stale. None accepts any.
        """

    async def drains(self) -> Drains:
        """Return the ids of the members that are to drain, alive or not."""

    async def drain(self, role: MemberRole, member: str, *, actor: Actor, now_ms: int) -> bool:
        """Order a member to drain. Return True if that is new. Raise Refused while too many others are to drain."""

    async def undrain(self, role: MemberRole, member: str, *, actor: Actor, now_ms: int) -> bool:
        """Withdraw the order that a member drains. Return True if there was one."""

    async def forget_drains(self, living: Drains, *, before_ms: int, now_ms: int) -> Drains:
        """Withdraw orders to drain that are older than `before_ms`, of members not in `living`. Return the members."""

    async def exclusions(self, *, after: int, max_count: int, target: str | None = None) -> Sequence[StoredExclusion]:
        """Return up to `max_count` exclusions after the id `after`, ordered by id, ended ones included.

        With `target` (canonical) only the one that has it.
        """

    async def exclusion(self, exclusion_id: int) -> StoredExclusion:
        """Return an exclusion, ended or not. Raise Missing if there is none."""

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
        """Store an exclusion of a canonical `target`, and record its command to `partitions` partitions.

        Return the earlier answer if the request is repeated. Raise Exists if another exclusion has the target, Full at
        the limits of number and bytes.
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
        """Replace the terms of an exclusion and record its command, unless nothing differs. Raise Missing or Stale."""

    async def delete_exclusion(
        self, exclusion_id: int, *, expected: frozenset[str] | None, actor: Actor, now_ms: int
    ) -> None:
        """Delete an exclusion. Raise Missing or Stale."""

    async def exclusions_revision(self) -> int:
        """Return the revision of the list of exclusions, 0 if it was never changed."""

    async def exclusions_in_force(self, now_ms: int) -> ExclusionList:
        """Return the exclusions that have not ended at `now_ms`, and those whose command is to be sent."""

    async def exclusion_commanded(self, exclusion_id: int, revision: int) -> None:
        """Record that the command of an exclusion at `revision` was sent to all its partitions."""

    async def host_policies(self, *, after: str, max_count: int) -> Sequence[StoredHostPolicy]:
        """Return up to `max_count` host policies after the host `after`, ordered by host."""

    async def host_policy(self, host: str) -> StoredHostPolicy:
        """Return the policy of a host. Raise Missing if it has none."""

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
    ) -> tuple[StoredHostPolicy, bool]:
        """Store the policy of a canonical host with the command that applies it, unless nothing differs.

        Return it, and True if it was created. With `new`, raise Stale if the host has a policy, even the same. Raise
        Missing, Stale, or Full at the limit of number.
        """

    async def delete_host_policy(self, host: str, *, expected: frozenset[str] | None, actor: Actor, now_ms: int) -> str:
        """Delete the policy of a host. Return the id of the command that applies this. Raise Missing or Stale."""

    async def host_policy_commands(self, after: int) -> Sequence[HostPolicyCommand]:
        """Return some commands after a revision that are not published yet, ordered by revision."""

    async def host_policy_commanded(self, revision: int) -> None:
        """Record that the command of this revision is published."""

    async def seed_sets(self, crawl: str, *, after: str, max_count: int) -> Sequence[StoredSeedSet]:
        """Return up to `max_count` sets of the crawl after the name `after`, by name, without their seeds.

        Raise Missing if there is no such crawl.
        """

    async def seed_set(self, crawl: str, name: str) -> StoredSeedSet:
        """Return a seed set of the crawl of this name. Raise Missing if there is no such crawl or set."""

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
    ) -> tuple[StoredSeedSet, bool]:
        """Create or replace a set of a crawl with the command that applies the change, unless nothing differs.

        Return it, and True if it was created. Raise Missing, Stale, or Full at the limit of number. With `new` also
        raise Stale if the set exists.
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
        """Delete a seed set. Return the id of the command that withdraws its seeds. Raise Missing or Stale."""

    async def seed_set_commands(self, after: int) -> Sequence[SeedSetCommand]:
        """Return some changes of seed sets after a revision that are not published yet, ordered by revision."""

    async def seed_set_commanded(self, revision: int) -> None:
        """Record that the change of this revision is published."""
