"""The request and response bodies of the hot configuration."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from pydantic import ConfigDict, Field, StringConstraints, field_validator

from api.schemas.crawls import NAME
from api.schemas.model import Model, RequestModel, as_whole, field, moment_of
from shared.domain.ops.config import (
    MAX_POOLS,
    HotConfig,
    LogLevel,
    MasterPart,
    MasterTuning,
    RetentionPart,
    StoragePart,
    StoredConfig,
    WorkerPart,
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


_BOUNDS: Final = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le"}


def _settings(part: type[msgspec.Struct], started: Mapping[str, Any]) -> Callable[[str, str, float], Any]:
    """Return a function `(name, description, example)`, which makes the pydantic field of a setting.

    - `part`: the section of the hot configuration that has the settings. Its JSON schema gives the bounds of a field.
    - `started`: the value of each setting in a member that was started without flags. It is added to the description
      of the field as the default.
    """
    schema = msgspec.json.schema(part)["$defs"][part.__name__]["properties"]

    def setting(name: str, description: str, example: float) -> Any:
        bounds: dict[str, Any] = {_BOUNDS[key]: n for key, n in schema[name]["anyOf"][0].items() if key in _BOUNDS}
        return Field(None, description=f"{description} Default: `{started[name]}`.", examples=[example], **bounds)

    return setting


DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "worker": _WORKER,
    "master": msgspec.to_builtins(_MASTER),
    "storage": {
        "high_watermark_ratio": _MASTER.storage.high,
        "low_watermark_ratio": _MASTER.storage.low,
        "headroom_bytes": _MASTER.storage.headroom,
    },
    "retention": msgspec.structs.asdict(_MASTER.retention),
}
"""The value of each setting in a member that was started without flags, by section and name of the setting."""

_worker: Final = _settings(WorkerPart, DEFAULTS["worker"])
_master: Final = _settings(MasterPart, DEFAULTS["master"])
_storage: Final = _settings(StoragePart, DEFAULTS["storage"])
_retention: Final = _settings(RetentionPart, DEFAULTS["retention"])


class _Values(RequestModel):
    """One section of the hot configuration. Every setting may be left out. A JSON number such as 2.0 counts as 2."""

    _whole = field_validator("*", mode="before")(as_whole)


class WorkerValues(_Values):
    """Settings of workers. If a setting is null or left out, each worker uses the value that it was started with."""

    max_visits: int | None = _worker(
        "max_visits",
        "The number of URL shards that a worker holds at a time. Most of them wait for their hosts; "
        "`max_requests` of a worker bounds its requests. Shards in progress are finished.",
        512,
    )
    report_s: float | None = _worker(
        "report_s", "The longest time in seconds before a worker reports a finished page.", 1.0
    )


class MasterValues(_Values):
    """Settings of masters in their role as owners of partitions.

    If a setting is null or left out, each master uses the value that it was started with.
    """

    grant_s: float | None = _master(
        "grant_s", "Seconds that a new grant of a URL shard lasts, at most the value of the start.", 20.0
    )
    dispatch_ahead_ratio: float | None = _master(
        "dispatch_ahead_ratio", "URL shards dispatched for each free visit of a pool. 0 dispatches nothing.", 1.5
    )
    dispatch_batch_size: int | None = _master(
        "dispatch_batch_size", "The number of leases written in one transaction, at most.", 64
    )
    max_hosts: int | None = _master(
        "max_hosts", "The number of hosts that a partition keeps in memory. The queues of others wait in SQL.", 5000
    )
    report_batch_size: int | None = _master(
        "report_batch_size", "The number of reports applied in one transaction, at most.", 256
    )
    sweep_interval_s: float | None = _master("sweep_interval_s", "Seconds between two sweeps of a partition.", 1.0)
    seed_upload_refusal_ratio: float | None = _master(
        "seed_upload_refusal_ratio",
        "How full the discovery queue of the fullest partition may be, from 0 to 0.9. Above, uploads of seeds are "
        "refused with 429.",
        0.4,
    )
    max_crawls: int | None = _master(
        "max_crawls", "The number of crawls that are not deleted. Beyond, creating one is refused with 409.", 10000
    )
    split_after_expiries: int | None = _master(
        "split_after_expiries", "The number of grants of a URL shard that may expire before it is split.", 2
    )
    dead_letter_after_expiries: int | None = _master(
        "dead_letter_after_expiries",
        "The number of grants of a single URL that may expire before it becomes a dead letter.",
        5,
    )


class StorageValues(_Values):
    """The limits at which a database, NATS or an archive counts as full.

    A ratio is the used part of the resource's disk, or of the size that is set for the resource. While a resource
    counts as full, members begin no work that would add to it.
    """

    high_watermark_ratio: float | None = _storage(
        "high_watermark_ratio", "The used share from which a resource counts as full.", 0.95
    )
    low_watermark_ratio: float | None = _storage(
        "low_watermark_ratio", "The used share below which work resumes, at most `high_watermark_ratio`.", 0.9
    )
    headroom_bytes: int | None = _storage(
        "headroom_bytes",
        "Free bytes from which a resource does not count as full, whatever its size. Work resumes at twice as many.",
        1073741824,
    )


class RetentionValues(_Values):
    """How long records in the database are kept. The leader deletes older records in the background."""

    audit_days: int | None = _retention("audit_days", "Days that entries of the audit log are kept.", 365)
    commands_days: int | None = _retention(
        "commands_days", "Days that commands are kept. One that is still sent or applied is kept longer.", 30
    )
    revisions: int | None = _retention(
        "revisions",
        "The number of revisions that are kept of each spec and of this configuration, the newest ones.",
        100,
    )
    deleted_crawls_days: int | None = _retention(
        "deleted_crawls_days", "Days that the names, specs and times of deleted crawls are kept.", 30
    )
    dead_letters_days: int | None = _retention(
        "dead_letters_days", "Days that dead letters without a crawl are kept.", 90
    )
    producers_days: int | None = _retention(
        "producers_days",
        "Days that the positions by which repeated discoveries of workers are recognized are kept.",
        60,
    )
    uploads_days: int | None = _retention(
        "uploads_days", "Days that the positions by which repeated uploads of seeds are recognized are kept.", 30
    )
    revoked_keys_days: int | None = _retention("revoked_keys_days", "Days that revoked keys are kept.", 365)
    hosts_days: int | None = _retention(
        "hosts_days", "Days after the last visit that hosts without any crawl are kept.", 90
    )
    changes_days: int | None = _retention("changes_days", "Days that the changes of pages are listed.", 365)


class HotConfiguration(RequestModel):
    """All settings that can be changed without a restart.

    If a setting is null or left out, each member uses the value that it was started with.
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
    """One revision of the hot configuration: its settings, and when and by which API key it was created."""

    revision: int = field(
        "The number of the revision. Every change increments it; 0 means that the configuration was never changed.", 3
    )
    changed_at: datetime | None = field("When the revision was created. Null for revision 0.", "2030-01-01T08:00:00Z")
    changed_by: str | None = field(
        "The name and id of the API key that created it. Null for revision 0.", "terraform (5f3c0a2b9d1e4f67)"
    )
    config: HotConfiguration = field(
        "The configuration. Settings that are null or left out have the values that each member was started with."
    )


def config_of(wanted: HotConfiguration) -> HotConfig:
    """Convert the hot configuration of a request body to the domain's type."""
    return msgspec.convert(wanted.model_dump(exclude_none=True), HotConfig)


def config_settings(config: HotConfig) -> dict[str, Any]:
    """Return the settings that a configuration sets, as JSON values. A section that sets nothing is an empty object."""
    settings: dict[str, Any] = msgspec.to_builtins(config)
    return {name: {} for name in ("worker", "pools", "master", "storage", "retention")} | settings


def revision_body(stored: StoredConfig) -> ConfigRevision:
    """Return a stored revision of the hot configuration as the API shows it."""
    return ConfigRevision(
        revision=stored.revision,
        changed_at=moment_of(stored.changed_at_ms) if stored.revision else None,
        changed_by=stored.changed_by if stored.revision else None,
        config=HotConfiguration.model_validate(msgspec.to_builtins(stored.config)),
    )
