"""The request and response bodies of the hot configuration."""

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from pydantic import ConfigDict, Field, StringConstraints

from api.schemas.crawls import NAME
from api.schemas.model import WHOLE, Model, RequestModel, moment_of
from shared.domain.ops.config import (
    MAX_AHEAD,
    MAX_HEADROOM,
    MAX_POOLS,
    HotConfig,
    LogLevel,
    MasterTuning,
    StoredConfig,
)
from shared.settings import ClusterWorkerSettings

_EXAMPLE: Final[dict[str, Any]] = {
    "log_level": "info",
    "worker": {"max_visits": 512},
    "pools": {"browser": {"max_visits": 8, "report_s": 1.0}},
    "master": {"dispatch_ahead_ratio": 1.5, "seed_upload_refusal_ratio": 0.4},
    "storage": {"high_watermark_ratio": 0.9, "low_watermark_ratio": 0.85},
}

_MASTER: Final = MasterTuning()
_WORKER: Final = {field.name: field.default for field in msgspec.structs.fields(ClusterWorkerSettings)}


class WorkerValues(RequestModel):
    """Settings of workers. A setting that is null or left out has the value that each worker was started with."""

    max_visits: Annotated[
        int | None,
        Field(
            ge=1,
            le=100_000,
            description="The number of URL shards that a worker holds at a time. Most of them wait for their hosts; "
            "`max_requests` of a worker bounds its requests. Shards in progress are finished. "
            f"Default: `{_WORKER['max_visits']}`.",
            examples=[512],
        ),
        WHOLE,
    ] = None
    report_s: Annotated[
        float | None,
        Field(
            ge=0.01,
            le=60.0,
            description="The longest time in seconds before a worker reports a finished page. "
            f"Default: `{_WORKER['report_s']}`.",
            examples=[1.0],
        ),
    ] = None


class MasterValues(RequestModel):
    """Settings of masters, as owners of partitions.

    A setting that is null or left out has the value that each master was started with.
    """

    grant_s: Annotated[
        float | None,
        Field(
            ge=1.0,
            le=3600.0,
            description="Seconds that a new grant of a URL shard lasts, at most the value of the start. "
            f"Default: `{_MASTER.grant_s}`.",
            examples=[20.0],
        ),
    ] = None
    dispatch_ahead_ratio: Annotated[
        float | None,
        Field(
            ge=0.0,
            le=MAX_AHEAD,
            description="URL shards dispatched for each free visit of a pool. 0 dispatches nothing. "
            f"Default: `{_MASTER.dispatch_ahead_ratio}`.",
            examples=[1.5],
        ),
    ] = None
    dispatch_batch_size: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000,
            description="The number of leases written in one transaction, at most. "
            f"Default: `{_MASTER.dispatch_batch_size}`.",
            examples=[64],
        ),
        WHOLE,
    ] = None
    max_hosts: Annotated[
        int | None,
        Field(
            ge=100,
            le=1_000_000,
            description="The number of hosts that a partition keeps in memory. The queues of others wait in "
            "SQL. "
            f"Default: `{_MASTER.max_hosts}`.",
            examples=[5000],
        ),
        WHOLE,
    ] = None
    report_batch_size: Annotated[
        int | None,
        Field(
            ge=1,
            le=4_096,
            description="The number of reports applied in one transaction, at most. "
            f"Default: `{_MASTER.report_batch_size}`.",
            examples=[256],
        ),
        WHOLE,
    ] = None
    sweep_interval_s: Annotated[
        float | None,
        Field(
            ge=0.05,
            le=60.0,
            description=f"Seconds between two sweeps of a partition. Default: `{_MASTER.sweep_interval_s}`.",
            examples=[1.0],
        ),
    ] = None
    seed_upload_refusal_ratio: Annotated[
        float | None,
        Field(
            ge=0.0,
            le=0.9,
            description="How full the discovery queue of the fullest partition may be, from 0 to 0.9. Above, "
            "uploads of seeds are refused with 429. "
            f"Default: `{_MASTER.seed_upload_refusal_ratio}`.",
            examples=[0.4],
        ),
    ] = None
    max_crawls: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000_000,
            description="The number of crawls that are not deleted. Beyond, creating one is refused with 409. "
            f"Default: `{_MASTER.max_crawls}`.",
            examples=[10000],
        ),
        WHOLE,
    ] = None
    split_after_expiries: Annotated[
        int | None,
        Field(
            ge=1,
            le=100,
            description="The number of grants of a URL shard that may expire before it is split. "
            f"Default: `{_MASTER.split_after_expiries}`.",
            examples=[2],
        ),
        WHOLE,
    ] = None
    dead_letter_after_expiries: Annotated[
        int | None,
        Field(
            ge=1,
            le=100,
            description="The number of grants of a single URL that may expire before it becomes a dead letter. "
            f"Default: `{_MASTER.dead_letter_after_expiries}`.",
            examples=[5],
        ),
        WHOLE,
    ] = None


class StorageValues(RequestModel):
    """When the disk or size limit of a database, NATS or an archive counts as full. Then no new work begins that would
    fill it, until enough is free."""

    high_watermark_ratio: Annotated[
        float | None,
        Field(
            gt=0.0,
            le=1.0,
            description=f"The used share from which a resource counts as full. Default: `{_MASTER.storage.high}`.",
            examples=[0.95],
        ),
    ] = None
    low_watermark_ratio: Annotated[
        float | None,
        Field(
            gt=0.0,
            le=1.0,
            description="The used share below which work resumes, at most `high_watermark_ratio`. "
            f"Default: `{_MASTER.storage.low}`.",
            examples=[0.9],
        ),
    ] = None
    headroom_bytes: Annotated[
        int | None,
        Field(
            ge=0,
            le=MAX_HEADROOM,
            description="Free bytes from which a resource does not count as full, whatever its size. Work "
            "resumes "
            "at twice as many. "
            f"Default: `{_MASTER.storage.headroom}`.",
            examples=[1073741824],
        ),
        WHOLE,
    ] = None


class RetentionValues(RequestModel):
    """How long records are kept. The leader deletes older ones in the background."""

    audit_days: Annotated[
        int | None,
        Field(
            ge=1,
            le=36_500,
            description=f"Days that entries of the audit log are kept. Default: `{_MASTER.retention.audit_days}`.",
            examples=[365],
        ),
        WHOLE,
    ] = None
    commands_days: Annotated[
        int | None,
        Field(
            ge=2,
            le=36_500,
            description="Days that commands are kept after all partitions have applied them. "
            f"Default: `{_MASTER.retention.commands_days}`.",
            examples=[30],
        ),
        WHOLE,
    ] = None
    revisions: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000_000,
            description="The number of revisions that are kept of each spec and of this configuration, the "
            "newest "
            "ones. "
            f"Default: `{_MASTER.retention.revisions}`.",
            examples=[100],
        ),
        WHOLE,
    ] = None
    deleted_crawls_days: Annotated[
        int | None,
        Field(
            ge=1,
            le=36_500,
            description="Days that the names, specs and times of deleted crawls are kept. "
            f"Default: `{_MASTER.retention.deleted_crawls_days}`.",
            examples=[30],
        ),
        WHOLE,
    ] = None
    dead_letters_days: Annotated[
        int | None,
        Field(
            ge=1,
            le=36_500,
            description="Days that dead letters without a crawl are kept. "
            f"Default: `{_MASTER.retention.dead_letters_days}`.",
            examples=[90],
        ),
        WHOLE,
    ] = None
    producers_days: Annotated[
        int | None,
        Field(
            ge=21,
            le=36_500,
            description="Days that the positions by which repeated discoveries of workers are recognized are "
            "kept. "
            f"Default: `{_MASTER.retention.producers_days}`.",
            examples=[60],
        ),
        WHOLE,
    ] = None
    uploads_days: Annotated[
        int | None,
        Field(
            ge=2,
            le=36_500,
            description="Days that the positions by which repeated uploads of seeds are recognized are kept. "
            f"Default: `{_MASTER.retention.uploads_days}`.",
            examples=[30],
        ),
        WHOLE,
    ] = None
    revoked_keys_days: Annotated[
        int | None,
        Field(
            ge=1,
            le=36_500,
            description=f"Days that revoked keys are kept. Default: `{_MASTER.retention.revoked_keys_days}`.",
            examples=[365],
        ),
        WHOLE,
    ] = None
    hosts_days: Annotated[
        int | None,
        Field(
            ge=7,
            le=36_500,
            description="Days after the last visit that hosts without any crawl are kept. "
            f"Default: `{_MASTER.retention.hosts_days}`.",
            examples=[90],
        ),
        WHOLE,
    ] = None


class HotConfiguration(RequestModel):
    """All settings that can be changed without a restart.

    A setting that is null or left out has the value that each member was started with.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    log_level: LogLevel | None = Field(
        None, description=f"The least level of log lines that all members write. Default: `{_MASTER.log_level}`."
    )
    worker: WorkerValues = Field(WorkerValues(), description="Settings of all workers.")
    pools: Annotated[
        dict[Annotated[str, StringConstraints(pattern=NAME)], WorkerValues],
        Field(
            max_length=MAX_POOLS,
            description="Settings of the workers of a pool, by its name. They override `worker`.",
            examples=[{"browser": {"max_visits": 8}}],
        ),
    ] = Field(default_factory=dict)
    master: MasterValues = Field(MasterValues(), description="Settings of all masters.")
    storage: StorageValues = Field(StorageValues(), description="When a resource counts as full.")
    retention: RetentionValues = Field(RetentionValues(), description="How long records are kept.")


class ConfigRevision(Model):
    """The hot configuration at a revision."""

    revision: int = Field(
        description="The number of the revision. Every change increments it; 0 means that the configuration "
        "was "
        "never changed.",
        examples=[3],
    )
    changed_at: datetime | None = Field(
        description="When the revision was created. Null for revision 0.", examples=["2030-01-01T08:00:00Z"]
    )
    changed_by: str | None = Field(
        description="The name and id of the API key that created it. Null for revision 0.",
        examples=["terraform (5f3c0a2b9d1e4f67)"],
    )
    config: HotConfiguration = Field(
        description="The configuration. Settings that are null or left out have the values that each member "
        "was "
        "started with."
    )


def config_of(wanted: HotConfiguration) -> HotConfig:
    """Return the hot configuration that a request body asks for."""
    return msgspec.convert(wanted.model_dump(exclude_none=True), HotConfig)


def revision_body(stored: StoredConfig) -> ConfigRevision:
    """Return a stored revision of the hot configuration as the API shows it."""
    return ConfigRevision(
        revision=stored.revision,
        changed_at=moment_of(stored.changed_at_ms) if stored.revision else None,
        changed_by=stored.changed_by if stored.revision else None,
        config=HotConfiguration.model_validate(msgspec.to_builtins(stored.config)),
    )
