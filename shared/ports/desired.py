"""The port to what operators want of the members: the hot configuration, and who is to drain.

Every method is one transaction. Errors as for the catalog: Missing, Stale; Transient, Permanent and Unusable as for the
store. The leader publishes what is kept here (`api.control.publishing`); members follow what is published.
"""

from collections.abc import Sequence
from typing import Protocol

from shared.domain.config import Drains, HotConfig, MemberRole, StoredConfig
from shared.domain.declared import Actor


class Desired(Protocol):
    """See the module."""

    async def config(self) -> StoredConfig:
        """The newest revision; revision 0, which says nothing, before there was any."""
        ...

    async def config_revision(self, revision: int) -> StoredConfig:
        """Missing."""
        ...

    async def config_revisions(self, *, before: int, most: int) -> Sequence[StoredConfig]:
        """Newest first, those below the number `before`."""
        ...

    async def put_config(
        self, wanted: HotConfig, *, expected: frozenset[str] | None, actor: Actor, now_ms: int
    ) -> tuple[StoredConfig, bool]:
        """Make the configuration be as wanted; whether that changed anything, and so made a revision.

        `expected`: the tags that the caller may have seen, None to write over whatever is there; else Stale.
        """
        ...

    async def drains(self) -> Drains:
        """Who is to drain, whether they live or not."""
        ...

    async def drain(self, role: MemberRole, member: str, *, actor: Actor, now_ms: int) -> bool:
        """Have a member drain; whether that is new. Refused while too many others are drained."""
        ...

    async def undrain(self, role: MemberRole, member: str, *, actor: Actor, now_ms: int) -> bool:
        """Let a member take up work again; whether it was drained."""
        ...

    async def forget_drains(self, living: Drains, *, before_ms: int, now_ms: int) -> Drains:
        """Forget drains asked for before `before_ms` of members that are not among the living; those forgotten."""
        ...
