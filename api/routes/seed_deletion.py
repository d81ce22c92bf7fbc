"""DELETE /v1/crawls/{name}/seeds: seeds taken back."""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

import msgspec
from fastapi import Path

from api.deps import By, Expected, Served, Services, needs, problems
from api.errors import Kind, Problem
from api.fields import FieldError
from api.routes.turning import commanded
from api.routing import Router
from api.schemas.crawls import NAME
from api.schemas.seeds import SeedDeletion, SeedsAsked
from shared.domain.access import Role
from shared.domain.command import GREATEST, CommandKind
from shared.domain.crawl import CrawlSpec, decode_spec, encode_spec
from shared.domain.declared import Actor, Declaration, DeclaredCrawl
from shared.domain.ids import Partition
from shared.domain.url import Location, locate, partition_of
from shared.ports.catalog import Stale

router = Router(prefix="/v1/crawls/{name}/seeds", tags=["seeds"])

_ATTEMPTS: Final = 5
_SHOWN: Final = 20
MESSAGE_BYTES: Final = 512 * 1024
"""Of places in a command: half of the smallest limit a broker is likely to have."""

_PLACE_BYTES: Final = 24
Place = tuple[str, bytes]


@router.delete(
    "", status_code=202, summary="Delete seeds", operation_id="delete_seeds", dependencies=[needs(Role.OPERATOR)],
    responses=problems(404, 412),
)  # fmt: skip
async def delete_seeds(
    name: Annotated[str, Path(pattern=NAME)], wanted: SeedDeletion, served: Served, by: By, expected: Expected
) -> SeedsAsked:
    """A seed that was never fetched leaves the queue: it is excluded, reason `seed_deleted`, and stays so whatever page
    links to it, until it is added again. One that was fetched, or is being fetched, stays as it is. Seeds that the spec
    names are taken out of it, as a new revision; a spec keeps at least one. `all` means every seed but the spec's."""
    named = _located(wanted)
    crawl, spec = await _without(served, name, {location.url for location in named}, expected, by)
    kept = [location for seed in spec.seeds if (location := locate(seed.url)) is not None]
    every = map(Partition, range(served.partitions)) if wanted.all else ()
    places = _places(kept if wanted.all else named, every, served.partitions)
    said: dict[str, object] = {"all": wanted.all, "seeds": len(named), "first": [at.url for at in named[:_SHOWN]]}
    command = f"seeds-{uuid.uuid4().hex}"
    if wanted.all and any(size_of(here) > MESSAGE_BYTES for here in places.values()):
        kind, parts = CommandKind.DELETE_SEEDS_BETWEEN, {p: between(here) for p, here in places.items()}
    else:
        kind = CommandKind.DELETE_SEEDS
        parts = {p: [{"all": wanted.all, "places": piece} for piece in pieces(here)] for p, here in places.items()}
    # In order: an owner who has applied the last has applied all.
    for left in range(max(map(len, parts.values()), default=1), 0, -1):
        apart = {partition: args[-left] for partition, args in parts.items() if len(args) >= left}
        name = command if left == 1 else f"{command}-{left}"
        await commanded(served, name, crawl.crawl_id, kind, said, by, apart=apart)
    return SeedsAsked(command=command, revision=crawl.revision)


def size_of(places: Sequence[Place]) -> int:
    """About how many bytes of a message they take."""
    return sum(len(host) + _PLACE_BYTES for host, _ in places)


def pieces(places: Sequence[Place]) -> Sequence[Sequence[Place]]:
    """In their order, as many together as a message may hold; at least one piece, be it empty."""
    found: list[list[Place]] = [[]]
    size = 0
    for place in places:
        size += len(place[0]) + _PLACE_BYTES
        if size > MESSAGE_BYTES and found[-1]:
            found.append([])
            size = len(place[0]) + _PLACE_BYTES
        found[-1].append(place)
    return found


def between(kept: Sequence[Place]) -> list[Mapping[str, object]]:
    """Arguments of commands that end every seed but those kept, each among the fingerprints of its own."""
    parts = pieces(sorted(kept, key=lambda place: place[1]))
    bounds = [b"", *(part[-1][1] for part in parts[:-1]), GREATEST]
    return [{"places": part, "above": bounds[i], "upto": bounds[i + 1]} for i, part in enumerate(parts)]


def _located(wanted: SeedDeletion) -> list[Location]:
    if wanted.all == bool(wanted.seeds):
        wrong = FieldError("seeds", "is needed, or `all` in its place", "name the seeds, or say `all`: true")
        raise Problem(Kind.INVALID, "it must say which seeds", errors=[wrong])
    found = [locate(url) for url in wanted.seeds]
    wrong_ones = [FieldError(f"seeds[{i}]", "is no http or https URL") for i, at in enumerate(found) if at is None]
    if wrong_ones:
        raise Problem(Kind.INVALID, "the seeds are not valid", errors=wrong_ones)
    return [location for location in found if location is not None]


async def _without(
    served: Services, name: str, urls: set[str], expected: frozenset[str] | None, by: Actor
) -> tuple[DeclaredCrawl, CrawlSpec]:
    """The crawl, its spec without these seeds; without If-Match applied to whatever is there."""
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
            raise Problem(Kind.INVALID, "a crawl's spec needs at least one seed", hint=hint)
        changed = msgspec.structs.replace(spec, seeds=kept)
        declaration = Declaration(name, encode_spec(changed).decode(), crawl.labels)
        try:
            made, _ = await served.catalog.put(
                declaration, expected=frozenset({crawl.tag}), start=False, actor=by, now_ms=served.clock.unix_ms()
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
    """Host and fingerprint of each, by the partition whose owner is to be told; `every`: who is told in any case."""
    found: dict[Partition, list[tuple[str, bytes]]] = defaultdict(list, {partition: [] for partition in every})
    for location in locations:
        found[partition_of(location.host, partitions)].append((location.host, location.fingerprint))
    return found
