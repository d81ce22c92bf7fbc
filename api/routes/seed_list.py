"""GET and DELETE /v1/crawls/{name}/seeds: the URLs that a crawl starts from, and their deletion."""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from fastapi import Response

from api.crawls.seed_places import Place, between, fits, pieces
from api.http.deps import By, Expected, Page, Served, Services, problems
from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.http.routing import Router
from api.routes.crawl_verbs import commanded
from api.routes.urls import Name
from api.schemas.model import Listing
from api.schemas.pages import SeedSource, SeedSummary, seed_body
from api.schemas.seeds import SeedDeletion, SeedDeletionAccepted
from shared.domain.crawl.spec import CrawlSpec, decode_spec, encode_spec
from shared.domain.frontier.commands import CommandKind
from shared.domain.ids import Fingerprint, HostId, Partition
from shared.domain.reads.declared import Actor, Declaration, DeclaredCrawl
from shared.domain.web.url import Location, locate, partition_of
from shared.ports.catalog import Stale, UrlPlace

router = Router(prefix="/v1/crawls/{name}/seeds", tags=["seeds"], responses=problems(404))

_ATTEMPTS: Final = 5
_SHOWN: Final = 20
SCANNED: Final = 5_000
"""Maximum number of rows that are read from the database for one page of uploaded seeds.

The rows also include the seeds of the spec. Rows of such seeds are skipped, because earlier pages have listed these
seeds. So a page may have few seeds, although many rows were read.
"""


@router.get("", summary="List seeds")
async def list_seeds(name: Name, served: Served, page: Page, response: Response) -> Listing[SeedSummary]:
    """List the seeds of a crawl: first the seeds of its spec in their order, then uploaded seeds by host.

    Seeds that were just accepted may not be listed yet. A page may be short or empty although more seeds follow:
    continue until `next` is null.
    """
    # The cursor: how many seeds of the spec were listed, then host and fingerprint of the last uploaded one.
    crawl = await served.catalog.crawl(name)
    spec = decode_spec(crawl.spec)
    declared, host_id, mark = page.place(tuple[int, int, bytes], (0, -1, b""))
    if 0 <= declared < len(spec.seeds):
        wanted = spec.seeds[declared : declared + page.max_count]
        located = [locate(seed.url) for seed in wanted]
        known = await served.catalog.known_seeds(crawl.crawl_id, [at for at in located if at is not None])
        items = [
            seed_body(
                seed.url,
                SeedSource.SPEC,
                seed.priority,
                seed.context,
                None if at is None else known.get(at.fingerprint),
            )
            for seed, at in zip(wanted, located, strict=True)
        ]
        # The uploaded seeds begin on a new page.
        return Listing(items=items, next=page.next((declared + len(wanted), host_id, mark), response))
    ours = {seed.url for seed in spec.seeds}
    max_count = min(SCANNED, page.max_count + len(ours))
    after = UrlPlace(HostId(host_id), Fingerprint(mark))
    rows = await served.catalog.seeds(crawl.crawl_id, after=after, max_count=max_count)
    uploaded = [seed for seed in rows if seed.url not in ours][: page.max_count]
    last = uploaded[-1] if len(uploaded) == page.max_count else rows[-1] if len(rows) == max_count else None
    place = None if last is None else (len(spec.seeds), last.host_id, last.fingerprint)
    items = [seed_body(seed.url, SeedSource.UPLOADED, seed.priority, seed.context, seed) for seed in uploaded]
    return Listing(items=items, next=page.next(place, response))


@router.delete("", status_code=202, summary="Delete seeds", responses=problems(412))
async def delete_seeds(
    name: Name, wanted: SeedDeletion, served: Served, by: By, expected: Expected
) -> SeedDeletionAccepted:
    """Delete the listed seeds, or with `all` every seed that is not in the spec.

    A seed that was never fetched is excluded with the reason `seed_deleted`. It stays excluded, even if pages link to
    it, until it is added again. A seed that was fetched, or is being fetched, is not changed. A listed seed in the spec
    is also removed from the spec, as a new revision. The last seed of a spec cannot be removed.
    """
    named = _located(wanted)
    crawl, spec = await _without(served, name, {location.url for location in named}, expected, by)
    kept = [location for seed in spec.seeds if (location := locate(seed.url)) is not None]
    every = map(Partition, range(served.partitions)) if wanted.all else ()
    places = _places(kept if wanted.all else named, every, served.partitions)
    recorded: dict[str, object] = {"all": wanted.all, "seeds": len(named), "first": [at.url for at in named[:_SHOWN]]}
    command = f"seeds-{uuid.uuid4().hex}"
    if wanted.all and not all(map(fits, places.values())):
        kind, parts = CommandKind.DELETE_SEEDS_BETWEEN, {p: between(here) for p, here in places.items()}
    else:
        kind = CommandKind.DELETE_SEEDS
        parts = {p: [{"all": wanted.all, "places": piece} for piece in pieces(here)] for p, here in places.items()}
    # Published in order: an owner that has applied the last one has applied all.
    for left in range(max(map(len, parts.values()), default=1), 0, -1):
        args_by_partition = {partition: args[-left] for partition, args in parts.items() if len(args) >= left}
        name = command if left == 1 else f"{command}-{left}"
        await commanded(served, name, crawl.crawl_id, kind, recorded, by, args_by_partition=args_by_partition)
    return SeedDeletionAccepted(command=command, revision=crawl.revision)


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
    """Remove the seeds with these URLs from the crawl's spec. Return the crawl and its spec afterwards.

    - `expected`: the tags in If-Match. With None the change is applied to the current version.

    Raise Stale if the crawl has another version, and ApiProblem if the spec would have no seed left.
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
) -> Mapping[Partition, list[Place]]:
    """Group the locations by their partition, each as its host and fingerprint.

    `every`: partitions that are in the result even without a location; their list is then empty. `partitions`: the
    number of partitions of the cluster.
    """
    places: dict[Partition, list[Place]] = defaultdict(list, {partition: [] for partition in every})
    for location in locations:
        places[partition_of(location.host, partitions)].append((location.host, location.fingerprint))
    return places
