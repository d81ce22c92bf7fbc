"""The settings of a process: read once from its environment (`ORB_*`), frozen, handed down by constructors.

A process of a cluster is told by flags, variables and a file, too: whatever says a setting first, in this order, is
what holds (`Said`); who gathers them is `cli.effective`.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from shared.domain.egress import Networks
from shared.domain.errors import Unusable
from shared.domain.tally import MOST_CRAWLS

PREFIX = "ORB_"

Process = TypeVar("Process", bound=msgspec.Struct)
Span = Annotated[float, Meta(ge=0.0, le=3600.0)]
Patience = Annotated[float, Meta(ge=1.0, le=3600.0)]
MemberId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$")]

_HIDDEN: Final = frozenset({"nats_token", "etcd_password"})
_SECRETS: Final = _HIDDEN | {"database"}
_MASK: Final = "********"
_USER: Final = re.compile(r"(?<=://)[^/@\s,]*@")
_PASSWORD: Final = re.compile(r"(?<=://)([^:/@\s,]*):[^/\s,]*@")
_QUERY: Final = re.compile(r"(?i)\b(password|sslpassword|token)=[^&\s]*")


class _Process(msgspec.Struct, frozen=True, kw_only=True):
    """What every process is told.

    `dir`: the folder of the crawl (crawl.db, archive/, nats/). `nats_url`, `nats_token`: the broker. `ack_wait_s`:
    after this the broker delivers a silent shard again. `memory_bytes`: at so much memory it takes on nothing new; 0:
    at a share of what there is (shared.adapters.local.room).
    """

    dir: Path
    nats_url: str
    nats_token: str | None = None
    ack_wait_s: Patience = 30.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"
    memory_bytes: Annotated[int, Meta(ge=0)] = 0

    def __repr__(self) -> str:
        return _shown(self)


class MasterSettings(_Process, frozen=True, kw_only=True):
    """A master's: owns partitions of the frontier.

    `partitions` is fixed when the folder is first used. `grant_s`: how long a worker may fetch without asking again.
    `grace_s`: how long reports are still applied at a stop. `synchronous` FULL survives the loss of power. `alone`: the
    starter has proved that no process of an earlier run lives. `retry_id`: retry every failed URL, once for each such
    id; empty: retry none. `unblock`: ask hosts at once that are left alone.
    """

    partitions: Annotated[int, Meta(ge=1, le=4096)] = 8
    pool: str = "default"
    grant_s: Patience = 30.0
    grace_s: Span = 10.0
    synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    alone: bool = False
    retry_id: str = ""
    unblock: bool = False


class WorkerSettings(_Process, frozen=True, kw_only=True):
    """A worker's: fetches what it is leased.

    `visits`: URL shards in hand at once. `connections`: kept open. `grace_s`: how long visits may go on after a stop.
    `report_s`: longest time a finished page waits to be reported. `metrics`: where they are served, as `host:port`; not
    at all without. `metrics_crawls`: so many crawls have metrics of their own, the others share theirs.
    `extract_s`, `extract_bytes`: processor time and memory that taking items out of one page may take. `open_crawls`:
    so many may have a WARC file open.
    """

    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    pool: str = "default"
    visits: Annotated[int, Meta(ge=1, le=10_000)] = 64
    connections: Annotated[int, Meta(ge=1, le=65_536)] = 512
    grace_s: Span = 10.0
    report_s: Annotated[float, Meta(ge=0.01, le=60.0)] = 2.0
    metrics: str = ""
    metrics_crawls: Annotated[int, Meta(ge=0, le=10_000)] = MOST_CRAWLS
    extract_s: Annotated[float, Meta(ge=0.1, le=60.0)] = 2.0
    extract_bytes: Annotated[int, Meta(ge=1 << 28)] = 1 << 30
    open_crawls: Annotated[int, Meta(ge=1, le=100_000)] = 256


class ClusterMasterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A master's of a cluster.

    `id` names it among the masters; a second process of the same name takes its place. `etcd` and `nats_url` are
    endpoints separated by commas, `pools` the names of pools. `nats_replicas`: on so many servers of a NATS cluster
    every stream is kept, or on more where it is already. `database`: a path or `sqlite:` URL of a file on a local disk,
    or a `postgresql:` URL. `partitions` is fixed when the cluster is first used. `http`: where its API listens, over
    TLS with `tls_cert` and `tls_key`, for holders of a certificate of `tls_client_ca` alone where that is told;
    `address`: where the others reach it, if that is another place. `tls_ca` has signed the masters' certificates, if it
    is not `tls_client_ca`. `metrics_crawls`: so many crawls have metrics of their own, the others share theirs;
    `metrics_s`: how often what SQL knows is read for them. `archive`: the folder that workers write their segments to,
    where this master can read it; stored pages are served from it. `events_age_s` and `events_bytes`: events older than
    this, and the oldest above this size, are forgotten; `items_age_s` and `items_bytes`: the same of items in their
    stream; `event_streams`: so many clients may follow events on this master at once, `exports`: and so many be sent
    exports; `body_bytes`: of a request; `http_connections`: open to the API at once. `pool_visits` and `pool_workers`:
    visits that the workers of a pool may have in hand together, and workers of it that may wait for some;
    `reports_per_partition`: of a kind, in NATS; `robots_bytes`: robots.txt kept there. `database_bytes`: the size at
    which a PostgreSQL database counts as full, `database_writers` and `database_readers`: connections to it that a
    master has at most for each of these, `reports_bytes` what reports may take in NATS, 0 both: no bound;
    `nats_store`: the folder of NATS's files, where it lies on this machine. `member_ttl_s`: after so long a silence it
    counts as dead. The rest as in MasterSettings.
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
    nats_ca: Path | None = None
    nats_cert: Path | None = None
    nats_key: Path | None = None
    nats_replicas: Annotated[int, Meta(ge=1, le=5)] = 1
    http: str = "127.0.0.1:8081"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tls_ca: Path | None = None
    metrics_crawls: Annotated[int, Meta(ge=0, le=10_000)] = MOST_CRAWLS
    metrics_s: Annotated[float, Meta(ge=0.1, le=300.0)] = 5.0
    address: str = ""
    archive: Path | None = None
    pools: str = "default"
    partitions: Annotated[int, Meta(ge=1, le=4096)] = 64
    events_age_s: Annotated[float, Meta(ge=60.0, le=365 * 24 * 3600.0)] = 7 * 24 * 3600.0
    events_bytes: Annotated[int, Meta(ge=1 << 20)] = 256 << 20
    items_age_s: Annotated[float, Meta(ge=60.0, le=365 * 24 * 3600.0)] = 7 * 24 * 3600.0
    items_bytes: Annotated[int, Meta(ge=1 << 20)] = 512 << 20
    event_streams: Annotated[int, Meta(ge=1, le=10_000)] = 64
    exports: Annotated[int, Meta(ge=1, le=1_000)] = 16
    body_bytes: Annotated[int, Meta(ge=1 << 16, le=1 << 26)] = 4 << 20
    http_connections: Annotated[int, Meta(ge=1, le=100_000)] = 1_000
    pool_visits: Annotated[int, Meta(ge=1, le=10_000_000)] = 20_000
    pool_workers: Annotated[int, Meta(ge=1, le=1_000_000)] = 4_096
    reports_per_partition: Annotated[int, Meta(ge=100, le=100_000_000)] = 100_000
    robots_bytes: Annotated[int, Meta(ge=1 << 20)] = 256 << 20
    database_bytes: Annotated[int, Meta(ge=0)] = 0
    database_writers: Annotated[int, Meta(ge=1, le=1000)] = 8
    database_readers: Annotated[int, Meta(ge=1, le=1000)] = 4
    reports_bytes: Annotated[int, Meta(ge=0)] = 0
    nats_store: Path | None = None
    memory_bytes: Annotated[int, Meta(ge=0)] = 0
    member_ttl_s: Patience = 15.0
    grant_s: Patience = 30.0
    ack_wait_s: Patience = 30.0
    synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"

    def __repr__(self) -> str:
        return _shown(self)


class ClusterWorkerSettings(WorkerSettings, frozen=True, kw_only=True):
    """A worker's of a cluster; `dir` holds its archive. The rest as in ClusterMasterSettings.

    `allow_net`: networks in CIDR notation, separated by commas, that a spec's `egress.allow` may open; none by default.
    `closed`: `host:port` of further servers, separated by commas, that no crawl reaches, as engines and members.
    """

    etcd: str
    cluster: MemberId = "orb"
    etcd_user: str | None = None
    etcd_password: str | None = None
    etcd_ca: Path | None = None
    etcd_cert: Path | None = None
    etcd_key: Path | None = None
    nats_ca: Path | None = None
    nats_cert: Path | None = None
    nats_key: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    member_ttl_s: Patience = 15.0
    allow_net: Networks = Networks()
    closed: str = ""

    def __repr__(self) -> str:
        return _shown(self)


def listed(text: str) -> tuple[str, ...]:
    """The parts of a setting that are separated by commas."""
    return tuple(part for part in map(str.strip, text.split(",")) if part)


class Origin(StrEnum):
    """Where the value of a setting comes from; the earlier ones go over the later ones."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Said:
    """A setting as it was said: its text, and the place, as `--visits`, `ORB_VISITS` or `orb.yaml:3`."""

    text: str
    origin: Origin
    place: str


def in_environment(kind: type[msgspec.Struct], environment: Mapping[str, str]) -> dict[str, Said]:
    """What `ORB_<FIELD>` variables say of the settings."""
    return {
        name: Said(environment[variable], Origin.ENVIRONMENT, variable)
        for name in kind.__struct_fields__
        if (variable := PREFIX + name.upper()) in environment
    }


def settled(kind: type[Process], said: Mapping[str, Said], flags: Mapping[str, str] = MappingProxyType({})) -> Process:
    """The settings; Unusable names everything that is missing or wrong, and where it was said. `flags`: by which a
    setting may be told beside its variable."""
    values: dict[str, Any] = {}
    problems = []
    for field in msgspec.structs.fields(kind):
        told = said.get(field.name)
        if told is not None:
            try:
                values[field.name] = msgspec.convert(told.text, field.type, strict=False, dec_hook=_path)
            except msgspec.ValidationError as error:
                reason = str(error)[:1].lower() + str(error)[1:]
                problems.append(f"{field.name} ({told.place}): {reason}")
        elif field.required:
            how = [*filter(None, (flags.get(field.name),)), f"{PREFIX}{field.name.upper()}"]
            problems.append(f"{field.name} is not told: {'say' if len(how) > 1 else 'set'} {' or '.join(how)}")
    if problems:
        raise Unusable("the settings cannot be used: " + "; ".join(problems))
    return kind(**values)


def from_environment(kind: type[Process], environment: Mapping[str, str] | None = None) -> Process:
    """The settings in `ORB_<FIELD>` variables alone; Unusable as `settled`."""
    return settled(kind, in_environment(kind, os.environ if environment is None else environment))


def masked(name: str, text: str) -> str:
    """A setting as it may be shown: without passwords and tokens, those in URLs too."""
    if name in _HIDDEN:
        return _MASK
    if name == "nats_url":  # a user without a password is a token there
        return _USER.sub(f"{_MASK}@", text)
    return _QUERY.sub(rf"\1={_MASK}", _PASSWORD.sub(rf"\1:{_MASK}@", text))


def _shown(settings: msgspec.Struct) -> str:
    values = ((name, getattr(settings, name)) for name in settings.__struct_fields__ if name not in _SECRETS)
    shown = (f"{name}={masked(name, value) if isinstance(value, str) else value!r}" for name, value in values)
    return f"{type(settings).__name__}({', '.join(shown)})"


def _path(kind: type[Any], value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is Networks and isinstance(value, str):
        return Networks.read(value)
    raise NotImplementedError(f"no setting is of {kind}")
