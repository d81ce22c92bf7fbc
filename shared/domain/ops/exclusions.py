"""Exclusions as operators declare them and the database stores them. `shared.domain.crawl.exclusions` applies them."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.domain.crawl.exclusions import TargetKind, read_target


@dataclass(frozen=True, slots=True)
class ExclusionTerms:
    """What may be changed of an exclusion: the reason, the requester, and when it ends (None: never).

    `withdraw`: what is stored of its URLs is withdrawn, too.
    """

    reason: str
    requested_by: str = ""
    until_ms: int | None = None
    withdraw: bool = False


@dataclass(frozen=True, slots=True)
class StoredExclusion:
    """An exclusion as stored. `target` is in canonical form. `revision` is that of the list at its last change."""

    exclusion_id: int
    target: str
    terms: ExclusionTerms
    revision: int
    created_at_ms: int
    created_by: str

    @property
    def tag(self) -> str:
        """The HTTP ETag of this version."""
        return f"{self.exclusion_id}-{self.revision}"

    @property
    def kind(self) -> TargetKind:
        return read_target(self.target).kind

    @property
    def command_id(self) -> str:
        """The id of the command that applies this version to what is queued and stored."""
        return f"exclude-{self.exclusion_id}-{self.revision}"

    def ended(self, now_ms: int) -> bool:
        return self.terms.until_ms is not None and self.terms.until_ms <= now_ms


@dataclass(frozen=True, slots=True)
class ExclusionList:
    """The exclusions in force at a time, for publication. `targets` are in the order of their creation.

    `ends_ms`: when the next of them ends, None if none does. `to_command`: exclusions whose command was not sent.
    """

    revision: int
    targets: Sequence[str]
    ends_ms: int | None
    to_command: Sequence[StoredExclusion]
