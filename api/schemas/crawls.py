"""Crawls, their revisions, what a change would do, and how far a command is."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Protocol

import msgspec
from pydantic import ConfigDict, Field, PlainValidator, StringConstraints, WithJsonSchema

from api.control.plane import ControlPlane
from api.control.roster import Roster
from api.schemas.model import ONE_LINE, Model, Wanted, moment_of, when
from shared.domain.crawl import LABEL, LABEL_WORDS, CrawlSpec
from shared.domain.crawl_state import legal
from shared.domain.credentials import masked_spec
from shared.domain.declared import CommandProgress, DeclaredCrawl, StoredRevision, summary_of
from shared.domain.egress import closed_networks
from shared.domain.frontier import CrawlState
from shared.domain.spec_diff import Difference
from shared.domain.spec_parse import parse_spec
from shared.domain.spec_rules import refused_pattern
from shared.ports.clock import Clock

NAME: Final = LABEL
CrawlName = Annotated[str, StringConstraints(pattern=NAME), Field(description=f"{LABEL_WORDS.capitalize()}.")]
_Label = Annotated[str, StringConstraints(pattern=NAME)]
_LabelValue = Annotated[str, StringConstraints(max_length=255, pattern=ONE_LINE)]
MOST_LABELS: Final = 64
Labels = Annotated[
    dict[_Label, _LabelValue],
    Field(max_length=MOST_LABELS, description="Your own words for finding crawls again."),
]
SpecJson = Annotated[
    dict[str, Any],
    WithJsonSchema({"x-orb-schema": "CrawlSpec"}),
    Field(description="What to crawl and how. Every field but `seeds` has a default."),
]
"""The spec as plain JSON; the document takes its schema from the type."""


@dataclass(frozen=True, slots=True)
class GivenSpec:
    """A spec that was sent and can be used. `name`: the one that it gives its crawl; None where it leaves that out."""

    spec: CrawlSpec
    name: str | None


def given_spec(data: Any) -> GivenSpec:
    """The spec that plain JSON declares. SpecError, a ValueError, with all that is wrong: the framework passes it on,
    and its problems are told beside those of the other fields."""
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


class CrawlInput(Wanted):
    """A crawl to create."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    name: CrawlName
    spec: _WantedSpec
    labels: Labels = Field(default_factory=dict)
    start: bool = Field(True, description="Begin at once; else the crawl waits for `start`.")


class CrawlReplacement(Wanted):
    """A crawl as it shall be. `start` matters only where this creates it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{name: EXAMPLE[name] for name in ("labels", "spec")}]})

    spec: _WantedSpec
    labels: Labels = Field(default_factory=dict)
    start: bool = True


class CrawlPatch(Wanted):
    """A merge patch (RFC 7396) of `spec` and `labels`: null removes a field, which then has its default."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"spec": {"budget": {"max_pages": 50000}}}]})

    spec: Annotated[dict[str, Any], Field(description="Fields of the spec to change.", default_factory=dict)]
    labels: dict[_Label, _LabelValue | None] = Field(default_factory=dict)


class _CrawlState(Model):
    """What became of a crawl."""

    name: CrawlName
    id: int = Field(description="Never used again, also where the name is.")
    revision: int = Field(description="Grows with every change of the spec.")
    state: CrawlState
    finished_reason: str | None = Field(description="`complete`, the budget that ended it, or `cancelled`.")
    held: str | None = Field(
        description="Why nothing of it is sent out now although it runs: a disk or memory that is nearly full. It goes "
        "on by itself when there is room."
    )
    legal: list[str] = Field(description="The verbs that are legal now.")
    labels: dict[str, str]
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    active_s: float = Field(description="For how long it was worked on.")
    warnings: list[str] = Field(
        [], description="What the spec asks for and does not get now: networks that no worker opens."
    )


class Crawl(_CrawlState):
    """A crawl: what was declared, and what became of it."""

    spec: SpecJson


class CrawlSummary(_CrawlState):
    """A crawl in a list."""

    seeds: int = Field(description="How many the spec names.")
    spec: SpecJson | None = Field(None, description="Null unless `fields=spec` asks for it.")


class Revision(Model):
    """The spec as it was declared once."""

    revision: int
    created_at: datetime
    spec: SpecJson


class RevisionSummary(Model):
    """A revision in a list."""

    revision: int
    created_at: datetime
    spec: SpecJson | None = Field(None, description="Null unless `fields=spec` asks for it.")


class Change(Model):
    """A field that differs. Null: it is not there."""

    path: str = Field(examples=["spec.budget.max_pages"])
    before: Any = None
    after: Any = None


class RevisionDiff(Model):
    """What one revision changed against another."""

    revision: int
    against: int
    changes: list[Change]


class Plan(Model):
    """What a put would do. Nothing was done."""

    action: str = Field(description="`create`, `update` or `none`.", examples=["update"])
    revision: int = Field(description="The revision there would be.")
    state: CrawlState = Field(description="The state there would be.")
    changes: list[Change]
    warnings: list[str] = Field([], description="What the spec asks for and would not get now.")


class Command(Model):
    """A command on its way to the owners of partitions, each of which applies it once and in order."""

    id: str
    kind: str
    applied: int = Field(description="Partitions that have applied it.")
    partitions: int
    asked_at: datetime


class CrawlTurn(Model):
    """A crawl after a verb, and the command that carries the verb out among its URLs, where one is needed."""

    crawl: Crawl
    command: str | None = Field(None, description="Id of the command: see /v1/commands/{id}.")


class Surroundings(Protocol):
    """What this master sees of the members, and the time that it is."""

    @property
    def roster(self) -> Roster: ...

    @property
    def plane(self) -> ControlPlane: ...

    @property
    def clock(self) -> Clock: ...


@dataclass(frozen=True, slots=True)
class Needs:
    """What a crawl needs of workers: the pool that fetches for it, and the networks that its spec opens. `refused`:
    why they cannot use a pattern of it, None if they can."""

    pool: str
    allow: tuple[str, ...]
    refused: str | None

    def seen(self, state: CrawlState, around: Surroundings) -> "Seen":
        """Return what a crawl in `state` has of that now."""
        held = None
        if state in _AT_WORK:
            held = self.refused or around.roster.held(self.pool, around.clock.elapsed())
        return Seen(held, self.warnings(around) if self.allow else ())

    def warnings(self, around: Surroundings) -> tuple[str, ...]:
        """Return a sentence for each network that the live workers of the pool do not open."""
        workers = around.plane.members().workers
        allowed = {name: each.allow_net for name, each in workers.items() if each.pool == self.pool}
        return tuple(closed_networks(self.allow, allowed)) if allowed else ()


@dataclass(frozen=True, slots=True)
class Seen:
    """Why a crawl stands still, None where nothing holds it; and what of its spec has no effect now."""

    held: str | None
    warnings: tuple[str, ...]


def needs_of(spec: str) -> Needs:
    """Return what a stored spec needs of workers."""
    read = summary_of(spec)
    return Needs(read.pool, read.egress.allow, refused_pattern(read.scope, read.extract))


def crawl_seen(crawl: DeclaredCrawl, seen: Seen) -> Crawl:
    """Return the crawl as it is shown while its surroundings are so."""
    return Crawl(**_state_of(crawl, seen), spec=spec_body(crawl.spec))


def summary_body(crawl: DeclaredCrawl, around: Surroundings, *, spec: bool) -> CrawlSummary:
    """Return the crawl as a list shows it now, with its whole spec or without."""
    seen = needs_of(crawl.spec).seen(crawl.state, around)
    return CrawlSummary(**_state_of(crawl, seen), seeds=crawl.seeds, spec=spec_body(crawl.spec) if spec else None)


def _state_of(crawl: DeclaredCrawl, seen: Seen) -> dict[str, Any]:
    return {
        "name": crawl.name,
        "id": crawl.crawl_id,
        "revision": crawl.revision,
        "state": crawl.state,
        "finished_reason": crawl.finished_reason,
        "held": seen.held,
        "legal": [verb.value for verb in legal(crawl.state)],
        "labels": dict(crawl.labels),
        "created_at": moment_of(crawl.created_at_ms),
        "started_at": when(crawl.started_at_ms),
        "finished_at": when(crawl.finished_at_ms),
        "active_s": crawl.active_ms / 1000,
        "warnings": list(seen.warnings),
    }


def spec_body(spec: str) -> dict[str, Any]:
    """Return a stored spec as it is shown: without its name, which stands beside it, and with credentials masked."""
    shown = masked_spec(msgspec.json.decode(spec))
    shown.pop("name", None)
    return shown


def revision_body(revision: StoredRevision) -> Revision:
    """The revision as it is shown."""
    return Revision(
        revision=revision.revision, created_at=moment_of(revision.created_at_ms), spec=spec_body(revision.spec)
    )


def revision_summary(revision: StoredRevision, *, spec: bool) -> RevisionSummary:
    """Return the revision as a list shows it, with its whole spec or without."""
    return RevisionSummary(
        revision=revision.revision,
        created_at=moment_of(revision.created_at_ms),
        spec=spec_body(revision.spec) if spec else None,
    )


def changes_body(differences: list[Difference], *, below: str = "spec.") -> list[Change]:
    """Differences as they are shown."""
    return [Change(path=below + each.path, before=each.before, after=each.after) for each in differences]


def command_body(command: CommandProgress) -> Command:
    """The command as it is shown."""
    return Command(
        id=command.id,
        kind=command.kind,
        applied=command.applied,
        partitions=command.partitions,
        asked_at=moment_of(command.at_ms),
    )
