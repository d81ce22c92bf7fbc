"""The keys of a cluster in the coordinator (etcd), and the records that are stored under them.

Records are JSON, so that an operator can read them with the coordinator's own tools. Unknown fields are ignored. A
field may only be added with a default. No record carries a deadline. A field `*_at_ms` is the time of an event, in Unix
milliseconds by the writer's clock.
"""

import re
import zlib
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from shared.domain.ids import CrawlId, Partition, Term, term_of
from shared.wire.messages import Malformed

SETTINGS: Final = "settings"
"""The last part of the key of the hot configuration: `/orb/<cluster>/config/settings`."""

DRAINS: Final = "drains"
"""The last part of the key of the list of members that must drain: `/orb/<cluster>/config/drains`."""

EXCLUSIONS: Final = "exclusions"
"""The last part of the key of the list of exclusions: `/orb/<cluster>/config/exclusions`."""

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Keys:
    """Builds and parses the coordinator's keys of one cluster. Each prefix ends in a slash.

    A method that builds a key raises ValueError for an invalid name. A valid name is 1 to 64 characters of
    `A-Za-z0-9._-`, with a letter or digit at both ends.
    """

    cluster: str

    def __post_init__(self) -> None:
        _named("cluster", self.cluster)

    @property
    def root(self) -> str:
        return f"/orb/{self.cluster}/"

    @property
    def leader(self) -> str:
        """The key of the leader's record (LeaderRecord)."""
        return f"{self.root}leader"

    @property
    def epoch(self) -> str:
        """The key of the cluster's epoch (EpochRecord)."""
        return f"{self.root}epoch"

    @property
    def public_suffixes(self) -> str:
        """The key of the public suffix list, by which hosts are assigned to partitions. The value is compressed."""
        return f"{self.root}public_suffixes"

    @property
    def masters(self) -> str:
        """The prefix of the keys of live masters. Each has one key, whose value is a MemberRecord."""
        return f"{self.root}masters/"

    @property
    def workers(self) -> str:
        """The prefix of the keys of live workers. Each has one key, whose value is a MemberRecord."""
        return f"{self.root}workers/"

    @property
    def partitions(self) -> str:
        """The prefix of the keys of partitions, each with its owner (PartitionRecord)."""
        return f"{self.root}partitions/"

    @property
    def crawls(self) -> str:
        """The prefix of the keys of crawls, each with its published spec (CrawlRecord)."""
        return f"{self.root}crawls/"

    @property
    def configuration(self) -> str:
        """The prefix of the keys `SETTINGS`, `DRAINS` and `EXCLUSIONS`: the members' desired state (ConfigRecord)."""
        return f"{self.root}config/"

    def master(self, member: str) -> str:
        return self.masters + _named("master", member)

    def worker(self, member: str) -> str:
        return self.workers + _named("worker", member)

    def partition(self, partition: Partition) -> str:
        return f"{self.partitions}{partition}"

    def crawl(self, crawl_id: CrawlId) -> str:
        return f"{self.crawls}{crawl_id}"

    def setting(self, name: str) -> str:
        return self.configuration + _named("setting", name)

    def master_of(self, key: str) -> str | None:
        """Return the name of the master that the key belongs to. Return None for any other key.

        `worker_of`, `partition_of` and `crawl_of` do the same for the keys of workers, partitions and crawls.
        """
        return _after(self.masters, key)

    def worker_of(self, key: str) -> str | None:
        return _after(self.workers, key)

    def partition_of(self, key: str) -> Partition | None:
        number = _number(_after(self.partitions, key))
        return None if number is None else Partition(number)

    def crawl_of(self, key: str) -> CrawlId | None:
        number = _number(_after(self.crawls, key))
        return None if number is None else CrawlId(number)


class LeaderRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The leader's id, and the address at which other masters reach its HTTP API."""

    id: str
    address: str


class MemberRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A live master or worker.

    - `address`: where a master's HTTP API is reached. Empty for a worker.
    - `pool`, `capacity`, `allow_net`: set for a worker only. `capacity` is the number of visits that it can have at
      once. `allow_net` are private networks that it may reach, if the crawl's spec allows them as well.
    - `endpoints`: the `host:port` of each server that the member runs or uses, such as the database. No crawl may reach
      these servers.
    """

    id: str
    version: str
    started_at_ms: int
    address: str = ""
    pool: str = ""
    capacity: int = 0
    draining: bool = False
    allow_net: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()


class PartitionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The owner of a partition. It is written only to assign an owner, and each write begins a new term.

    The term is (epoch, the coordinator's revision of the record). `started_at_ms` is when the owner's process started.
    A process with the same id that started later is not the owner.
    """

    owner: str
    epoch: int
    started_at_ms: int

    def term(self, revision: int) -> Term:
        """Return the owner's term. `revision` is the coordinator's revision of the last write of this record."""
        return term_of(self.epoch, revision)


class EpochRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The epoch of the cluster. The leader raises it if the coordinator was replaced or has no epoch."""

    epoch: int


class CrawlRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A crawl as workers need it: the active spec, its revision, and whether the crawl is paused or deleted (`gone`).

    `partitions` is the cluster's number of partitions, which determines the owner of a link.
    """

    revision: int
    partitions: int
    spec: msgspec.Raw
    gone: bool = False
    paused: bool = False


class ConfigRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the members' desired state. The key decides which part `value` is.

    - `value`: for `SETTINGS` a shared.domain.ops.config.HotConfig, for `DRAINS` a Drains, for `EXCLUSIONS` the list of
      targets in force.
    - `revision`: the revision of the configuration or of the exclusions in the database, 0 for drains.
    """

    value: msgspec.Raw
    changed_at_ms: int = 0
    changed_by: str = ""
    revision: int = 0


Record = LeaderRecord | MemberRecord | PartitionRecord | EpochRecord | CrawlRecord | ConfigRecord
R = TypeVar("R", bound=Record)

_decoders: Final[dict[type[msgspec.Struct], msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (LeaderRecord, MemberRecord, PartitionRecord, EpochRecord, CrawlRecord, ConfigRecord)
}
_encoder: Final = msgspec.json.Encoder()


def encode_record(record: Record) -> bytes:
    """Encode the record as JSON, to be stored under its key."""
    return _encoder.encode(record)


def decode_record(kind: type[R], value: bytes) -> R:
    """Decode the value of a key as a record of the type `kind`. Raise Malformed if it is not such a record."""
    try:
        record: R = _decoders[kind].decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"no {kind.__name__}: {error}") from error
    return record


def encode_suffixes(text: str) -> bytes:
    """Compress the text of the public suffix list, to be stored under its key."""
    return zlib.compress(text.encode(), 9)


def decode_suffixes(value: bytes) -> str:
    """Return the text of the public suffix list from the value of its key. Raise Malformed if it cannot be decoded."""
    try:
        return zlib.decompress(value).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise Malformed(f"no public suffix list: {error}") from error


def _named(what: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a {what}: 1 to 64 of A-Z a-z 0-9 . _ -, letter or digit at the ends")
    return name


def _after(prefix: str, key: str) -> str | None:
    name = key.removeprefix(prefix)
    return name if name != key and _NAME.fullmatch(name) else None


def _number(text: str | None) -> int | None:
    """Return the number that `text` represents in decimal digits, without leading zeros.

    Return None for any other text, and for None.
    """
    if text is None or not (text.isascii() and text.isdigit()) or (text != "0" and text.startswith("0")):
        return None
    return int(text)
