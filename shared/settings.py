"""The settings of a process. It reads them once at its start, and passes them to constructors.

A master or worker of a cluster reads flags, environment variables (`ORB_*`) and a file. If a setting is given in
several of these, the first in this order is used. `cli.terminal.settings` collects them as SettingValue. Other
processes read only environment variables.
"""

import os
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from shared.domain.errors import Unusable
from shared.domain.ops.counts import MAX_CRAWLS
from shared.domain.ops.egress import Networks

PREFIX = "ORB_"

Process = TypeVar("Process", bound=msgspec.Struct)
Span = Annotated[float, Meta(ge=0.0, le=3600.0)]
Patience = Annotated[float, Meta(ge=1.0, le=3600.0)]
MemberId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$")]

_HIDDEN: Final = frozenset({"nats_password", "nats_token", "etcd_password"})
_SECRETS: Final = _HIDDEN | {"database"}
_MASK: Final = "********"
# A password may have a / ? or # that is not escaped. So each of these extends to the last @, of each URL in a list.
_USER: Final = re.compile(r"(?<=://)(?:(?!://)\S)*@")
_PASSWORD: Final = re.compile(r"(?<=://)([^:/\s,]*):(?:(?!://)\S)*@")
_DATABASE_PASSWORD: Final = re.compile(r"(?s)(?<=://)([^:]*):.*@")
_QUERY: Final = re.compile(r"(?i)\b(password|sslpassword|token)=[^&]*")


class _Process(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of every process.

    - `dir`: the folder of the crawl, with `crawl.db`, `archive/` and `nats/`.
    - `nats_url`: the URL of the broker. `nats_user` and `nats_password`, or `nats_token`: the process's login there.
    - `ack_wait_s`: if a worker sends no sign of life for a shard for this many seconds, the broker delivers it again.
    - `memory_bytes`: at this memory use the process takes on no new work. 0 means a share of the available memory
      (shared.adapters.local.resources).
    """

    dir: Path
    nats_url: str
    nats_user: str | None = None
    nats_password: str | None = None
    nats_token: str | None = None
    ack_wait_s: Patience = 30.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"
    memory_bytes: Annotated[int, Meta(ge=0)] = 0

    def __repr__(self) -> str:
        return _shown(self)


class MasterSettings(_Process, frozen=True, kw_only=True):
    """The settings of the standalone master of a local crawl, which owns all partitions.

    - `partitions`: the number of partitions. It is fixed when the folder is first used.
    - `grant_s`: the seconds for which a worker may fetch before it must extend its grant.
    - `grace_s`: the seconds for which the master still applies reports after it is stopped.
    - `synchronous`: SQLite's setting `PRAGMA synchronous`. With FULL, committed transactions survive a power failure.
    - `alone`: True if every worker of an earlier run is known to be dead.
    - `retry_id`: if not empty, retry every failed URL. A second run with the same id does not retry them again.
    - `refresh_ms`: end when every page that was due at this time (Unix ms) is fetched. 0: keep fetching pages again.
    - `unblock`: at the start, end the back-off of all hosts, and make URLs that wait for a retry due.
    - `renewed`: the previous contents of the folder have just been deleted. The first request to each host then also
      waits for the host's delay.
    """

    partitions: Annotated[int, Meta(ge=1, le=4096)] = 1
    pool: str = "default"
    grant_s: Patience = 30.0
    grace_s: Span = 10.0
    synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    alone: bool = False
    retry_id: str = ""
    refresh_ms: int = 0
    unblock: bool = False
    renewed: bool = False


class WorkerSettings(_Process, frozen=True, kw_only=True):
    """The settings of a worker, which fetches the URL shards leased to it.

    - `max_visits`: the number of URL shards in progress. Most of them wait until their host may be requested again.
    - `max_requests`: the number of HTTP requests in progress.
    - `connections`: the number of connections kept open.
    - `grace_s`: the seconds for which visits may continue after the worker is stopped.
    - `report_s`: the longest time in seconds that a fetched page waits to be reported.
    - `metrics`: the `host:port` at which the worker serves its metrics. Empty: none.
    - `metrics_crawls`: the number of crawls that have their own metrics. All other crawls share one set.
    - `extract_s`, `extract_bytes`: the limits of CPU seconds and memory for extracting the items of one page.
    - `open_crawls`: the number of crawls that may have an open WARC file.
    """

    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    pool: str = "default"
    max_visits: Annotated[int, Meta(ge=1, le=100_000)] = 1_024
    max_requests: Annotated[int, Meta(ge=1, le=65_536)] = 128
    connections: Annotated[int, Meta(ge=1, le=65_536)] = 512
    grace_s: Span = 10.0
    report_s: Annotated[float, Meta(ge=0.01, le=60.0)] = 2.0
    metrics: str = ""
    metrics_crawls: Annotated[int, Meta(ge=0, le=10_000)] = MAX_CRAWLS
    extract_s: Annotated[float, Meta(ge=0.1, le=60.0)] = 2.0
    extract_bytes: Annotated[int, Meta(ge=1 << 28)] = 1 << 30
    open_crawls: Annotated[int, Meta(ge=1, le=100_000)] = 256


class ClusterMasterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a master of a cluster.

    Settings not listed here have the meaning that they have in MasterSettings.

    - `id`: the master's name. A second process with this name replaces the first.
    - `etcd`, `nats_url`: endpoints, separated by commas. `pools`: the names of the pools, separated by commas.
    - `nats_replicas`: the number of NATS servers that store a copy of each stream. A smaller value than before has no
      effect on existing streams: their number of copies is never lowered.
    - `database`: a path or `sqlite:` URL of a file on a local disk, or a `postgresql:` URL.
    - `partitions`: the number of partitions. It is fixed when the cluster is first used.
    - `http`: the `host:port` at which the API listens. `address`: the URL at which other masters reach it, if it
      differs.
    - `tls_cert`, `tls_key`: if set, the API uses TLS. `tls_client_ca`: accept only clients with a certificate signed by
      it.
    - `tls_ca`: the CA of the masters' certificates, if it is not `tls_client_ca`.
    - `metrics_crawls`: the number of crawls that have their own metrics. All other crawls share one set.
    - `metrics_s`: the interval in seconds at which metrics are read from SQL.
    - `archive`: the folder to which workers write segments, if this master can read it. It then serves stored pages.
    - `events_age_s`, `events_bytes`: the age and total size above which the oldest events are deleted.
    - `items_age_s`, `items_bytes`: the same for the stream of items.
    - `event_streams`, `exports`: how many clients of this master may follow events, or receive exports, at the same
      time.
    - `body_bytes`: the largest size of a request. `http_connections`: the largest number of open connections to the
      API.
    - `key_reads`, `key_writes`, `key_bulk`: requests per second of one API key, for each class of route. 0: no limit.
    - `wrong_keys`: requests with a wrong key per minute from one address. 0: no limit.
    - `pool_visits`: the number of visits that all workers of a pool together may have in progress.
    - `pool_workers`: how many workers of a pool may wait for work at the same time. NATS refuses the requests for work
      of all further workers.
    - `reports_per_partition`: the largest number of reports of one kind that NATS stores for a partition.
    - `robots_bytes`: the largest total size of robots.txt files in NATS.
    - `database_bytes`: the size at which a PostgreSQL database counts as full. 0: no bound.
    - `database_writers`, `database_readers`: the numbers of connections to PostgreSQL for writing and reading.
    - `reports_bytes`: the largest total size of the reports that NATS stores. 0: no bound.
    - `nats_store`: the folder with NATS's files, if it is on this machine.
    - `member_ttl_s`: after so many seconds of silence, this master counts as dead.
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
    nats_user: str | None = None
    nats_password: str | None = None
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
    metrics_crawls: Annotated[int, Meta(ge=0, le=10_000)] = MAX_CRAWLS
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
    key_reads: Annotated[int, Meta(ge=0, le=1_000_000)] = 1_000
    key_writes: Annotated[int, Meta(ge=0, le=1_000_000)] = 500
    key_bulk: Annotated[int, Meta(ge=0, le=1_000_000)] = 100
    wrong_keys: Annotated[int, Meta(ge=0, le=1_000_000)] = 60
    pool_visits: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
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
    """The settings of a worker of a cluster.

    Settings not listed mean the same as in WorkerSettings or ClusterMasterSettings.

    - `dir`: the folder of the worker's archive.
    - `allow_net`: networks in CIDR notation, separated by commas, that a spec's `egress.allow` may open. Default: none.
    - `closed`: `host:port` of servers, separated by commas, that no crawl may request. Members, and the servers that
      they use (such as the database), are always closed.
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
    """Return the parts of a comma-separated setting, without surrounding space. Leave out empty parts."""
    return tuple(part for part in map(str.strip, text.split(",")) if part)


class SettingOrigin(StrEnum):
    """Where the value of a setting comes from.

    If a setting has values from several origins, the first in this order is used: FLAG, ENVIRONMENT, FILE, DEFAULT.
    """

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


class SettingValue(msgspec.Struct, frozen=True):
    """A setting as the user gave it.

    - `text`: the value, not converted yet.
    - `origin`: the kind of source: a flag, the environment or a file.
    - `place`: the exact flag, variable or line, such as `--visits`, `ORB_MAX_VISITS` or `orb.yaml:3`.
    """

    text: str
    origin: SettingOrigin
    place: str


def in_environment(kind: type[msgspec.Struct], environment: Mapping[str, str]) -> dict[str, SettingValue]:
    """Return the settings of the class `kind` that `environment` has as variables `ORB_<FIELD>`, by field name."""
    return {
        name: SettingValue(environment[variable], SettingOrigin.ENVIRONMENT, variable)
        for name in kind.__struct_fields__
        if (variable := PREFIX + name.upper()) in environment
    }


def settled(
    kind: type[Process], given: Mapping[str, SettingValue], flags: Mapping[str, str] = MappingProxyType({})
) -> Process:
    """Return an object of the class `kind` with the values in `given`, and the defaults for all other fields.

    Raise Unusable with all missing and invalid values, and where each was given. `given` maps a field to its value.
    `flags` maps a field to the flag that sets it, for the messages.
    """
    values: dict[str, Any] = {}
    problems = []
    for field in msgspec.structs.fields(kind):
        value = given.get(field.name)
        if value is not None:
            try:
                values[field.name] = msgspec.convert(value.text, field.type, strict=False, dec_hook=_path)
            except msgspec.ValidationError as error:
                reason = str(error)[:1].lower() + str(error)[1:]
                problems.append(f"{field.name} ({value.place}): {reason}")
        elif field.required:
            how = [*filter(None, (flags.get(field.name),)), f"{PREFIX}{field.name.upper()}"]
            problems.append(f"no {field.name} given: set {' or '.join(how)}")
    if problems:
        raise Unusable("the settings cannot be used: " + "; ".join(problems))
    return kind(**values)


def from_environment(kind: type[Process], environment: Mapping[str, str] | None = None) -> Process:
    """Return an object of the class `kind`, made only from the variables `ORB_<FIELD>` of `environment`.

    `environment`: None for that of this process. Raise Unusable with all missing and invalid values.
    """
    return settled(kind, in_environment(kind, os.environ if environment is None else environment))


def masked(name: str, text: str) -> str:
    """Return `text`, the value of the setting `name`, for display. Passwords and tokens are masked, also in URLs."""
    if name in _HIDDEN:
        return _MASK
    if name == "nats_url":  # a user without a password is a token there
        return _USER.sub(f"{_MASK}@", text)
    password = _DATABASE_PASSWORD if name == "database" else _PASSWORD
    return password.sub(rf"\1:{_MASK}@", _QUERY.sub(rf"\1={_MASK}", text))


def without_password(database: str) -> str:
    """Return a PostgreSQL URL without its password. Return any other text unchanged."""
    if not is_postgresql(database):
        return database
    address, _, query = masked("database", database).replace(f":{_MASK}@", "@").replace("://@", "://").partition("?")
    shown = "&".join(each for each in query.split("&") if "password=" not in each.lower())
    return f"{address}?{shown}" if shown else address


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


def is_postgresql(database: str) -> bool:
    """Return True if `database` is the URL of a PostgreSQL server. Anything else names a SQLite file."""
    return database.startswith(("postgresql:", "postgres:"))


def sqlite_file(database: str) -> Path:
    """Return the path of the SQLite file that `database` names. `database` is a path or a `sqlite:` URL."""
    return Path(re.sub(r"^sqlite:(//(?=/))?", "", database))
