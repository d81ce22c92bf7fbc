"""GET /v1/crawls/{name}/seeds: the URLs that a crawl starts from, and the state of each."""

from typing import Final

from fastapi import Response

from api.http.deps import Page, Served, problems
from api.http.routing import Router
from api.routes.urls import Name
from api.schemas.model import Listing
from api.schemas.pages import SeedSource, SeedSummary, seed_body
from shared.domain.crawl.spec import decode_spec
from shared.domain.ids import Fingerprint, HostId
from shared.domain.web.url import locate
from shared.ports.catalog import UrlPlace

router = Router(prefix="/v1/crawls/{name}/seeds", tags=["seeds"], responses=problems(404))

SCANNED: Final = 5_000
"""Maximum stored seeds that one page of the list reads in order to skip those of the spec."""


@router.get("", summary="List seeds")
async def list_seeds(name: Name, served: Served, page: Page, response: Response) -> Listing[SeedSummary]:
    """List the seeds of a crawl: those of the spec in its order, then uploaded seeds by host.

    Seeds that were just accepted may not be listed yet. A page may be short or empty before the end: follow `next`.
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
