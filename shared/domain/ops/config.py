"""Hot configuration: what operators may change at run time, and the resulting values of a member. No I/O.

A value in the hot configuration overrides the start-up value of every member, which comes from flags, environment or
files. If a field is not set, or is removed, each member uses its start-up value. A new revision replaces all values of
the earlier one. The API refuses unknown fields. A member of an earlier version ignores fields that it does not have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from shared.domain.crawl.spec import Label
from shared.domain.ops.retention import KEPT_BY_DEFAULT, Retention
from shared.domain.ops.watermarks import OF_STORAGE, Watermarks

T = TypeVar("T")

LogLevel = Literal["debug", "info", "warning", "error"]
Visits = Annotated[int, Meta(ge=1, le=100_000)]
Strikes = Annotated[int, Meta(ge=1, le=100)]
ReportSeconds = Annotated[float, Meta(ge=0.01, le=60.0)]

MAX_AHEAD: Final = 2.0
"""The greatest `dispatch_ahead_ratio`. With a greater one, shards would wait at workers instead of in the database."""

MAX_POOLS: Final = 256
MAX_HEADROOM: Final = 1 << 50
MAX_DRAINS: Final = 5_000
"""The maximum number of members that may be ordered to drain at a time. Their ids are stored in one record."""


class WorkerPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of workers.

    `max_visits`: how many URL shards a worker visits at the same time, at most. If the limit is lowered, a worker
    finishes the shards that it has. `report_s`: the longest time that a finished page waits to be reported.
    """

    max_visits: Visits | None = None
    report_s: ReportSeconds | None = None


class MasterPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of masters, as owners of partitions.

    * `grant_s`: how long new grants and extensions last, at most the start-up value.
    * `dispatch_ahead_ratio`: how many shards to send out for each visit that a worker could begin now. 0 sends none.
    * `dispatch_batch_size`: leases written in one transaction.
    * `max_hosts`: hosts that a partition keeps in memory; further queues wait in SQL.
    * `report_batch_size`: reports applied in one transaction.
    * `sweep_interval_s`: time between two repairs of the state of a partition: leases, host queues, streams.
    * `seed_upload_refusal_ratio`: how full the discoveries of any partition in NATS may be before uploads of seeds
      are refused.
    * `max_crawls`: how many crawls may exist at a time. Deleted ones do not count. Further ones cannot be created.
    * `split_after_expiries`: after this many expired grants, a shard of several URLs is split.
    * `dead_letter_after_expiries`: after this many expired grants, the only URL of a shard becomes a dead letter.
    """

    grant_s: Annotated[float, Meta(ge=1.0, le=3600.0)] | None = None
    dispatch_ahead_ratio: Annotated[float, Meta(ge=0.0, le=MAX_AHEAD)] | None = None
    dispatch_batch_size: Annotated[int, Meta(ge=1, le=1_000)] | None = None
    max_hosts: Annotated[int, Meta(ge=100, le=1_000_000)] | None = None
    report_batch_size: Annotated[int, Meta(ge=1, le=4_096)] | None = None
    sweep_interval_s: Annotated[float, Meta(ge=0.05, le=60.0)] | None = None
    seed_upload_refusal_ratio: Annotated[float, Meta(ge=0.0, le=0.9)] | None = None
    max_crawls: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    split_after_expiries: Strikes | None = None
    dead_letter_after_expiries: Strikes | None = None


class StoragePart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of all members: when a disk, NATS or a database counts as full, and when work resumes.

    A ratio is the number of used bytes divided by the total number of bytes (shared.domain.ops.watermarks).

    - `high_watermark_ratio`: the resource counts as full at this ratio.
    - `low_watermark_ratio`: work resumes when the ratio has fallen to this one.
    - `headroom_bytes`: a resource with more free bytes than this never counts as full, whatever its ratio is. Work
      resumes at the latest when twice as many bytes are free.
    """

    high_watermark_ratio: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    low_watermark_ratio: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    headroom_bytes: Annotated[int, Meta(ge=0, le=MAX_HEADROOM)] | None = None


Days = Annotated[int, Meta(ge=1, le=36_500)]


class RetentionPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of the leader: how long growing data is kept (shared.domain.ops.retention).

    `producers_days` is at least 21, because a worker uses its producer name for a week. `commands_days` is at least 2,
    because an Idempotency-Key is valid for one day.
    """

    audit_days: Days | None = None
    commands_days: Annotated[int, Meta(ge=2, le=36_500)] | None = None
    revisions: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    deleted_crawls_days: Days | None = None
    dead_letters_days: Days | None = None
    producers_days: Annotated[int, Meta(ge=21, le=36_500)] | None = None
    uploads_days: Annotated[int, Meta(ge=2, le=36_500)] | None = None
    revoked_keys_days: Days | None = None
    hosts_days: Annotated[int, Meta(ge=7, le=36_500)] | None = None
    changes_days: Annotated[int, Meta(ge=1, le=36_500)] | None = None


class HotConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """The hot configuration: settings that change without a restart. None: the start-up value or default applies.

    `pools` maps the name of a pool to settings that override `worker` for the workers of that pool.
    """

    log_level: LogLevel | None = None
    worker: WorkerPart = WorkerPart()
    pools: Annotated[dict[Label, WorkerPart], Meta(max_length=MAX_POOLS)] = {}
    master: MasterPart = MasterPart()
    storage: StoragePart = StoragePart()
    retention: RetentionPart = RetentionPart()


AS_STARTED: Final = HotConfig()

_decoder: Final = msgspec.json.Decoder(HotConfig)


def encode_config(config: HotConfig) -> bytes:
    """Return the hot configuration as JSON, without the fields that are not set."""
    return msgspec.json.encode(config)


def decode_config(data: bytes | str) -> HotConfig:
    """Return the hot configuration in stored JSON; unknown fields are ignored. Raise MsgspecError if it is invalid."""
    return _decoder.decode(data)


def with_value(document: str, path: Sequence[str], value: float | str | None) -> str:
    """Return the JSON of a hot configuration with the value at `path` set, or removed if `value` is None.

    `path` has the names of the fields from the outermost to the value. Everything else stays, including fields of a
    later version. A part without values is removed.
    """
    return msgspec.json.encode(_changed(msgspec.json.decode(document), path, value)).decode()


def _changed(part: Mapping[str, Any], path: Sequence[str], value: float | str | None) -> dict[str, Any]:
    name, *rest = path
    inner = _changed(part.get(name) or {}, rest, value) if rest else value
    left = {key: each for key, each in part.items() if key != name}
    return left if inner is None or inner == {} else left | {name: inner}


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """A revision of the hot configuration. Revision 0 is the empty configuration before any operator wrote one.

    `document` is the text as stored, if there is one. It includes fields of a later version, which `config` lacks.
    """

    revision: int
    config: HotConfig
    changed_at_ms: int = 0
    changed_by: str = ""
    document: str | None = field(default=None, compare=False, repr=False)

    @property
    def text(self) -> str:
        """The hot configuration as published: the stored text if there is one, else `config` as JSON."""
        return encode_config(self.config).decode() if self.document is None else self.document

    @property
    def tag(self) -> str:
        """The tag (HTTP ETag) of this revision: its number as text."""
        return str(self.revision)


# --- the resulting values of a member ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerTuning:
    """The values that a worker runs with, after the hot configuration was applied to its start-up settings."""

    max_visits: int
    report_s: float
    log_level: LogLevel
    storage: Watermarks = OF_STORAGE


@dataclass(frozen=True, slots=True)
class MasterTuning:
    """The values that a master runs with, after the hot configuration was applied to its start-up settings.

    Most have no start-up setting: only the hot configuration changes them from their defaults.
    """

    grant_s: float = 30.0
    log_level: LogLevel = "info"
    dispatch_ahead_ratio: float = 2.0
    dispatch_batch_size: int = 64
    max_hosts: int = 5_000
    report_batch_size: int = 256
    sweep_interval_s: float = 1.0
    seed_upload_refusal_ratio: float = 0.5
    max_crawls: int = 10_000
    split_after_expiries: int = 2
    dead_letter_after_expiries: int = 5
    storage: Watermarks = OF_STORAGE
    retention: Retention = KEPT_BY_DEFAULT


def worker_tuning(pool: str, config: HotConfig, started: WorkerTuning) -> WorkerTuning:
    """Return the values with which a worker of `pool` runs under this hot configuration.

    Each value comes from the settings of the pool. If they do not set it, it comes from those of all workers, and
    otherwise from `started`, the worker's start-up values.
    """
    own, every = config.pools.get(pool, WorkerPart()), config.worker
    return WorkerTuning(
        max_visits=_first(own.max_visits, every.max_visits, started.max_visits),
        report_s=_first(own.report_s, every.report_s, started.report_s),
        log_level=_first(config.log_level, None, started.log_level),
        storage=watermarks(config.storage),
    )


def master_tuning(config: HotConfig, started: MasterTuning) -> MasterTuning:
    """Return the values with which a master runs under this hot configuration; `started` has its start-up values."""
    values = _set_fields(config.master)
    if config.log_level is not None:
        values["log_level"] = config.log_level
    values["storage"] = watermarks(config.storage)
    values["retention"] = msgspec.structs.replace(KEPT_BY_DEFAULT, **_set_fields(config.retention))
    tuning = replace(started, **values)
    return replace(tuning, grant_s=min(tuning.grant_s, started.grant_s))


def watermarks(part: StoragePart) -> Watermarks:
    """Return the watermarks of these settings: when a resource counts as full, and when as free again.

    A setting that is None has its default. If the low watermark is above the high one, the result has the high one for
    both.
    """
    default = OF_STORAGE
    high = _first(part.high_watermark_ratio, None, default.high)
    low = _first(part.low_watermark_ratio, None, default.low)
    return Watermarks(high, min(low, high), _first(part.headroom_bytes, None, default.headroom))


def changed_values(before: WorkerTuning | MasterTuning, after: WorkerTuning | MasterTuning) -> Mapping[str, str]:
    """Return the values that differ between two tunings: a mapping from name to the text `old -> new`."""
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(after)
    return {name: f"{old[name]} -> {value}" for name, value in new.items() if old.get(name) != value}


def _set_fields(part: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name in part.__struct_fields__ if (value := getattr(part, name)) is not None}


def _first(narrow: T | None, wide: T | None, started: T) -> T:
    return narrow if narrow is not None else wide if wide is not None else started


# --- draining ---------------------------------------------------------------------------------------------------------


class MemberRole(StrEnum):
    """Whether a member of a cluster is a master or a worker."""

    MASTER = "master"
    WORKER = "worker"


class Drains(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ids of the members that must drain, sorted."""

    masters: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()

    def of(self, role: MemberRole) -> tuple[str, ...]:
        """Return the ids of the members with this role that must drain."""
        return self.masters if role is MemberRole.MASTER else self.workers
