"""Hot configuration: what operators may turn while everything runs, and what it makes of a member (pure).

A document is whole: what it leaves out is as each member was started. So it lies over flags, environment and files, and
taking a field away gives the start-up value back. Documents are written strictly (the API refuses unknown fields) and
read tolerantly: a member of an earlier version keeps to the fields it knows.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from shared.domain.crawl import Label
from shared.domain.retention import KEPT_BY_DEFAULT, Retention
from shared.domain.watermarks import OF_STORAGE, Watermarks

T = TypeVar("T")

LogLevel = Literal["debug", "info", "warning", "error"]
Visits = Annotated[int, Meta(ge=1, le=10_000)]
Strikes = Annotated[int, Meta(ge=1, le=100)]
ReportSeconds = Annotated[float, Meta(ge=0.01, le=60.0)]

MOST_AHEAD: Final = 2.0
"""Shards out per free visit at most: more would wait at workers instead of in SQL (architecture: dispatched)."""

MOST_POOLS: Final = 256
MOST_HEADROOM: Final = 1 << 50
MOST_DRAINS: Final = 5_000
"""Members that may be drained at a time: their names travel in one record."""


class WorkerPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of workers. `visits`: URL shards in hand at once; a worker with more than it now may have ends those it has.
    `report_s`: the longest time a finished page waits to be reported."""

    visits: Visits | None = None
    report_s: ReportSeconds | None = None


class MasterPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of masters, as owners of partitions.

    `grant_s`: how long new grants and extensions last; never longer than the start-up value, since a new owner takes
    that as the longest an earlier owner can have given. `dispatch_ahead`: shards kept out per free visit, 0 sends
    nothing out. `shards_at_once`: leases written in one transaction. `most_hosts`: hosts a partition keeps in memory,
    beyond which queues wait in SQL. `batch`: reports applied in one transaction. `sweep_s`: time between two sweeps.
    `uploads_refused_at`: how full the fullest partition may be before uploads of seeds are refused. `most_crawls`: no
    further one is made beside so many that are not deleted. `split_after`, `bury_after`: grants that may run out before
    a shard of several URLs is cut smaller, and before one of a single URL becomes a dead letter.
    """

    grant_s: Annotated[float, Meta(ge=1.0, le=3600.0)] | None = None
    dispatch_ahead: Annotated[float, Meta(ge=0.0, le=MOST_AHEAD)] | None = None
    shards_at_once: Annotated[int, Meta(ge=1, le=1_000)] | None = None
    most_hosts: Annotated[int, Meta(ge=100, le=1_000_000)] | None = None
    batch: Annotated[int, Meta(ge=1, le=4_096)] | None = None
    sweep_s: Annotated[float, Meta(ge=0.05, le=60.0)] | None = None
    uploads_refused_at: Annotated[float, Meta(ge=0.0, le=0.9)] | None = None
    most_crawls: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    split_after: Strikes | None = None
    bury_after: Strikes | None = None


class StoragePart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of all members: when a disk, or what NATS and a database were given, counts as full, and when there is room again
    (shared.domain.watermarks). `high`, `low`: shares of it; `headroom_bytes`: so much free is enough of any."""

    high: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    low: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    headroom_bytes: Annotated[int, Meta(ge=0, le=MOST_HEADROOM)] | None = None


Days = Annotated[int, Meta(ge=1, le=36_500)]


class RetentionPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of the leader: how long what grows is kept (shared.domain.retention). Commands for more than the day for which an
    Idempotency-Key is known, producers for longer than a worker uses a name."""

    audit_days: Days | None = None
    commands_days: Annotated[int, Meta(ge=2, le=36_500)] | None = None
    revisions: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    crawls_days: Days | None = None
    letters_days: Days | None = None
    producers_days: Annotated[int, Meta(ge=21, le=36_500)] | None = None
    uploads_days: Annotated[int, Meta(ge=2, le=36_500)] | None = None
    keys_days: Days | None = None
    hosts_days: Annotated[int, Meta(ge=7, le=36_500)] | None = None


class HotConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """The whole document. `pools` lie over `worker` for the workers of a pool."""

    log_level: LogLevel | None = None
    worker: WorkerPart = WorkerPart()
    pools: Annotated[dict[Label, WorkerPart], Meta(max_length=MOST_POOLS)] = {}
    master: MasterPart = MasterPart()
    storage: StoragePart = StoragePart()
    retention: RetentionPart = RetentionPart()


AS_STARTED: Final = HotConfig()

_decoder: Final = msgspec.json.Decoder(HotConfig)


def encode_config(config: HotConfig) -> bytes:
    """The document as it is stored and published: what is not said is left out."""
    return msgspec.json.encode(config)


def decode_config(data: bytes | str) -> HotConfig:
    """The stored document. MsgspecError when it is none."""
    return _decoder.decode(data)


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """The document at a revision; revision 0 is the one that nobody wrote, which says nothing.

    `document` is the text as it is stored, where it is: with what a later version says in it, which `config` has not.
    """

    revision: int
    config: HotConfig
    changed_at_ms: int = 0
    changed_by: str = ""
    document: str | None = field(default=None, compare=False, repr=False)

    @property
    def text(self) -> str:
        """The document as it is published."""
        return encode_config(self.config).decode() if self.document is None else self.document

    @property
    def tag(self) -> str:
        """Names this revision."""
        return str(self.revision)


# --- what a member makes of it ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerTuning:
    """The values a worker runs with."""

    visits: int
    report_s: float
    log_level: LogLevel
    storage: Watermarks = OF_STORAGE


@dataclass(frozen=True, slots=True)
class MasterTuning:
    """The values a master runs with. Those with a default here are no start-up settings: hot configuration alone turns
    them."""

    grant_s: float = 30.0
    log_level: LogLevel = "info"
    dispatch_ahead: float = 2.0
    shards_at_once: int = 64
    most_hosts: int = 5_000
    batch: int = 256
    sweep_s: float = 1.0
    uploads_refused_at: float = 0.5
    most_crawls: int = 10_000
    split_after: int = 2
    bury_after: int = 5
    storage: Watermarks = OF_STORAGE
    retention: Retention = KEPT_BY_DEFAULT


def worker_tuning(config: HotConfig, pool: str, started: WorkerTuning, *, most_visits: int) -> WorkerTuning:
    """What a worker of `pool`, started as `started`, runs with: its pool's values, else all workers', else its own; and
    never more visits than the connections it was given when it started."""
    own, every = config.pools.get(pool, WorkerPart()), config.worker
    return WorkerTuning(
        visits=min(most_visits, _first(own.visits, every.visits, started.visits)),
        report_s=_first(own.report_s, every.report_s, started.report_s),
        log_level=_first(config.log_level, None, started.log_level),
        storage=watermarks(config.storage),
    )


def master_tuning(config: HotConfig, started: MasterTuning) -> MasterTuning:
    """What a master, started as `started`, runs with."""
    said = _said(config.master)
    if config.log_level is not None:
        said["log_level"] = config.log_level
    said["storage"] = watermarks(config.storage)
    said["retention"] = replace(KEPT_BY_DEFAULT, **_said(config.retention))
    tuning = replace(started, **said)
    return replace(tuning, grant_s=min(tuning.grant_s, started.grant_s))


def watermarks(said: StoragePart) -> Watermarks:
    """What holds where this is said. A low watermark above the high one is taken for the same as that."""
    default = OF_STORAGE
    high = _first(said.high, None, default.high)
    low = _first(said.low, None, default.low)
    return Watermarks(high, min(low, high), _first(said.headroom_bytes, None, default.headroom))


def changed_values(before: WorkerTuning | MasterTuning, after: WorkerTuning | MasterTuning) -> Mapping[str, str]:
    """What differs, as `old -> new`, by name."""
    old, new = asdict(before), asdict(after)
    return {name: f"{old[name]} -> {value}" for name, value in new.items() if old.get(name) != value}


def _said(part: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name in part.__struct_fields__ if (value := getattr(part, name)) is not None}


def _first(narrow: T | None, wide: T | None, started: T) -> T:
    return narrow if narrow is not None else wide if wide is not None else started


# --- draining ---------------------------------------------------------------------------------------------------------


class MemberRole(StrEnum):
    """What a member of a cluster is."""

    MASTER = "master"
    WORKER = "worker"


class Drains(msgspec.Struct, frozen=True, omit_defaults=True):
    """The members, by id, that are to take up nothing new. Sorted."""

    masters: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()

    def of(self, role: MemberRole) -> tuple[str, ...]:
        """Those of a role."""
        return self.masters if role is MemberRole.MASTER else self.workers
