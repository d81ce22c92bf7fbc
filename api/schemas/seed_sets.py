"""The request and response bodies of seed sets."""

import json
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, WithJsonSchema

from api.schemas.model import Model, RequestModel, field, moment_of
from shared.domain.ops.seed_sets import MAX_SET_SEEDS, StoredSeedSet

EXAMPLE: Final[dict[str, Any]] = {
    "seeds": ["https://example.org/", {"url": "https://example.org/news", "priority": 5, "labels": {"team": "search"}}]
}
_SEEDS: Final[dict[str, Any]] = {
    "type": "array",
    "items": {"anyOf": [{"type": "string", "examples": ["https://example.org/"]}, {"x-orb-schema": "Seed"}]},
}


class SeedSetInput(RequestModel):
    """The body of a PUT of a seed set: all its seeds. They replace the present seeds of the set."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    seeds: Annotated[
        list[Any],
        Field(max_length=MAX_SET_SEEDS),
        WithJsonSchema({**_SEEDS, "maxItems": MAX_SET_SEEDS, "examples": [EXAMPLE["seeds"]]}),
    ] = Field(description="The seeds. Each is a URL, or an object with a URL, priority, labels and source.")


class SeedSetSummary(Model):
    """A named set of seeds of a crawl. The seeds themselves are not included."""

    name: str = field("The set's name.", "partners")
    count: int = field("The number of its seeds.", 2)
    created_at: datetime = field("When it was created.", "2029-01-01T08:00:00Z")
    created_by: str = field("The name and id of the API key that created it.", "first admin (76f4e1d9b2a0c3f5)")
    changed_at: datetime = field("When it was last changed.", "2029-01-01T08:00:00Z")
    changed_by: str = field("The name and id of the API key that last changed it.", "first admin (76f4e1d9b2a0c3f5)")
    command: str = field(
        "The id of the command that applies the last change: see /v1/commands/{id}. Once it is applied, the seeds that "
        "were added are in the queue, and those that left are withdrawn.",
        "seed-set-12",
    )


class SeedSet(SeedSetSummary):
    """A named set of seeds of a crawl, with all its seeds."""

    seeds: Annotated[list[Any], WithJsonSchema({**_SEEDS, "examples": [EXAMPLE["seeds"]]})] = Field(
        description="The seeds, exactly as they were put."
    )


def seed_set_summary(stored: StoredSeedSet) -> SeedSetSummary:
    """Return a seed set as a list of sets shows it, without its seeds."""
    return SeedSetSummary(**_common(stored))


def seed_set_body(stored: StoredSeedSet) -> SeedSet:
    """Return a seed set with its seeds, as the API shows it."""
    return SeedSet(**_common(stored), seeds=json.loads(stored.document))


def _common(stored: StoredSeedSet) -> dict[str, Any]:
    return {
        "name": stored.name,
        "count": stored.count,
        "created_at": moment_of(stored.created_at_ms),
        "created_by": stored.created_by,
        "changed_at": moment_of(stored.changed_at_ms),
        "changed_by": stored.changed_by,
        "command": stored.command_id,
    }
