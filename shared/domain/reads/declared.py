"""Declared crawls as the database stores them, and the filters and conditions of requests about crawls."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from shared.domain.crawl.override_spec import Override
from shared.domain.crawl.priority_rules import PriorityRules
from shared.domain.crawl.recrawl_spec import Recrawl
from shared.domain.crawl.spec import Extract, Scope
from shared.domain.crawl.state import CrawlStatus, DesiredRun, drifted
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId, Revision


class _AnyTag(frozenset[str]):
    """A set that contains every tag (HTTP ETag)."""

    def __contains__(self, tag: object) -> bool:
        return True


ANY_TAG: Final[frozenset[str]] = _AnyTag()
"""The condition of a request with `If-Match: *`: the object must exist, in any version."""


class PutOutcome(StrEnum):
    """What a PUT of a declared object did."""

    CREATED = "created"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"
    """The object was the same already, so nothing was written."""


class Stamp(NamedTuple):
    """Shows whether a crawl has changed since it was last read. A caller compares the old stamp with a new one:

    - Equal: every value that the API shows of the crawl is still the same.
    - Different: the crawl must be read again.

    `version`: grows with every change that an operator makes, as in DeclaredCrawl.
    """

    crawl_id: CrawlId
    version: int
    state: CrawlState
    finished_reason: str | None
    started_at_ms: int | None
    finished_at_ms: int | None
    active_ms: int


class _Allowing(msgspec.Struct, frozen=True):
    allow: tuple[str, ...] = ()


class SpecSummary(msgspec.Struct, frozen=True):
    """The parts of a stored spec that a list of crawls has instead of the whole spec, which may be large.

    They are the pool, the networks of `egress.allow`, and the rules that contain patterns.
    """

    pool: str = "default"
    scope: Scope = Scope()
    extract: Extract = Extract()
    recrawl: Recrawl = Recrawl()
    priority: PriorityRules = ()
    overrides: tuple[Override, ...] = ()
    egress: _Allowing = _Allowing()


class _Seeded(msgspec.Struct, frozen=True):
    seeds: tuple[msgspec.Raw, ...] = ()


_summary: Final = msgspec.json.Decoder(SpecSummary)
_seeded: Final = msgspec.json.Decoder(_Seeded)


def summary_of(spec: str) -> SpecSummary:
    """Return the summary of a spec, given as JSON. `spec` may also be the JSON of a summary."""
    return _summary.decode(spec)


@dataclass(frozen=True, slots=True)
class DeclaredCrawl:
    """A crawl as operators declared it, with its state.

    - `version` grows with every change that an operator makes, of the spec or of anything else.
    - `spec` is the JSON of the active revision. In a list it may be the JSON of its summary.
    - `seeds`: how many seeds the spec names; 0 if they were not counted.
    - `refresh_ms`: when the crawl's present refresh began (Unix ms), 0 if it does no refresh.
    """

    crawl_id: CrawlId
    name: str
    revision: Revision
    version: int
    state: CrawlState
    spec: str
    labels: Mapping[str, str]
    resumes_as: CrawlState | None = None
    finished_reason: str | None = None
    created_at_ms: int = 0
    started_at_ms: int | None = None
    finished_at_ms: int | None = None
    active_ms: int = 0
    seeds: int = 0
    desired: DesiredRun | None = None
    refresh_ms: int = 0

    @property
    def status(self) -> CrawlStatus:
        """The crawl's state, its finish reason, and the state that `resume` leads to."""
        return CrawlStatus(self.state, self.resumes_as, self.finished_reason)

    @property
    def drifted(self) -> bool:
        """True if a verb made the crawl do something else than `desired` declares."""
        return drifted(self.desired, self.status)

    @property
    def tag(self) -> str:
        """The tag (HTTP ETag) of this version of this crawl.

        A crawl that was deleted and created again has another tag.
        """
        return f"{self.crawl_id}-{self.version}"

    @property
    def stamp(self) -> "Stamp":
        """The crawl's stamp. It changes whenever a value changes that the API shows of the crawl."""
        ends = (self.finished_reason, self.started_at_ms, self.finished_at_ms, self.active_ms)
        return Stamp(self.crawl_id, self.version, self.state, *ends)


def summarized(crawl: DeclaredCrawl) -> DeclaredCrawl:
    """Return the crawl with the number of its seeds, and with the summary of its spec instead of the whole spec."""
    return replace(counted(crawl), spec=msgspec.json.encode(summary_of(crawl.spec)).decode())


def counted(crawl: DeclaredCrawl) -> DeclaredCrawl:
    """Return the crawl with `seeds` set to the number of seeds in its spec."""
    return replace(crawl, seeds=len(_seeded.decode(crawl.spec).seeds))


@dataclass(frozen=True, slots=True)
class Declaration:
    """An operator's declaration of a crawl: its name, its spec as the JSON of `encode_spec`, and its labels.

    `desired`: whether the crawl is to run. None: only verbs and schedules start and stop it.
    """

    name: str
    spec: str
    labels: Mapping[str, str] = field(default_factory=dict)
    desired: DesiredRun | None = None


@dataclass(frozen=True, slots=True)
class StoredRevision:
    """A revision of a crawl's spec, active or earlier: its number, the spec as JSON, and when it was stored."""

    revision: Revision
    spec: str
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class CrawlFilter:
    """Which crawls to list: those that meet all conditions.

    A condition at its default (None or empty) admits every crawl. A crawl must have all of `labels`, with these values.
    """

    state: CrawlState | None = None
    name_prefix: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PageFilter:
    """Which stored pages to list: those that meet all conditions. A condition that is None admits every page.

    `mime` is a media type as stored: lower case, no parameters.
    """

    host: str | None = None
    status: int | None = None
    mime: str | None = None


@dataclass(frozen=True, slots=True)
class Actor:
    """The author of a request (the API key's id and name) and the request's id, as the audit log records them."""

    key_id: str
    name: str
    request_id: str

    def __str__(self) -> str:
        return f"{self.name} ({self.key_id})"


@dataclass(frozen=True, slots=True)
class Repeatable:
    """The identity of a create request that a client may repeat: its Idempotency-Key, and a digest of the request."""

    key: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class CommandProgress:
    """A command, and its progress in the partitions of the cluster.

    - `applied`: how many partitions have applied the command, out of `partitions`.
    - `at_ms`: when the command was made (Unix ms).
    """

    id: str
    kind: str
    crawl_id: CrawlId
    applied: int
    partitions: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class HostQueue:
    """A crawl's queue on one host: the crawl's name, the number of its URLs by state, and the number of its pages."""

    crawl: str
    queued: int
    waiting: int
    leased: int
    pages: int


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """A dead letter for display: a URL or a message that was given up. `url` is None for a message."""

    id: int
    partition: int
    crawl_id: CrawlId | None
    kind: str
    at_ms: int
    url: str | None
    evidence: str

    @property
    def tag(self) -> str:
        """The tag (HTTP ETag) of the dead letter, which never changes."""
        return f"letter-{self.id}"
