"""/v1/crawls/{name}/items: what rules took out of pages. All of them as a file: `exports`."""

from typing import Annotated

from fastapi import Path, Query, Response

from api.deps import CONDITIONAL, UNCHANGED, Page, Served, etag, needs, problems
from api.routes.pages import digest_of
from api.routes.urls import Name, located
from api.routing import Router
from api.schemas.items import ITEM_ID, Item, item_body
from api.schemas.model import RULE_NAME, Listing
from shared.domain.access import Role
from shared.domain.items import ItemFilter
from shared.domain.url import MAX_URL_CHARS
from shared.ports.catalog import Missing

router = Router(
    prefix="/v1/crawls/{name}/items", tags=["items"], dependencies=[needs(Role.VIEWER)], responses=problems(404)
)

ItemId = Annotated[
    str, Path(alias="item", pattern=ITEM_ID, description="Its `id`.", examples=["259b8e05857a7c0c0d60c4d4d9d40bd7"])
]


@router.get("", summary="List items", operation_id="list_items")
async def list_items(
    name: Name,
    served: Served,
    page: Page,
    response: Response,
    rule: Annotated[
        str | None,
        Query(max_length=63, pattern=RULE_NAME, description="Only those of this rule.", examples=["product"]),
    ] = None,
    url: Annotated[
        str | None,
        Query(max_length=MAX_URL_CHARS, description="Only those of this page, in any spelling."),
    ] = None,
) -> Listing[Item]:
    """In the order of their ids, which says nothing. A page of the list looks at a bounded number of items, so one may
    be short or empty before the end: follow `next`. A crawl that runs adds items within seconds; a page that is fetched
    again has the items of its latest fetch."""
    crawl = await served.catalog.crawl(name)
    wanted = ItemFilter(rule, None if url is None else located(url).fingerprint)
    found, place = await served.catalog.items(
        crawl.crawl_id, after=page.place(bytes, b""), which=wanted, most=page.most
    )
    return Listing(items=[item_body(each) for each in found], next=page.next(place, response))


@router.get("/{item}", summary="Get an item", operation_id="get_item", dependencies=[CONDITIONAL], responses=UNCHANGED)
async def get_item(name: Name, item: ItemId, served: Served, response: Response) -> Item:
    """As its page's latest fetch gave it; 404 where that gave it no longer."""
    crawl = await served.catalog.crawl(name)
    found = await served.catalog.item(crawl.crawl_id, bytes.fromhex(item))
    if found is None:
        raise Missing(f"the crawl {name!r} has no item {item}")
    body = item_body(found)
    response.headers.update(etag(digest_of(body)))
    return body
