"""The port to the members' desired state: the hot configuration, and which members are to drain.

Every method is one transaction. Errors: Missing and Stale as for the catalog, Transient, Permanent and Unusable as for
the store. The leader publishes what is stored here (`api.leader.config_publisher`); members follow what is published.
"""

from collections.abc import Sequence
from typing import Protocol

from shared.domain.ops.config import Drains, HotConfig, MemberRole, StoredConfig
from shared.domain.reads.declared import Actor


class Desired(Protocol):
    """The members' desired state in the database: revisions of the hot configuration, and the members to drain."""

    async def config(self) -> StoredConfig:
        """Return the newest revision of the hot configuration, or the empty revision 0 if there is none."""
        ...

    async def config_revision(self, revision: int) -> StoredConfig:
        """Return the hot configuration's revision of that number. Raise Missing if it does not exist."""
        ...

    async def config_revisions(self, *, before: int, max_count: int) -> Sequence[StoredConfig]:
        """Return up to `max_count` revisions of the hot configuration below the number `before`, newest first."""
        ...

    async def put_config(
        self, wanted: HotConfig, *, expected: frozenset[str] | None, actor: Actor, now_ms: int
    ) -> tuple[StoredConfig, bool]:
        """Store `wanted` as a new revision, unless the newest equals it. Return the newest revision, and True if it is
        new.

        `expected`: tags (HTTP ETags) of revisions, one of which must be the newest, else raise Stale. None accepts any.
        """
        ...

    async def drains(self) -> Drains:
        """Return the ids of the members that are to drain, alive or not."""
        ...

    async def drain(self, role: MemberRole, member: str, *, actor: Actor, now_ms: int) -> bool:
        """Order a member to drain. Return True if that is new. Raise Refused while too many others are to drain."""
        ...

    async def undrain(self, role: MemberRole, member: str, *, actor: Actor, now_ms: int) -> bool:
        """Withdraw the order that a member drains. Return True if there was one."""
        ...

    async def forget_drains(self, living: Drains, *, before_ms: int, now_ms: int) -> Drains:
        """Withdraw orders to drain that are older than `before_ms`, of members not in `living`. Return the members."""
        ...
