"""/v1/dead-letters: URLs and messages that were given up, with the evidence, until they are replayed or discarded."""

import uuid
from typing import Annotated, Final

from fastapi import Path, Query, Response

from api.http.deps import CONDITIONAL, UNCHANGED, By, Expected, Page, Served, Services, etag, problems
from api.http.routing import Router
from api.routes.crawl_verbs import commanded
from api.schemas.frontier import DeadLetter
from api.schemas.hosts import CommandAccepted
from api.schemas.model import Listing
from shared.domain.frontier.commands import CommandKind
from shared.domain.ids import CrawlId, Partition
from shared.domain.reads.declared import Actor, DeadLetterView
from shared.ports.catalog import Missing, Stale

router = Router(prefix="/v1/dead-letters", tags=["dead-letters"], responses=problems(404))

_NEWEST: Final = 2**63 - 1

Letter = Annotated[int, Path(ge=1, le=_NEWEST, description="The number of the dead letter.", examples=[17])]
OfCrawl = Annotated[str, Query(min_length=1, max_length=63, description="The name of the crawl.", examples=["docs"])]


@router.get("", summary="List dead letters")
async def list_dead_letters(
    served: Served,
    page: Page,
    response: Response,
    crawl: Annotated[
        str | None, Query(min_length=1, max_length=63, description="Only dead letters of this crawl.")
    ] = None,
) -> Listing[DeadLetter]:
    """List dead letters, newest first.

    A page ends early once it has 8 MiB of evidence. Continue until `next` is null.
    """
    crawl_id = None if crawl is None else (await served.catalog.crawl(crawl)).crawl_id
    before = page.place(int, _NEWEST)
    rows, place = await served.catalog.dead_letters(crawl_id, before=before, max_count=page.max_count)
    return Listing(items=[DeadLetter.of(letter) for letter in rows], next=page.next(place, response))


@router.post("/replay", status_code=202, summary="Replay a crawl's dead letters")
async def replay_dead_letters(crawl: OfCrawl, served: Served, by: By) -> CommandAccepted:
    """Replay all dead letters of a crawl.

    A message that could not be read belongs to no crawl, so its dead letter must be replayed by its id.
    """
    return await _ask_all(served, by, crawl, CommandKind.REPLAY)


@router.delete("", status_code=202, summary="Discard a crawl's dead letters")
async def discard_dead_letters(crawl: OfCrawl, served: Served, by: By) -> CommandAccepted:
    """Delete all dead letters of a crawl."""
    return await _ask_all(served, by, crawl, CommandKind.DISCARD)


@router.get("/{letter:int}", summary="Get a dead letter", dependencies=[CONDITIONAL], responses=UNCHANGED)
async def get_dead_letter(letter: Letter, served: Served, response: Response) -> DeadLetter:
    """Return a dead letter with its evidence: what was tried, and how it ended. A dead letter never changes."""
    stored = await _found(served, letter)
    response.headers.update(etag(stored.tag))
    return DeadLetter.of(stored)


@router.post(
    "/{letter:int}/replay", status_code=202, summary="Replay a dead letter",
    responses=problems(412),
)  # fmt: skip
async def replay_dead_letter(letter: Letter, served: Served, by: By, expected: Expected) -> CommandAccepted:
    """Replay a dead letter: queue its URL again with new attempts, or publish its message again.

    A URL is queued only if it is still failed. The dead letter is deleted when the command is applied. If the crawl is
    `complete`, it runs again. If it finished for another reason, the URL waits in the queue until `start`. A further
    failure creates a new dead letter.

    A dead letter of kind `shard` (a URL shard that could not be read) is only deleted. Its URLs were published again
    automatically.
    """
    return await _ask(served, by, await _found(served, letter, expected), CommandKind.REPLAY)


@router.delete("/{letter:int}", status_code=202, summary="Discard a dead letter", responses=problems(412))
async def discard_dead_letter(letter: Letter, served: Served, by: By, expected: Expected) -> CommandAccepted:
    """Delete the dead letter with its evidence. If it was created for a URL, the URL remains failed."""
    return await _ask(served, by, await _found(served, letter, expected), CommandKind.DISCARD)


async def _found(served: Services, letter: int, expected: frozenset[str] | None = None) -> DeadLetterView:
    stored = await served.catalog.dead_letter(letter)
    if stored is None:
        raise Missing(f"there is no dead letter {letter}")
    if expected is not None and stored.tag not in expected:
        raise Stale(stored.tag)
    return stored


async def _ask(served: Services, by: Actor, letter: DeadLetterView, kind: CommandKind) -> CommandAccepted:
    crawl_id = letter.crawl_id or CrawlId(0)
    args: dict[str, object] = {"letter": letter.id}
    return CommandAccepted(
        command=await commanded(served, _named(kind), crawl_id, kind, args, by, Partition(letter.partition))
    )


async def _ask_all(served: Services, by: Actor, crawl: str, kind: CommandKind) -> CommandAccepted:
    crawl_id = (await served.catalog.crawl(crawl)).crawl_id
    return CommandAccepted(command=await commanded(served, _named(kind), crawl_id, kind, {"letter": 0}, by))


def _named(kind: CommandKind) -> str:
    return f"{kind}-{uuid.uuid4().hex}"
