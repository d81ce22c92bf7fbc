"""Host policies as operators declare them and the database stores them: the delay, block and slots of a host. Pure.

A policy holds for every crawl. It only makes the crawler gentler: the longest delay, the later end of a block and the
fewest slots count.
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
    """Why no crawl sends a request to a host, and until when, as text. None: until the policy changes."""

    reason: str
    until: str | None = None


class HostPolicySpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was declared of a host. None: the policy does not set it."""

    delay_s: Annotated[float, Meta(ge=0, le=MAX_DELAY_S)] | None = None
    block: HostBlock | None = None
    slots: Annotated[int, Meta(ge=1, le=MAX_SLOTS)] | None = None


@dataclass(frozen=True, slots=True)
class HostLimits:
    """What a policy sets for the owner of its host. `delay_ms`, `blocked_until_ms` and `slots`: 0 sets nothing."""

    delay_ms: int = 0
    blocked_until_ms: int = 0
    slots: int = 0


def limits_of(spec: HostPolicySpec, until_ms: int | None) -> HostLimits:
    """Return what the spec sets. `until_ms`: the end of its block, None if it has none. The delay is rounded up."""
    blocked_until_ms = 0 if spec.block is None else FOREVER_MS if until_ms is None else until_ms
    return HostLimits(math.ceil(round((spec.delay_s or 0.0) * 1000, 6)), blocked_until_ms, spec.slots or 0)


@dataclass(frozen=True, slots=True)
class StoredHostPolicy:
    """A host policy as stored. `revision` is that of its last change, and greater than that of all earlier changes."""

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
    """A command to the owner of `host` that is not published yet. `revision`: that of the change."""

    revision: int
    host: str
    partition: int


def command_id_of(revision: int) -> str:
    """Return the id of the command that applies the change of this revision."""
    return f"host-policy-{revision}"
