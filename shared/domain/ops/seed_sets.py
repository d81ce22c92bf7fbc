"""Named sets of seeds as operators declare them and the database stores them. Pure.

A set is replaced as a whole. What differs from the set before is sent to the owners of the URLs: the seeds that it has
got, and the URLs that have left it.
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
"""The most seed sets of a crawl."""

MAX_SET_SEEDS: Final = 10_000
"""The most seeds of a set."""


class SetSeed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A seed of a set. `url` is canonical."""

    url: str
    priority: int = 0
    context: SeedContext | None = None


@dataclass(frozen=True, slots=True)
class SeedSetSpec:
    """A declared set. `document`: the list of seeds as it was put, in JSON. `seeds`: the same, one a URL."""

    document: str
    seeds: tuple[SetSeed, ...]
    count: int


@dataclass(frozen=True, slots=True)
class StoredSeedSet:
    """A seed set as stored. `revision` is that of its last change, and greater than that of all earlier changes.

    `document` is empty in lists of sets. `count`: the number of seeds that were put.
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
    """A change of a set of a crawl, which has the `spec` revision, that is not published yet."""

    revision: int
    crawl_id: CrawlId
    spec: Revision
    name: str
    added: tuple[SetSeed, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SeedSetChange:
    """What a change adds to a set, and the canonical URLs that leave it."""

    added: tuple[SetSeed, ...]
    removed: tuple[str, ...]

    def locations(self) -> list[Location]:
        """Return the places of the URLs that the change concerns."""
        return located((*(seed.url for seed in self.added), *self.removed))


def command_id_of(revision: int) -> str:
    """Return the id of the command that applies the change of this revision."""
    return f"seed-set-{revision}"


def producer_of(revision: int) -> str:
    """Return the name under which the seeds of a change are sent. A repeat of a message of that name is dropped."""
    return f"seeds-set-{revision}"


def set_spec(given: Sequence[Any], scope: Mapping[str, object]) -> SeedSetSpec:
    """Return the declared set of the seeds `given`, of a crawl with this scope, which may be empty.

    Raise SpecError with all seeds that the crawl could not fetch. Of seeds with one URL the first counts.
    """
    bounds = {name: scope[name] for name in ("schemes", "max_url_length") if scope.get(name) is not None}
    seeds = parse_spec({"seeds": given, "scope": bounds}).seeds if given else ()
    by_url: dict[str, SetSeed] = {}
    for seed in seeds:
        by_url.setdefault(seed.url, SetSeed(seed.url, seed.priority, seed.context))
    return SeedSetSpec(json.dumps(given, separators=(",", ":")), tuple(by_url.values()), len(given))


def change_between(before: Sequence[SetSeed], after: Sequence[SetSeed]) -> SeedSetChange:
    """Return what makes the set `after` of the set `before`. A seed with another priority or context is added anew."""
    earlier = set(before)
    kept = {seed.url for seed in after}
    added = tuple(seed for seed in after if seed not in earlier)
    return SeedSetChange(added, tuple(seed.url for seed in before if seed.url not in kept))


def located(urls: Iterable[str]) -> list[Location]:
    """Return the places of canonical URLs."""
    return [at for at in map(locate, urls) if at is not None]


def fingerprints_of(urls: Iterable[str]) -> list[Fingerprint]:
    """Return the fingerprints of canonical URLs, sorted."""
    return sorted(at.fingerprint for at in located(urls))
