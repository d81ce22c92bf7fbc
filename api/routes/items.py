"""/v1/crawls/{name}/items: list the items that rules extracted from pages.

The module `exports` returns all items of a crawl as one file.
"""

from typing import Annotated

from fastapi import Path, Query, Response

from api.http.deps import CONDITIONAL, UNCHANGED, Page, Served, etag, problems
from api.http.routing import Router
from api.routes.pages import digest_of
from api.routes.urls import Name, located
from api.schemas.items import ITEM_ID, Item, item_body
from api.schemas.model import RULE_NAME, Listing
from shared.domain.reads.items import ItemFilter
from shared.domain.web.url import MAX_URL_CHARS
from shared.ports.catalog import Missing

router = Router(prefix="/v1/crawls/{name}/items", tags=["items"], responses=problems(404))

ItemId = Annotated[
    str,
    Path(alias="item", pattern=ITEM_ID, description="The item's id.", examples=["259b8e05857a7c0c0d60c4d4d9d40bd7"]),
]


@router.get("", summary="List items")
async def list_items(
    name: Name,
    served: Served,
    page: Page,
    response: Response,
    rule: Annotated[
        str | None,
        Query(max_length=63, pattern=RULE_NAME, description="Only items of this rule.", examples=["product"]),
    ] = None,
    url: Annotated[
        str | None,
        Query(
            max_length=MAX_URL_CHARS, description="Only items of the page with this URL. It is put into canonical form."
        ),
    ] = None,
) -> Listing[Item]:
    """List the items of a crawl by id.

    A page of the list examines a bounded number of items and ends at 8 MiB. So it may be short or empty although more
    items follow: continue until `next` is null. Items of a running crawl appear within seconds. If a page was fetched
    again, only the items of its latest fetch are listed.
    """
    crawl = await served.catalog.crawl(name)
    wanted = ItemFilter(rule, None if url is None else located(url).fingerprint)
    rows, place = await served.catalog.items(
        crawl.crawl_id, after=page.place(bytes, b""), which=wanted, max_count=page.max_count
    )
    return Listing(items=[item_body(each) for each in rows], next=page.next(place, response))


@router.get("/{item}", summary="Get an item", dependencies=[CONDITIONAL], responses=UNCHANGED)
async def get_item(name: Name, item: ItemId, served: Served, response: Response) -> Item:
    """Return an item from the latest fetch of its page; 404 if that fetch did not give the item."""
    crawl = await served.catalog.crawl(name)
    stored = await served.catalog.item(crawl.crawl_id, bytes.fromhex(item))
    if stored is None:
        raise Missing(f"the crawl {name!r} has no item {item}")
    body = item_body(stored)
    response.headers.update(etag(digest_of(body)))
    return body
