"""The request and response bodies of crawls, their revisions, plans of changes, and commands."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec
from pydantic import ConfigDict, Field, PlainValidator, StringConstraints, WithJsonSchema

from api.members.control_plane import ControlPlane
from api.members.member_stats import MemberStats, PressureAt
from api.schemas.changes import RecrawlPlan
from api.schemas.model import ONE_LINE, Model, RequestModel, field, moment_of
from api.schemas.pressure import ResourcePressure, pressure_body
from shared.domain.crawl.scope_change import BY_SCOPE, ScopeChange
from shared.domain.crawl.spec import LABEL, LABEL_WORDS, CrawlSpec
from shared.domain.crawl.spec_diff import Difference
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.crawl.spec_rules import refused_pattern
from shared.domain.crawl.state import DesiredRun, allowed_verbs
from shared.domain.explain.excluded_links import UNLISTED
from shared.domain.frontier.states import CrawlState
from shared.domain.ops.egress import closed_networks
from shared.domain.ops.published_specs import size_problem
from shared.domain.reads.declared import CommandProgress, DeclaredCrawl, StoredRevision, summary_of
from shared.ports.clock import Clock

NAME: Final = LABEL
CrawlName = Annotated[
    str, StringConstraints(pattern=NAME), Field(description=f"The crawl's name: {LABEL_WORDS}.", examples=["docs"])
]
_Label = Annotated[str, StringConstraints(pattern=NAME)]
_LabelValue = Annotated[str, StringConstraints(max_length=255, pattern=ONE_LINE)]
MAX_LABELS: Final = 64
Labels = Annotated[
    dict[_Label, _LabelValue],
    Field(
        max_length=MAX_LABELS,
        description="Labels by which crawls can be listed, at most 64.",
        examples=[{"team": "search"}],
    ),
]
SpecJson = Annotated[
    dict[str, Any],
    WithJsonSchema({"x-orb-schema": "CrawlSpec"}),
    Field(description="What to crawl and how. Every field but `seeds` has a default."),
]
"""The spec as plain JSON. The OpenAPI document takes its schema from CrawlSpec."""


@dataclass(frozen=True, slots=True)
class GivenSpec:
    """A valid spec from a request. `name` is the name of the crawl if the spec contains one, else None."""

    spec: CrawlSpec
    name: str | None


def given_spec(data: Any) -> GivenSpec:
    """Check a spec from a request body and return it. Raise SpecError with all problems of the spec.

    SpecError is a ValueError, so pydantic reports it together with the problems of other fields of the body.
    """
    spec = parse_spec(data)
    return GivenSpec(spec, spec.name if "name" in data else None)


_WantedSpec = Annotated[
    GivenSpec,
    PlainValidator(given_spec),
    WithJsonSchema({"x-orb-schema": "CrawlSpec"}),
    Field(description="What to crawl and how. Every field but `seeds` has a default."),
]

EXAMPLE: Final[dict[str, Any]] = {
    "name": "docs",
    "labels": {"team": "search"},
    "spec": {
        "seeds": ["https://example.org/"],
        "scope": {"mode": "host", "max_depth": 5},
        "politeness": {"delay_s": 1.0},
        "budget": {"max_pages": 10000},
    },
}
_AT_WORK: Final = (CrawlState.SEEDING, CrawlState.RUNNING)

Desired = Annotated[
    Literal["running", "paused"] | None,
    Field(
        description="Whether the crawl runs. `running` starts or resumes it, `paused` keeps it from running. Schedules "
        "may not start, pause or resume it then. Default: unset, so verbs and schedules decide.",
        examples=["running"],
    ),
]


class CrawlInput(RequestModel):
    """The body of a request that creates a crawl."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    name: CrawlName
    spec: _WantedSpec
    labels: Labels = Field(default_factory=dict)
    desired: Desired = None
    start: bool = Field(
        True,
        description="True: start at once. False: the crawl waits for the verb `start`. It is ignored if `desired` is "
        "set.",
    )


class CrawlReplacement(RequestModel):
    """The body of a PUT of a crawl: its whole spec and all its labels. They replace the present ones."""

    model_config = ConfigDict(json_schema_extra={"examples": [{name: EXAMPLE[name] for name in ("labels", "spec")}]})

    spec: _WantedSpec
    labels: Labels = Field(default_factory=dict)
    desired: Desired = None
    start: bool = Field(
        True,
        description="True: start at once. False: the crawl waits for the verb `start`. It is ignored if the crawl "
        "exists, or if `desired` is set.",
    )


class CrawlPatch(RequestModel):
    """A merge patch (RFC 7396) of `spec`, `labels` and `desired`.

    A null removes a field, which then has its default.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{"spec": {"budget": {"max_pages": 50000}}}]})

    spec: Annotated[
        dict[str, Any],
        Field(
            description="Fields of the spec to change; null restores the default.",
            examples=[{"budget": {"max_pages": 50000}}],
            default_factory=dict,
        ),
    ]
    labels: dict[_Label, _LabelValue | None] = Field(
        default_factory=dict, description="Labels to set; null removes one.", examples=[{"team": "search", "old": None}]
    )
    desired: Desired = None


class _CrawlState(Model):
    """The fields that all views of a crawl have: its name, labels and state, but not its spec."""

    name: CrawlName
    id: int = field("The crawl's number. It is never reused, even if the name is.", 7)
    revision: int = field("The number of the spec's revision. Every change of the spec increments it.", 1)
    state: CrawlState = field("The state of the crawl.")
    finished_reason: str | None = field(
        "Why the crawl finished: `complete`, `cancelled`, `refreshed` or the budget that ended it. Null if it has not "
        "finished.",
        "complete",
    )
    blocking_reason: str | None = field(
        "Why no URL of the crawl is dispatched although it is running: resource pressure, or a pattern "
        "of the spec that workers cannot compile. Null if neither is so.",
        "master m1: the database has 900.0 MiB free of 100.0 GiB; it goes on when 2.0 GiB are free",
    )
    resource_pressure: list[ResourcePressure] = field(
        "The resources that stop dispatch: those of the first master, by id, that owns partitions and is "
        "under pressure, or of the first worker if the whole pool is. Empty if none. Dispatch resumes by "
        "itself.",
        [],
    )
    allowed_verbs: list[str] = field("The verbs that the crawl's state and spec allow now.", ["pause", "cancel"])
    labels: dict[str, str] = field("The crawl's labels.", {"team": "search"})
    desired: DesiredRun | None = field("Whether the declaration lets it run. Null: verbs and schedules decide.", None)
    drifted: bool = field(
        "True if a verb made the crawl do something else than `desired`. The next PUT with `desired` ends that. A "
        "crawl that finished by itself, or that waits for a resource, has not drifted.",
        False,
    )
    created_at: datetime = field("When the crawl was created.", "2030-01-01T08:00:00Z")
    started_at: datetime | None = field(
        "When the crawl was first started. Null if it never was.", "2030-01-01T08:00:00Z"
    )
    finished_at: datetime | None = field("When the crawl finished. Null if it has not.", "2030-01-01T08:12:30Z")
    active_s: float = field("Seconds during which the crawl was running, over all runs.", 750.0)
    warnings: list[str] = Field(
        [],
        description="Parts of the spec that have no effect now: networks that no worker of the pool may reach.",
        examples=[["no worker of the pool 'default' may reach 10.0.0.0/8 (egress.allow)"]],
    )


class Crawl(_CrawlState):
    """A crawl: its spec, labels and state."""

    spec: SpecJson


class CrawlSummary(_CrawlState):
    """A crawl in a list of crawls. Its spec is included only on request."""

    seeds: int = field("The number of seeds in the spec.", 1)
    spec: SpecJson | None = Field(None, description="The spec. Null unless the request has `fields=spec`.")


class Revision(Model):
    """One revision of a crawl's spec."""

    revision: int = field("The number of the revision.", 1)
    created_at: datetime = field("When the revision was created.", "2030-01-01T08:00:00Z")
    spec: SpecJson


class RevisionSummary(Model):
    """One revision of a crawl's spec, in a list of revisions. The spec is included only on request."""

    revision: int = field("The number of the revision.", 1)
    created_at: datetime = field("When the revision was created.", "2030-01-01T08:00:00Z")
    spec: SpecJson | None = Field(None, description="The spec. Null unless the request has `fields=spec`.")


class Change(Model):
    """A field that differs between two specs or declarations."""

    path: str = field("The field that differs.", "spec.budget.max_pages")
    before: Any = Field(None, description="The value before. Null if the field was not set.", examples=[10000])
    after: Any = Field(None, description="The value after. Null if the field is not set.", examples=[50000])


class RevisionDiff(Model):
    """The differences between two revisions of a crawl's spec."""

    revision: int = field("The number of the revision.", 2)
    against: int = field("The number of the revision that it is compared with.", 1)
    changes: list[Change] = field("The fields that differ.")


class ScopePlan(Model):
    """What a change of the scope would do to the URLs that the crawl has found so far."""

    queued: int = field("The number of URLs that are queued now, with those that wait for their next fetch.", 120000)
    leaving: int = field("How many of them the new scope would exclude.", 90000)
    rules: dict[str, int] = field("The same by the rule of the scope.", {"exclude_pattern": 90000})
    exact: bool = field("True: all queued URLs were read. False: the numbers are estimated from a sample.", False)
    read: int = field("The number of URLs that were read for that.", 10000)
    excluded_before: int = field(
        "The number of URLs that an earlier scope excluded. Those that the new scope admits would be queued again.", 0
    )
    pages_to_read: int = field(
        "The number of stored pages with links that the scope left out. A wider scope reads these links from the "
        "archive. 0 if the new scope admits no more than the present one.",
        5200,
    )
    pages_unlisted: int = field(
        "How many of these pages have links that the archive does not list. They would be fetched again.", 3
    )


class Plan(Model):
    """What a PUT of this crawl would change. The plan itself changes nothing."""

    action: str = field("What a PUT would do: `create`, `update` or `none`.", "update")
    revision: int = field("The number of the revision that the crawl would have.", 2)
    state: CrawlState = field("The state that the crawl would have.")
    changes: list[Change] = field("The fields that would change.")
    warnings: list[str] = Field(
        [],
        description="Parts of the spec that would have no effect now: networks that no worker of the pool may reach.",
        examples=[["no worker of the pool 'default' may reach 10.0.0.0/8 (egress.allow)"]],
    )
    recrawl: RecrawlPlan | None = Field(
        None, description="What the section `recrawl` would need and give. Null without it, or without stored pages."
    )
    scope: ScopePlan | None = Field(
        None, description="What the changed scope would do to the URLs found so far. Null if the scope does not change."
    )


class CommandStatus(Model):
    """A command, and how many partitions have applied it.

    Each partition applies the commands of a crawl once, in order.
    """

    id: str = field("The command's id.", "6f1f0c5e8d3b4a7f9b1d2c3e4f5a6b7c")
    kind: str = field("What the command does.", "retry_failed")
    applied: int = field("The number of partitions that have applied it.", 60)
    partitions: int = field("The number of partitions that have to apply it.", 64)
    requested_at: datetime = field("When the command was requested.", "2030-01-01T08:00:00Z")


class CrawlVerbResult(Model):
    """The crawl after a verb was applied, and the command, if any, that applies the verb to the crawl's URLs."""

    crawl: Crawl = field("The crawl after the verb.")
    command: str | None = Field(
        None,
        description="The id of the command that applies the verb to the crawl's URLs: see /v1/commands/{id}. Null if "
        "none is needed.",
        examples=["6f1f0c5e8d3b4a7f9b1d2c3e4f5a6b7c"],
    )


class Surroundings(Protocol):
    """What a response about a crawl needs besides the crawl's row: the members, their statuses, and the time."""

    @property
    def roster(self) -> MemberStats: ...

    @property
    def plane(self) -> ControlPlane: ...

    @property
    def clock(self) -> Clock: ...


@dataclass(frozen=True, slots=True)
class Needs:
    """What a crawl's spec requires of workers: a pool, and access to the private networks in `allow`.

    - `refused`: why workers cannot use a regular expression in the spec, or cannot get the spec. None if they can.
    - `recrawls`: True if the spec lets the crawl fetch stored pages again.
    """

    pool: str
    allow: tuple[str, ...]
    refused: str | None
    recrawls: bool

    def seen(self, state: CrawlState, around: Surroundings) -> "Seen":
        """Return what stops the crawl at present, and the warnings about its spec, for a response about the crawl.

        `around`: the live members and their statuses. If `state` is not seeding or running, nothing stops the crawl.
        """
        pressure = around.roster.pressure(self.pool, around.clock.elapsed()) if state in _AT_WORK else None
        refused = self.refused if state in _AT_WORK else None
        return Seen(refused, pressure, self.warnings(around) if self.allow else (), self.recrawls)

    def warnings(self, around: Surroundings) -> tuple[str, ...]:
        """Return a warning for each network in `allow` to which a live worker of the pool may not connect."""
        workers = around.plane.members().workers
        allowed = {name: each.allow_net for name, each in workers.items() if each.pool == self.pool}
        return tuple(closed_networks(self.allow, allowed)) if allowed else ()


@dataclass(frozen=True, slots=True)
class Seen:
    """What a response says of a crawl besides its stored row: reasons that stop the crawl, and warnings.

    - `refused`: why workers cannot use the spec of a seeding or running crawl. None if they can.
    - `pressure`: the resource pressure that stops a seeding or running crawl. None if there is none.
    - `warnings`: the warnings about the spec.
    - `recrawls`: True if the spec lets the crawl fetch stored pages again.
    """

    refused: str | None
    pressure: PressureAt | None
    warnings: tuple[str, ...]
    recrawls: bool

    @property
    def blocking_reason(self) -> str | None:
        """A sentence that says why no URL of the crawl is dispatched. None if nothing stops it."""
        return self.refused or (self.pressure.reason if self.pressure is not None else None)

    def resource_pressure(self) -> list[ResourcePressure]:
        """Return the resource pressure that stops the crawl, as the API shows it; empty if there is none."""
        return [] if self.pressure is None else pressure_body(self.pressure.member, self.pressure.pressure)


def needs_of(spec: str) -> Needs:
    """Return what a stored spec requires of workers. `spec` is its JSON text."""
    read = summary_of(spec)
    refused = refused_pattern(read.scope, read.extract, read.recrawl, read.priority, read.overrides)
    if refused is None and (problem := size_problem(spec.encode())) is not None:
        refused = f"the spec is too large: {problem}"
    return Needs(read.pool, read.egress.allow, refused, read.recrawl.used)


def crawl_seen(crawl: DeclaredCrawl, seen: Seen) -> Crawl:
    """Return a response body that shows one crawl. `seen`: the warnings, and the reasons that stop the crawl."""
    return Crawl.of(crawl, **_shown(crawl, seen), spec=spec_body(crawl.spec))


def summary_body(crawl: DeclaredCrawl, around: Surroundings, *, spec: bool) -> CrawlSummary:
    """Return the current summary of one crawl, for a list of crawls. `spec`: True to include the whole spec."""
    seen = needs_of(crawl.spec).seen(crawl.state, around)
    return CrawlSummary.of(crawl, **_shown(crawl, seen), spec=spec_body(crawl.spec) if spec else None)


def _shown(crawl: DeclaredCrawl, seen: Seen) -> dict[str, Any]:
    return {
        "id": crawl.crawl_id,
        "blocking_reason": seen.blocking_reason,
        "resource_pressure": seen.resource_pressure(),
        "allowed_verbs": [verb.value for verb in allowed_verbs(crawl.state, recrawls=seen.recrawls)],
        "active_s": crawl.active_ms / 1000,
        "warnings": seen.warnings,
    }


def spec_body(spec: str) -> dict[str, Any]:
    """Return a stored spec (JSON) as the API shows it, without the name, which is a field of the crawl."""
    shown: dict[str, Any] = msgspec.json.decode(spec)
    shown.pop("name", None)
    return shown


def revision_body(revision: StoredRevision) -> Revision:
    """Return a stored revision of a spec as the API shows it."""
    return Revision.of(revision, spec=spec_body(revision.spec))


def revision_summary(revision: StoredRevision, *, spec: bool) -> RevisionSummary:
    """Return the revision as a list of revisions shows it. `spec`: True to include the whole spec."""
    return RevisionSummary.of(revision, spec=spec_body(revision.spec) if spec else None)


def changes_body(differences: list[Difference], *, below: str = "spec.") -> list[Change]:
    """Return differences between two specs or declarations as the API shows them.

    `below` is a prefix for the path of each difference, such as `labels.`.
    """
    return [Change.of(each, path=below + each.path) for each in differences]


def scope_plan_body(change: ScopeChange, tallies: Mapping[str, int], outlinks: Mapping[str, int]) -> ScopePlan:
    """Return what a changed scope would do, as the API shows it.

    - `tallies`: the number of excluded URLs of the crawl, by reason.
    - `outlinks["left_out"]`: the number of stored pages with links that the scope excluded.
    - `outlinks["unlisted"]`: the number of stored pages whose links the archive does not list completely.
    """
    return ScopePlan(
        queued=change.queued,
        leaving=sum(change.leaving.values()),
        rules=dict(change.leaving),
        exact=change.read == change.queued,
        read=change.read,
        excluded_before=sum(n for reason, n in tallies.items() if reason in BY_SCOPE),
        pages_to_read=max(0, outlinks.get("left_out", 0)),
        pages_unlisted=max(0, outlinks.get(UNLISTED, 0)),
    )


def command_body(command: CommandProgress) -> CommandStatus:
    """Return a command as the API shows it, with the number of partitions that have applied it."""
    return CommandStatus.of(command, requested_at=moment_of(command.at_ms))
