"""The settings of a process: read once from its environment (`ORB_*`), frozen, handed down by constructors."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from shared.domain.errors import Unusable

PREFIX = "ORB_"

Process = TypeVar("Process", bound=msgspec.Struct)
Span = Annotated[float, Meta(ge=0.0, le=3600.0)]
Patience = Annotated[float, Meta(ge=1.0, le=3600.0)]
MemberId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$")]

_SECRETS = frozenset({"nats_token", "etcd_password", "database"})


class _Process(msgspec.Struct, frozen=True, kw_only=True):
    """What every process is told.

    `dir`: the folder of the crawl (crawl.db, archive/, nats/). `nats_url`, `nats_token`: the broker. `ack_wait_s`:
    after this the broker delivers a silent shard again.
    """

    dir: Path
    nats_url: str
    nats_token: str | None = None
    ack_wait_s: Patience = 30.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"

    def __repr__(self) -> str:
        return _shown(self)


class MasterSettings(_Process, frozen=True, kw_only=True):
    """A master's: owns partitions of the frontier.

    `partitions` is fixed when the folder is first used. `grant_s`: how long a worker may fetch without asking again.
    `grace_s`: how long reports are still applied at a stop. `synchronous` FULL survives the loss of power. `alone`: the
    starter has proved that no process of an earlier run lives.
    """

    partitions: Annotated[int, Meta(ge=1, le=4096)] = 8
    pool: str = "default"
    grant_s: Patience = 30.0
    grace_s: Span = 10.0
    synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    alone: bool = False


class WorkerSettings(_Process, frozen=True, kw_only=True):
    """A worker's: fetches what it is leased.

    `visits`: URL shards in hand at once. `connections`: kept open. `grace_s`: how long visits may go on after a stop.
    `report_s`: longest time a finished page waits to be reported.
    """

    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    pool: str = "default"
    visits: Annotated[int, Meta(ge=1, le=10_000)] = 64
    connections: Annotated[int, Meta(ge=1, le=65_536)] = 512
    grace_s: Span = 10.0
    report_s: Annotated[float, Meta(ge=0.01, le=60.0)] = 2.0


class ClusterMasterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A master's of a cluster.

    `id` names it among the masters; a second process of the same name takes its place. `etcd` and `nats_url` are
    endpoints separated by commas, `pools` the names of pools. `database`: a path or `sqlite:` URL of a file on a local
    disk, or a `postgresql:` URL. `partitions` is fixed when the cluster is first used. `http`: where its API listens;
    `address`: where the others reach it, if that is another place. `member_ttl_s`: after so long a silence it counts as
    dead. The rest as in MasterSettings.
    """

    id: MemberId
    etcd: str
    nats_url: str
    database: str
    cluster: MemberId = "orb"
    etcd_user: str | None = None
    etcd_password: str | None = None
    etcd_ca: Path | None = None
    etcd_cert: Path | None = None
    etcd_key: Path | None = None
    nats_token: str | None = None
    http: str = "127.0.0.1:8081"
    address: str = ""
    pools: str = "default"
    partitions: Annotated[int, Meta(ge=1, le=4096)] = 64
    member_ttl_s: Patience = 15.0
    grant_s: Patience = 30.0
    ack_wait_s: Patience = 30.0
    synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"

    def __repr__(self) -> str:
        return _shown(self)


class ClusterWorkerSettings(WorkerSettings, frozen=True, kw_only=True):
    """A worker's of a cluster; `dir` holds its archive. The rest as in ClusterMasterSettings."""

    etcd: str
    cluster: MemberId = "orb"
    etcd_user: str | None = None
    etcd_password: str | None = None
    etcd_ca: Path | None = None
    etcd_cert: Path | None = None
    etcd_key: Path | None = None
    member_ttl_s: Patience = 15.0

    def __repr__(self) -> str:
        return _shown(self)


def listed(text: str) -> tuple[str, ...]:
    """The parts of a setting that are separated by commas."""
    return tuple(part for part in map(str.strip, text.split(",")) if part)


def from_environment(kind: type[Process], environment: Mapping[str, str] | None = None) -> Process:
    """The settings in `ORB_<FIELD>` variables; Unusable names the variable that is missing or wrong."""
    known = os.environ if environment is None else environment
    given = {name: known[variable] for name in kind.__struct_fields__ if (variable := PREFIX + name.upper()) in known}
    try:
        return msgspec.convert(given, kind, strict=False, dec_hook=_path)
    except msgspec.ValidationError as error:
        raise Unusable(f"the settings {PREFIX}* in the environment are wrong: {error}") from error


def _shown(settings: msgspec.Struct) -> str:
    shown = (f"{name}={getattr(settings, name)!r}" for name in settings.__struct_fields__ if name not in _SECRETS)
    return f"{type(settings).__name__}({', '.join(shown)})"


def _path(kind: type[Any], value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"no setting is of {kind}")
