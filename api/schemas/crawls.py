"""Crawls, their revisions, what a change would do, and how far a command is."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from pydantic import ConfigDict, Field, PlainValidator, StringConstraints, WithJsonSchema

from api.control.roster import Roster
from api.schemas.model import ONE_LINE, Model, Wanted, moment_of, when
from shared.domain.crawl import LABEL, LABEL_WORDS, CrawlSpec
from shared.domain.crawl_state import legal
from shared.domain.declared import CommandProgress, DeclaredCrawl, StoredRevision
from shared.domain.frontier import CrawlState
from shared.domain.spec_diff import Difference
from shared.domain.spec_parse import parse_spec

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


class _Pooled(msgspec.Struct):
    """Of a stored spec what says who works on it."""

    pool: str = "default"


_AT_WORK: Final = (CrawlState.SEEDING, CrawlState.RUNNING)
_spec: Final = msgspec.json.Decoder(_Pooled)


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


class Crawl(Model):
    """A crawl: what was declared, and what became of it."""

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
    spec: SpecJson
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    active_s: float = Field(description="For how long it was worked on.")


class Revision(Model):
    """The spec as it was declared once."""

    revision: int
    created_at: datetime
    spec: SpecJson


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


def pool_of(crawl: DeclaredCrawl) -> str:
    """The pool whose workers fetch for it."""
    return _spec.decode(crawl.spec).pool


def held_of(state: CrawlState, pool: str, roster: Roster, now: float) -> str | None:
    """Why a crawl in that state stands still, as `roster` knows of its pool at `now`; None where nothing holds it."""
    return roster.held(pool, now) if state in _AT_WORK else None


def crawl_body(crawl: DeclaredCrawl, roster: Roster, now: float) -> Crawl:
    """The crawl as it is shown; whether it is held is what `roster` knows at `now`."""
    return crawl_held(crawl, held_of(crawl.state, pool_of(crawl), roster, now))


def crawl_held(crawl: DeclaredCrawl, held: str | None) -> Crawl:
    """The crawl as it is shown while it is held for that reason."""
    return Crawl(
        name=crawl.name,
        id=crawl.crawl_id,
        revision=crawl.revision,
        state=crawl.state,
        finished_reason=crawl.finished_reason,
        held=held,
        legal=[verb.value for verb in legal(crawl.state)],
        labels=dict(crawl.labels),
        spec=spec_body(crawl.spec),
        created_at=moment_of(crawl.created_at_ms),
        started_at=when(crawl.started_at_ms),
        finished_at=when(crawl.finished_at_ms),
        active_s=crawl.active_ms / 1000,
    )


def spec_body(spec: str) -> dict[str, Any]:
    """A stored spec as it is shown: the name stands beside it."""
    shown: dict[str, Any] = msgspec.json.decode(spec)
    shown.pop("name", None)
    return shown


def revision_body(revision: StoredRevision) -> Revision:
    """The revision as it is shown."""
    return Revision(
        revision=revision.revision, created_at=moment_of(revision.created_at_ms), spec=spec_body(revision.spec)
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
