"""/v1/dead-letters: what was given up, with the evidence, until someone replays or discards it."""

import uuid
from typing import Annotated, Final

from fastapi import Path, Query, Response

from api.deps import CONDITIONAL, UNCHANGED, By, Expected, Page, Served, Services, etag, needs, problems
from api.routes.turning import commanded
from api.routing import Router
from api.schemas.frontier import DeadLetter, letter_body
from api.schemas.hosts import Asked
from api.schemas.model import Listing
from shared.domain.access import Role
from shared.domain.command import CommandKind
from shared.domain.declared import Actor, DeadLetterView
from shared.domain.ids import CrawlId, Partition
from shared.ports.catalog import Missing, Stale

router = Router(prefix="/v1/dead-letters", tags=["dead-letters"], responses=problems(404))

_NEWEST: Final = 2**63 - 1
_READS: Final = [needs(Role.VIEWER)]
_WRITES: Final = [needs(Role.OPERATOR)]

Letter = Annotated[int, Path(ge=1, le=_NEWEST, description="The letter's number.", examples=[17])]
OfCrawl = Annotated[
    str, Query(min_length=1, max_length=63, description="The crawl whose letters are meant.", examples=["docs"])
]


@router.get("", summary="List dead letters", operation_id="list_dead_letters", dependencies=_READS)
async def list_dead_letters(
    served: Served,
    page: Page,
    response: Response,
    crawl: Annotated[str | None, Query(min_length=1, max_length=63, description="Only those of this crawl.")] = None,
) -> Listing[DeadLetter]:
    """Newest first."""
    crawl_id = None if crawl is None else (await served.catalog.crawl(crawl)).crawl_id
    before = page.place(int, _NEWEST)
    found = await served.catalog.dead_letters(crawl_id, before=before, most=page.most + 1)
    shown = found[: page.most]
    place = shown[-1].id if len(found) > page.most else None
    return Listing(items=[letter_body(letter) for letter in shown], next=page.next(place, response))


@router.post(
    "/replay", status_code=202, summary="Replay a crawl's dead letters", operation_id="replay_dead_letters",
    dependencies=_WRITES,
)  # fmt: skip
async def replay_dead_letters(crawl: OfCrawl, served: Served, by: By) -> Asked:
    """As each of them alone. Messages that could not be read name no crawl: replay them one by one."""
    return await _ask_all(served, by, crawl, CommandKind.REPLAY)


@router.delete(
    "", status_code=202, summary="Discard a crawl's dead letters", operation_id="discard_dead_letters",
    dependencies=_WRITES,
)  # fmt: skip
async def discard_dead_letters(crawl: OfCrawl, served: Served, by: By) -> Asked:
    """As each of them alone."""
    return await _ask_all(served, by, crawl, CommandKind.DISCARD)


@router.get(
    "/{letter:int}", summary="Get a dead letter", operation_id="get_dead_letter", dependencies=[*_READS, CONDITIONAL],
    responses=UNCHANGED,
)  # fmt: skip
async def get_dead_letter(letter: Letter, served: Served, response: Response) -> DeadLetter:
    """With the evidence: what was tried, and how it ended. A letter never changes."""
    found = await _found(served, letter)
    response.headers.update(etag(found.tag))
    return letter_body(found)


@router.post(
    "/{letter:int}/replay", status_code=202, summary="Replay a dead letter", operation_id="replay_dead_letter",
    dependencies=_WRITES, responses=problems(412),
)  # fmt: skip
async def replay_dead_letter(letter: Letter, served: Served, by: By, expected: Expected) -> Asked:
    """A URL that is still failed is queued again, with fresh attempts; a message is published again, as if it had just
    come. The letter is gone when that is done. A crawl that was complete runs again; one that is finished for another
    reason keeps the URL queued until `start`. What fails again is another letter. The URLs of a `shard` that could not
    be read were sent anew by themselves: only the letter goes."""
    return await _ask(served, by, await _found(served, letter, expected), CommandKind.REPLAY)


@router.delete(
    "/{letter:int}", status_code=202, summary="Discard a dead letter", operation_id="discard_dead_letter",
    dependencies=_WRITES, responses=problems(412),
)  # fmt: skip
async def discard_dead_letter(letter: Letter, served: Served, by: By, expected: Expected) -> Asked:
    """Its evidence is gone for good; a URL stays failed."""
    return await _ask(served, by, await _found(served, letter, expected), CommandKind.DISCARD)


async def _found(served: Services, letter: int, expected: frozenset[str] | None = None) -> DeadLetterView:
    found = await served.catalog.dead_letter(letter)
    if found is None:
        raise Missing(f"there is no dead letter {letter}")
    if expected is not None and found.tag not in expected:
        raise Stale(found.tag)
    return found


async def _ask(served: Services, by: Actor, letter: DeadLetterView, kind: CommandKind) -> Asked:
    crawl_id = letter.crawl_id or CrawlId(0)
    args: dict[str, object] = {"letter": letter.id}
    return Asked(command=await commanded(served, _named(kind), crawl_id, kind, args, by, Partition(letter.partition)))


async def _ask_all(served: Services, by: Actor, crawl: str, kind: CommandKind) -> Asked:
    crawl_id = (await served.catalog.crawl(crawl)).crawl_id
    return Asked(command=await commanded(served, _named(kind), crawl_id, kind, {"letter": 0}, by))


def _named(kind: CommandKind) -> str:
    return f"{kind}-{uuid.uuid4().hex}"
