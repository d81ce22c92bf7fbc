"""Exclusions as operators declare them and the database stores them. `shared.domain.crawl.exclusions` applies them."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.domain.crawl.exclusions import TargetKind, kind_of


@dataclass(frozen=True, slots=True)
class ExclusionTerms:
    """The fields of an exclusion that can be changed.

    - `reason` and `requested_by`: why it was made, and who asked for it.
    - `until_ms`: when it ends (Unix ms); None means never.
    - `withdraw`: stored pages of the excluded URLs are also taken out of lists, exports, the index and items.
    """

    reason: str
    requested_by: str = ""
    until_ms: int | None = None
    withdraw: bool = False


@dataclass(frozen=True, slots=True)
class StoredExclusion:
    """An exclusion as stored. `target` is in canonical form.

    `revision` is the revision of the list of exclusions at which this one last changed.
    """

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
        return kind_of(self.target)

    @property
    def command_id(self) -> str:
        """The id of the command that applies this version of the exclusion to queued URLs and stored pages."""
        return command_id_of(self.exclusion_id, self.revision)

    def ended(self, now_ms: int) -> bool:
        return self.terms.until_ms is not None and self.terms.until_ms <= now_ms


def command_id_of(exclusion_id: int, revision: int) -> str:
    """Return the id of the command EXCLUDE for this revision of an exclusion."""
    return f"exclude-{exclusion_id}-{revision}"


@dataclass(frozen=True, slots=True)
class ExclusionList:
    """The exclusions in force at one time, as they are published.

    - `targets`: their hosts, URL prefixes and address ranges, in the order of creation.
    - `ends_ms`: the time at which the next of them ends (Unix ms). None: none of them ever ends.
    - `to_command`: exclusions whose command has not been sent to the owners yet.
    """

    revision: int
    targets: Sequence[str]
    ends_ms: int | None
    to_command: Sequence[StoredExclusion]
