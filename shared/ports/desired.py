"""The port to the members' desired state: the hot configuration, and which members are to drain.

Every method is one transaction. Errors: Missing and Stale as for the catalog, Transient, Permanent and Unusable as for
the store. The leader publishes what is stored here (`api.leader.config_publisher`); members follow what is published.
"""

from collections.abc import Sequence
from typing import Protocol

from shared.domain.ops.config import Drains, HotConfig, MemberRole, StoredConfig
from shared.domain.reads.declared import Actor


class Desired(Protocol):
    """See the module."""

    async def config(self) -> StoredConfig:
        """Return the newest revision, or the empty revision 0 if there is none."""
        ...

    async def config_revision(self, revision: int) -> StoredConfig:
        """Return the revision, or raise Missing."""
        ...

    async def config_revisions(self, *, before: int, max_count: int) -> Sequence[StoredConfig]:
        """Return up to `max_count` revisions below the number `before`, newest first."""
        ...

    async def put_config(
        self, wanted: HotConfig, *, expected: frozenset[str] | None, actor: Actor, now_ms: int
    ) -> tuple[StoredConfig, bool]:
        """Store the configuration. Return it, and True if it differed and so made a revision.

        `expected` holds the tags that the caller accepts as current, else Stale. None overwrites any revision.
        """
        ...

    async def drains(self) -> Drains:
        """Return the members that are to drain, alive or not."""
        ...

    async def drain(self, role: MemberRole, member: str, *, actor: Actor, now_ms: int) -> bool:
        """Order a member to drain. Return True if that is new. Raise Refused while too many others are drained."""
        ...

    async def undrain(self, role: MemberRole, member: str, *, actor: Actor, now_ms: int) -> bool:
        """Allow a member to work again. Return True if it was drained."""
        ...

    async def forget_drains(self, living: Drains, *, before_ms: int, now_ms: int) -> Drains:
        """Delete drains ordered before `before_ms` of members not in `living`. Return those deleted."""
        ...
