"""/v1/crawls/{name}/seeds, read: the URLs that a crawl starts from, and what became of each."""

from typing import Final

from fastapi import Response

from api.deps import Page, Served, needs, problems
from api.routes.urls import Name
from api.routing import Router
from api.schemas.model import Listing
from api.schemas.pages import SeedSource, SeedSummary, seed_body
from shared.domain.access import Role
from shared.domain.crawl import decode_spec
from shared.domain.ids import Fingerprint, HostId
from shared.domain.url import locate
from shared.ports.catalog import UrlPlace

router = Router(
    prefix="/v1/crawls/{name}/seeds", tags=["seeds"], dependencies=[needs(Role.VIEWER)], responses=problems(404)
)

SCANNED: Final = 5_000
"""Seeds of the frontier that one page of the list looks at, at most, to leave out those of the spec."""


@router.get("", summary="List seeds", operation_id="list_seeds")
async def list_seeds(name: Name, served: Served, page: Page, response: Response) -> Listing[SeedSummary]:
    """Those of the spec in its order, then the uploaded ones by host: of these, what was accepted a moment ago is not
    there yet. A page may be short or empty before the end: follow `next`."""
    # The cursor: how many seeds of the spec lie behind us, then host and fingerprint of the last uploaded one.
    crawl = await served.catalog.crawl(name)
    spec = decode_spec(crawl.spec)
    declared, host_id, mark = page.place(tuple[int, int, bytes], (0, -1, b""))
    if 0 <= declared < len(spec.seeds):
        wanted = spec.seeds[declared : declared + page.most]
        located = [locate(seed.url) for seed in wanted]
        known = await served.catalog.known_seeds(crawl.crawl_id, [at for at in located if at is not None])
        items = [
            seed_body(seed.url, SeedSource.SPEC, seed.priority, None if at is None else known.get(at.fingerprint))
            for seed, at in zip(wanted, located, strict=True)
        ]
        # The uploaded ones begin with a page of their own.
        return Listing(items=items, next=page.next((declared + len(wanted), host_id, mark), response))
    ours = {seed.url for seed in spec.seeds}
    most = min(SCANNED, page.most + len(ours))
    after = UrlPlace(HostId(host_id), Fingerprint(mark))
    found = await served.catalog.seeds(crawl.crawl_id, after=after, most=most)
    uploaded = [seed for seed in found if seed.url not in ours][: page.most]
    last = uploaded[-1] if len(uploaded) == page.most else found[-1] if len(found) == most else None
    place = None if last is None else (len(spec.seeds), last.host_id, last.fingerprint)
    items = [seed_body(seed.url, SeedSource.UPLOADED, seed.priority, seed) for seed in uploaded]
    return Listing(items=items, next=page.next(place, response))
