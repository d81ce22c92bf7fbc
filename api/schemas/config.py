"""The hot configuration."""

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from pydantic import ConfigDict, Field, StringConstraints

from api.schemas.crawls import NAME
from api.schemas.model import WHOLE, Model, Wanted, moment_of
from shared.domain.config import MOST_AHEAD, MOST_HEADROOM, MOST_POOLS, HotConfig, LogLevel, StoredConfig

_EXAMPLE: Final[dict[str, Any]] = {
    "log_level": "info",
    "worker": {"visits": 64},
    "pools": {"browser": {"visits": 8, "report_s": 1.0}},
    "master": {"dispatch_ahead": 1.5, "uploads_refused_at": 0.4},
    "storage": {"high": 0.9, "low": 0.85},
}


class WorkerValues(Wanted):
    """Of workers. What is null or left out is as each was started."""

    visits: Annotated[
        int | None,
        Field(
            ge=1,
            le=10_000,
            description="URL shards in hand at once; never more than the connections a worker was given at its start. "
            "Nothing in hand is given up when it falls.",
        ),
        WHOLE,
    ] = None
    report_s: Annotated[
        float | None, Field(ge=0.01, le=60.0, description="Seconds a finished page waits to be reported, at most.")
    ] = None


class MasterValues(Wanted):
    """Of masters, as owners of partitions. What is null or left out is as each was started."""

    grant_s: Annotated[
        float | None,
        Field(ge=1.0, le=3600.0, description="Seconds that new grants last; at most the start-up value."),
    ] = None
    dispatch_ahead: Annotated[
        float | None,
        Field(ge=0.0, le=MOST_AHEAD, description="Shards out for each free visit of a pool. 0 sends nothing out."),
    ] = None
    shards_at_once: Annotated[
        int | None, Field(ge=1, le=1_000, description="Leases written in one transaction."), WHOLE
    ] = None
    most_hosts: Annotated[
        int | None,
        Field(ge=100, le=1_000_000, description="Hosts a partition keeps in memory; other queues wait in SQL."),
        WHOLE,
    ] = None
    batch: Annotated[
        int | None, Field(ge=1, le=4_096, description="Reports applied in one transaction, at most."), WHOLE
    ] = None
    sweep_s: Annotated[float | None, Field(ge=0.05, le=60.0, description="Seconds between a partition's sweeps.")] = (
        None
    )
    uploads_refused_at: Annotated[
        float | None,
        Field(
            ge=0.0,
            le=0.9,
            description="How full the fullest partition's discoveries may be before uploads of seeds get 429.",
        ),
    ] = None
    most_crawls: Annotated[
        int | None,
        Field(ge=1, le=1_000_000, description="Beside so many that are not deleted no further crawl is made: 409."),
        WHOLE,
    ] = None
    split_after: Annotated[
        int | None,
        Field(ge=1, le=100, description="Grants of a shard that may run out before it is cut smaller; 2 by default."),
        WHOLE,
    ] = None
    bury_after: Annotated[
        int | None,
        Field(ge=1, le=100, description="Grants of one URL that may run out before it is a dead letter; 5 by default."),
        WHOLE,
    ] = None


class StorageValues(Wanted):
    """Of all members: when a disk, or what NATS and a database were given, counts as full. Then nothing new is begun
    that would fill it, until there is room again."""

    high: Annotated[
        float | None, Field(gt=0.0, le=1.0, description="The share from which on it counts as full; 0.95 by default.")
    ] = None
    low: Annotated[
        float | None,
        Field(gt=0.0, le=1.0, description="The share below which there is room again; 0.9 by default, at most `high`."),
    ] = None
    headroom_bytes: Annotated[
        int | None,
        Field(
            ge=0,
            le=MOST_HEADROOM,
            description="So much free is enough, however large it is; twice that is room again. 1 GiB by default.",
        ),
        WHOLE,
    ] = None


_Days = Annotated[int, Field(ge=1, le=36_500), WHOLE]


class RetentionValues(Wanted):
    """How long what grows is kept, in days; the leader forgets the rest in the background."""

    audit_days: Annotated[_Days | None, Field(description="Lines of the audit log: 365 by default.")] = None
    commands_days: Annotated[
        int | None,
        Field(ge=2, le=36_500, description="Commands that all partitions have applied: 30 by default."),
        WHOLE,
    ] = None
    revisions: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000_000,
            description="So many revisions of each crawl's spec and of this configuration, the newest: 100 by default.",
        ),
        WHOLE,
    ] = None
    crawls_days: Annotated[
        _Days | None, Field(description="Names, specs and times of deleted crawls: 30 by default.")
    ] = None
    letters_days: Annotated[_Days | None, Field(description="Dead letters that belong to no crawl: 90 by default.")] = (
        None
    )
    producers_days: Annotated[
        int | None,
        Field(ge=21, le=36_500, description="What tells repeated discoveries of workers from new ones: 60 by default."),
        WHOLE,
    ] = None
    uploads_days: Annotated[
        int | None,
        Field(
            ge=2,
            le=36_500,
            description="What tells an upload of seeds that is repeated under its Idempotency-Key: 30 by default.",
        ),
        WHOLE,
    ] = None
    keys_days: Annotated[_Days | None, Field(description="Keys that were revoked: 365 by default.")] = None
    hosts_days: Annotated[
        int | None,
        Field(ge=7, le=36_500, description="Hosts that no crawl has anything of, by their last visit: 90 by default."),
        WHOLE,
    ] = None


class HotConfiguration(Wanted):
    """What may be turned while everything runs, as a whole: what is null or left out is as each member was started."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    log_level: LogLevel | None = None
    worker: WorkerValues = WorkerValues()
    pools: Annotated[
        dict[Annotated[str, StringConstraints(pattern=NAME)], WorkerValues],
        Field(max_length=MOST_POOLS, description="For the workers of a pool, over `worker`."),
    ] = Field(default_factory=dict)
    master: MasterValues = MasterValues()
    storage: StorageValues = StorageValues()
    retention: RetentionValues = RetentionValues()


class ConfigRevision(Model):
    """The configuration at a revision."""

    revision: int = Field(description="Grows with every change; 0 is the one that nobody made.", examples=[3])
    changed_at: datetime | None
    changed_by: str | None
    config: HotConfiguration


def config_of(wanted: HotConfiguration) -> HotConfig:
    """The document that a body asks for."""
    return msgspec.convert(wanted.model_dump(exclude_none=True), HotConfig)


def revision_body(stored: StoredConfig) -> ConfigRevision:
    """A revision as it is shown."""
    return ConfigRevision(
        revision=stored.revision,
        changed_at=moment_of(stored.changed_at_ms) if stored.revision else None,
        changed_by=stored.changed_by if stored.revision else None,
        config=HotConfiguration.model_validate(msgspec.to_builtins(stored.config)),
    )
