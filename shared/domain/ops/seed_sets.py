"""Named sets of seeds as operators declare them and the database stores them. No I/O.

A set is replaced as a whole. Only the difference from the earlier set is sent to the owners of the URLs: the seeds that
were added or changed, and the URLs that were removed.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.frontier.seed_contexts import SeedContext
from shared.domain.ids import CrawlId, Fingerprint, Revision
from shared.domain.web.url import Location, locate

MAX_SEED_SETS: Final = 100
"""The maximum number of seed sets of a crawl."""

MAX_SET_SEEDS: Final = 10_000
"""The maximum number of seeds in a set."""


class SetSeed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A seed of a set. `url` is canonical. `context`: its labels and source, if it has any."""

    url: str
    priority: int = 0
    context: SeedContext | None = None


@dataclass(frozen=True, slots=True)
class SeedSetSpec:
    """A declared seed set.

    - `document`: the list of seeds as the request had it, in JSON.
    - `seeds`: the seeds in canonical form, one for each URL.
    - `count`: the length of the list in `document`.
    """

    document: str
    seeds: tuple[SetSeed, ...]
    count: int


@dataclass(frozen=True, slots=True)
class StoredSeedSet:
    """A seed set as stored.

    - `document`: the declared seeds in JSON. It is empty if a request lists several sets, because it may be large.
    - `count`: the number of declared seeds, also if `document` is empty.
    - `revision`: the number of the set's last change. The changes of all seed sets are numbered together: a later
      change has a greater number.
    """

    name: str
    document: str
    count: int
    revision: int
    created_at_ms: int
    created_by: str
    changed_at_ms: int
    changed_by: str

    @property
    def tag(self) -> str:
        """The HTTP ETag of this version."""
        return f"seed-set-{self.revision}"

    @property
    def command_id(self) -> str:
        """The id of the command that applies this version."""
        return command_id_of(self.revision)


@dataclass(frozen=True, slots=True)
class SeedSetCommand:
    """A change of a crawl's seed set that is not published yet.

    - `revision`: the number of the change among the changes of all seed sets; `spec`: the revision of the crawl's spec.
    - `name`: the name of the set. `added`: the seeds that are new, or have another priority or context.
    - `removed`: the canonical URLs that left the set.
    """

    revision: int
    crawl_id: CrawlId
    spec: Revision
    name: str
    added: tuple[SetSeed, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SeedSetChange:
    """The difference between two versions of a seed set.

    `added`: the seeds that are new, or have another priority or context. `removed`: the canonical URLs that left the
    set.
    """

    added: tuple[SetSeed, ...]
    removed: tuple[str, ...]

    def locations(self) -> list[Location]:
        """Return all URLs of the change as Locations (URL, host and fingerprint), the added ones first."""
        return located((*(seed.url for seed in self.added), *self.removed))


def command_id_of(revision: int) -> str:
    """Return the id of the command for the change of a seed set with this revision."""
    return f"seed-set-{revision}"


def part_of(command_id: str, left: int) -> str:
    """Return the id of one part of the command `command_id`, which is sent to a partition in several parts.

    `left`: how many parts are left to send, this one included. With 3 left the id is `{command_id}-3`. The last part
    has the id `command_id`.
    """
    return command_id if left == 1 else f"{command_id}-{left}"


def producer_of(revision: int) -> str:
    """Return the producer name for the discoveries that contain the seeds of a seed set's change.

    `revision`: the revision of the change.
    """
    return f"seeds-set-{revision}"


def set_spec(given: Sequence[Any], scope: Mapping[str, object]) -> SeedSetSpec:
    """Return the seed set with the declared list `given`, for a crawl whose spec has this `scope`.

    If several seeds have the same canonical URL, only the first is used. Raise SpecError if the crawl cannot fetch some
    seeds; the error names each of them.
    """
    bounds = {name: scope[name] for name in ("schemes", "max_url_length") if scope.get(name) is not None}
    seeds = parse_spec({"seeds": given, "scope": bounds}).seeds if given else ()
    by_url: dict[str, SetSeed] = {}
    for seed in seeds:
        by_url.setdefault(seed.url, SetSeed(seed.url, seed.priority, seed.context))
    return SeedSetSpec(json.dumps(given, separators=(",", ":")), tuple(by_url.values()), len(given))


def change_between(before: Sequence[SetSeed], after: Sequence[SetSeed]) -> SeedSetChange:
    """Return the change from the seeds `before` to the seeds `after`.

    A seed whose priority or context changed is in `added` only.
    """
    earlier = set(before)
    kept = {seed.url for seed in after}
    added = tuple(seed for seed in after if seed not in earlier)
    return SeedSetChange(added, tuple(seed.url for seed in before if seed.url not in kept))


def located(urls: Iterable[str]) -> list[Location]:
    """Return canonical URLs as Locations (URL, host and fingerprint)."""
    return [at for at in map(locate, urls) if at is not None]


def fingerprints_of(urls: Iterable[str]) -> list[Fingerprint]:
    """Return the fingerprints of canonical URLs, sorted."""
    return sorted(at.fingerprint for at in located(urls))
