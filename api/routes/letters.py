"""/v1/dead-letters: what was given up, with the evidence."""

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Response

from api.deps import Page, Served, needs, problems
from api.schemas.frontier import DeadLetter, letter_body
from api.schemas.model import Listing
from shared.domain.access import Role
from shared.ports.catalog import Missing

router = APIRouter(
    prefix="/v1/dead-letters", tags=["dead-letters"], dependencies=[needs(Role.VIEWER)], responses=problems(404)
)

_NEWEST: Final = 2**63 - 1


@router.get("", summary="List dead letters", operation_id="list_dead_letters")
async def list_dead_letters(
    served: Served,
    page: Page,
    response: Response,
    crawl: Annotated[str | None, Query(max_length=63, description="Only those of this crawl.")] = None,
) -> Listing[DeadLetter]:
    """Newest first."""
    crawl_id = None if crawl is None else (await served.catalog.crawl(crawl)).crawl_id
    before = page.place(int, _NEWEST)
    found = await served.catalog.dead_letters(crawl_id, before=before, most=page.most + 1)
    shown = found[: page.most]
    place = shown[-1].id if len(found) > page.most else None
    return Listing(items=[letter_body(letter) for letter in shown], next=page.next(place, response))


@router.get("/{letter}", summary="Get a dead letter", operation_id="get_dead_letter")
async def get_dead_letter(letter: Annotated[int, Path(ge=1, le=2**63 - 1)], served: Served) -> DeadLetter:
    """With the evidence: what was tried, and how it ended."""
    found = await served.catalog.dead_letter(letter)
    if found is None:
        raise Missing(f"there is no dead letter {letter}")
    return letter_body(found)
