"""Host policies as operators declare them and the database stores them: the delay, block and slots of a host. No I/O.

A policy applies to every crawl. It can only make the crawler gentler. The spec, robots.txt
or a back-off may set a value, too. Then the longest delay, the latest end of a block and the least number of slots
apply.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from shared.domain.frontier.politeness import FOREVER_MS

MAX_HOST_POLICIES: Final = 100_000
MAX_DELAY_S: Final = 86_400.0
MAX_SLOTS: Final = 64


class HostBlock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A block: no crawl sends a request to the host.

    `until`: when the block ends, a time in ISO 8601 with a zone. None: when the policy is changed or deleted.
    """

    reason: str
    until: str | None = None


class HostPolicySpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A host policy as its operator declared it. A field that is None is not set by the policy."""

    delay_s: Annotated[float, Meta(ge=0, le=MAX_DELAY_S)] | None = None
    block: HostBlock | None = None
    slots: Annotated[int, Meta(ge=1, le=MAX_SLOTS)] | None = None


@dataclass(frozen=True, slots=True)
class HostLimits:
    """The values of a host policy that the owner applies to the host. 0: the policy does not set the value."""

    delay_ms: int = 0
    blocked_until_ms: int = 0
    slots: int = 0


def limits_of(spec: HostPolicySpec, until_ms: int | None) -> HostLimits:
    """Return the limits that a policy sets. The delay is rounded up to whole milliseconds.

    `until_ms`: when the policy's block ends (Unix ms). None: never. Ignored if the policy has no block.
    """
    blocked_until_ms = 0 if spec.block is None else FOREVER_MS if until_ms is None else until_ms
    return HostLimits(math.ceil(round((spec.delay_s or 0.0) * 1000, 6)), blocked_until_ms, spec.slots or 0)


@dataclass(frozen=True, slots=True)
class StoredHostPolicy:
    """A host policy as stored. `revision` numbers the changes of all policies: a later change has a greater number."""

    host: str
    spec: HostPolicySpec
    limits: HostLimits
    revision: int
    created_at_ms: int
    created_by: str
    changed_at_ms: int
    changed_by: str

    @property
    def tag(self) -> str:
        """The HTTP ETag of this version."""
        return f"host-policy-{self.revision}"

    @property
    def command_id(self) -> str:
        """The id of the command that applies this version at the host's owner."""
        return command_id_of(self.revision)


@dataclass(frozen=True, slots=True)
class HostPolicyCommand:
    """The command for a change of a host policy, not published yet to the owner of `host`.

    `revision` is the revision of the change, `partition` the partition of the host.
    """

    revision: int
    host: str
    partition: int


def command_id_of(revision: int) -> str:
    """Return the id of the command for the change of a host policy with this revision."""
    return f"host-policy-{revision}"
