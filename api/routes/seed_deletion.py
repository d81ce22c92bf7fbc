"""DELETE /v1/crawls/{name}/seeds: delete the listed seeds of a crawl, or all that are not in its spec."""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

import msgspec
from fastapi import Path

from api.http.deps import By, Expected, Served, Services, problems
from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.http.routing import Router
from api.routes.crawl_verbs import commanded
from api.schemas.crawls import NAME
from api.schemas.seeds import SeedDeletion, SeedDeletionAccepted
from shared.domain.crawl.spec import CrawlSpec, decode_spec, encode_spec
from shared.domain.frontier.commands import GREATEST, CommandKind
from shared.domain.ids import Partition
from shared.domain.reads.declared import Actor, Declaration, DeclaredCrawl
from shared.domain.web.url import Location, locate, partition_of
from shared.ports.catalog import Stale

router = Router(prefix="/v1/crawls/{name}/seeds", tags=["seeds"])

_ATTEMPTS: Final = 5
_SHOWN: Final = 20
MESSAGE_BYTES: Final = 512 * 1024
"""Maximum bytes of places in a command: half of the smallest limit that a broker is likely to have."""

_PLACE_BYTES: Final = 24
Place = tuple[str, bytes]


@router.delete("", status_code=202, summary="Delete seeds", responses=problems(404, 412))
async def delete_seeds(
    name: Annotated[str, Path(pattern=NAME)], wanted: SeedDeletion, served: Served, by: By, expected: Expected
) -> SeedDeletionAccepted:
    """Delete the listed seeds, or with `all` every seed that is not in the spec.

    A seed that was never fetched is excluded with the reason `seed_deleted`. It stays excluded, even if pages link to
    it, until it is added again. A seed that was fetched, or is being fetched, stays as it is. Seeds in the spec are
    removed from it as a new revision; a spec keeps at least one.
    """
    named = _located(wanted)
    crawl, spec = await _without(served, name, {location.url for location in named}, expected, by)
    kept = [location for seed in spec.seeds if (location := locate(seed.url)) is not None]
    every = map(Partition, range(served.partitions)) if wanted.all else ()
    places = _places(kept if wanted.all else named, every, served.partitions)
    recorded: dict[str, object] = {"all": wanted.all, "seeds": len(named), "first": [at.url for at in named[:_SHOWN]]}
    command = f"seeds-{uuid.uuid4().hex}"
    if wanted.all and any(size_of(here) > MESSAGE_BYTES for here in places.values()):
        kind, parts = CommandKind.DELETE_SEEDS_BETWEEN, {p: between(here) for p, here in places.items()}
    else:
        kind = CommandKind.DELETE_SEEDS
        parts = {p: [{"all": wanted.all, "places": piece} for piece in pieces(here)] for p, here in places.items()}
    # Published in order: an owner that has applied the last one has applied all.
    for left in range(max(map(len, parts.values()), default=1), 0, -1):
        apart = {partition: args[-left] for partition, args in parts.items() if len(args) >= left}
        name = command if left == 1 else f"{command}-{left}"
        await commanded(served, name, crawl.crawl_id, kind, recorded, by, apart=apart)
    return SeedDeletionAccepted(command=command, revision=crawl.revision)


def size_of(places: Sequence[Place]) -> int:
    """Return about how many bytes the places (host and fingerprint of URLs) take in a message."""
    return sum(len(host) + _PLACE_BYTES for host, _ in places)


def pieces(places: Sequence[Place]) -> Sequence[Sequence[Place]]:
    """Split the places, in order, into parts that fit in a message. Return at least one part, even if it is empty."""
    parts: list[list[Place]] = [[]]
    size = 0
    for place in places:
        size += len(place[0]) + _PLACE_BYTES
        if size > MESSAGE_BYTES and parts[-1]:
            parts.append([])
            size = len(place[0]) + _PLACE_BYTES
        parts[-1].append(place)
    return parts


def between(kept: Sequence[Place]) -> list[Mapping[str, object]]:
    """Return the arguments of commands that together delete every seed except those in `kept`.

    Each command covers a range of fingerprints; together they cover all.
    """
    parts = pieces(sorted(kept, key=lambda place: place[1]))
    bounds = [b"", *(part[-1][1] for part in parts[:-1]), GREATEST]
    return [{"places": part, "above": bounds[i], "upto": bounds[i + 1]} for i, part in enumerate(parts)]


def _located(wanted: SeedDeletion) -> list[Location]:
    if wanted.all == bool(wanted.seeds):
        wrong = FieldError("seeds", "is required, unless `all` is true", "name the seeds, or set `all` to true")
        raise ApiProblem(ProblemKind.INVALID, "no seeds are given", errors=[wrong])
    found = [locate(url) for url in wanted.seeds]
    wrong_ones = [FieldError(f"seeds[{i}]", "is not an http or https URL") for i, at in enumerate(found) if at is None]
    if wrong_ones:
        raise ApiProblem(ProblemKind.INVALID, "the seeds are not valid", errors=wrong_ones)
    return [location for location in found if location is not None]


async def _without(
    served: Services, name: str, urls: set[str], expected: frozenset[str] | None, by: Actor
) -> tuple[DeclaredCrawl, CrawlSpec]:
    """Remove these seeds from the crawl's spec. Return the crawl and the spec.

    Without If-Match the change is applied to the current version.
    """
    attempts = 0
    while True:
        crawl = await served.catalog.crawl(name)
        if expected is not None and crawl.tag not in expected:
            raise Stale(crawl.tag)
        spec = decode_spec(crawl.spec)
        kept = tuple(seed for seed in spec.seeds if seed.url not in urls)
        if len(kept) == len(spec.seeds):
            return crawl, spec
        if not kept:
            hint = "put a spec with another seed first, or delete the crawl"
            raise ApiProblem(ProblemKind.INVALID, "a crawl's spec needs at least one seed", hint=hint)
        changed = msgspec.structs.replace(spec, seeds=kept)
        declaration = Declaration(name, encode_spec(changed).decode(), crawl.labels, crawl.desired)
        try:
            made, _ = await served.catalog.put(
                declaration,
                expected=frozenset({crawl.tag}),
                start=False,
                actor=by,
                now_ms=served.clock.unix_ms(),
                enforce=False,
            )
        except Stale:
            attempts += 1
            if expected is not None or attempts == _ATTEMPTS:
                raise
            continue
        served.plane.wake()
        return made, changed


def _places(
    locations: Iterable[Location], every: Iterable[Partition], partitions: int
) -> Mapping[Partition, list[tuple[str, bytes]]]:
    """Return the host and fingerprint of each location by partition. The partitions in `every` are always included."""
    places: dict[Partition, list[tuple[str, bytes]]] = defaultdict(list, {partition: [] for partition in every})
    for location in locations:
        places[partition_of(location.host, partitions)].append((location.host, location.fingerprint))
    return places
