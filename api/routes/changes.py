"""/v1/crawls/{name}/changes: pages that were found new, changed or gone, as a list and as a live stream."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Query, Request, Response

from api.http.authentication import standing
from api.http.change_stream import WINDOW_MS, ChangeStream
from api.http.deps import Page, Served, problem_content, problems
from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.http.routing import Router
from api.routes.urls import Name
from api.schemas.changes import KINDS, ChangeName, PageChangeList, change_body, gap_of
from api.schemas.model import ZonedMoment, ms_of
from shared.domain.reads.changes import ChangePlace, PageChangeView

_READ_AT_ONCE: Final = 200
_GREATEST: Final = 2**63 - 1
_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Changes, each an event named by its kind with a PageChangeSummary as `data`. Before them "
        "`gap` with a ChangesGap, if changes since the begin are deleted. `end` at the end.",
        "content": {
            "text/event-stream": {
                "schema": {"type": "string"},
                "example": "id: 1893456000000-3-17-0\nevent: changed\ndata: {}\n\n",
                "x-data": {"$ref": "#/components/schemas/PageChangeSummary"},
            }
        },
    },
    429: {
        "description": "The maximum number of streams is open on this master.",
        "content": problem_content(ProblemKind.BUSY),
    },
}

router = Router(prefix="/v1/crawls/{name}/changes", tags=["pages"], responses=problems(404))

Since = Annotated[
    ZonedMoment | None,
    Query(
        description="Only changes that were recorded at this time or later. It needs a time zone. Null: all that are "
        "kept."
    ),
]
Kinds = Annotated[list[ChangeName], Query(max_length=3, description="Only changes of these kinds.")]


@router.get("", summary="List changes of pages")
async def list_changes(
    name: Name,
    served: Served,
    page: Page,
    response: Response,
    since: Since = None,
    kind: Kinds = [],  # noqa: B006  the framework copies it
) -> PageChangeList:
    """List pages that were found new, changed or gone, sorted by the time of the change.

    Only a crawl with `recrawl` records changes. A change can enter the list some seconds after its time. Example: a
    client has read the list up to 12:00:05, and then a change of 12:00:02 is added. So a client that polls should set
    `since` to some seconds before the last change that it received. If retention has deleted changes after `since`,
    `gap` names the time up to which they are deleted.
    """
    crawl = await served.catalog.crawl(name)
    place = page.place(ChangePlace, ChangePlace(_ms(since) or -1))
    rows, after = await served.catalog.changes(
        crawl.crawl_id, after=place, kinds=_kinds(kind), max_count=page.max_count
    )
    at = None if after is None else tuple(after)
    # Read after the changes, so that it names what was deleted meanwhile.
    gap = gap_of(place.at_ms, await served.catalog.changes_deleted_ms(crawl.crawl_id))
    return PageChangeList(items=[change_body(each) for each in rows], next=page.next(at, response), gap=gap)


async def _slot(served: Served) -> AsyncIterator[None]:
    """Count the request as an open stream until its response ends. Raise ApiProblem if too many are open."""
    with served.streams.slot():
        yield


@router.get(
    "/stream", summary="Stream changes of pages", dependencies=[Depends(_slot)],
    status_code=200, response_class=ChangeStream, responses=_STREAM,
)  # fmt: skip
async def follow_changes(
    request: Request,
    name: Name,
    served: Served,
    since: Since = None,
    kind: Kinds = [],  # noqa: B006  the framework copies it
    last_event_id: Annotated[
        str | None,
        Header(max_length=100, description="The id of the last change that was received. It overrides `since`."),
    ] = None,
) -> ChangeStream:
    """Stream the changes of pages as Server-Sent Events. With `since`, first send the changes recorded since then.

    Without `since` only new changes are sent. After an interruption a client continues at any master with the id of the
    last change that it received. The stream then begins ten seconds before that change, so that it misses no stored
    change. Some changes are sent again. If retention has deleted changes at the beginning of the stream, the first
    event is `gap`.
    """
    crawl = await served.catalog.crawl(name)
    kinds = _kinds(kind)

    async def read(after: ChangePlace) -> tuple[Sequence[PageChangeView], ChangePlace | None]:
        return await served.catalog.changes(crawl.crawl_id, after=after, kinds=kinds, max_count=_READ_AT_ONCE)

    start = _ms(since)
    begin = _last(last_event_id) or ChangePlace(served.clock.unix_ms() if start is None else start)
    gap = gap_of(begin.at_ms, await served.catalog.changes_deleted_ms(crawl.crawl_id))
    return ChangeStream(
        read, begin, gap, streams=served.streams, allowed=standing(request.scope, served.catalog, served.clock)
    )


def _kinds(names: Sequence[ChangeName]) -> frozenset[Any]:
    return frozenset(KINDS[name] for name in names) or frozenset(KINDS.values())


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else max(0, ms_of(moment))


def _last(last_event_id: str | None) -> ChangePlace | None:
    """Return the place in the log of changes at which the stream of a returning client begins.

    `last_event_id` is the id of the last change that the client received. The place is ten seconds before this change.
    The reason: a change can become visible some seconds late, behind changes with a later time.

    Return None without an id. Raise ApiProblem if `last_event_id` is not the id of a change.
    """
    if last_event_id is None or not last_event_id.strip():
        return None
    parts = last_event_id.strip().split("-")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() and int(part) <= _GREATEST for part in parts):
        wrong = FieldError("Last-Event-ID", "is not the id of a change", "send the id of a change unchanged")
        raise ApiProblem(ProblemKind.INVALID, "a header is not valid", errors=[wrong])
    return ChangePlace(max(0, int(parts[0]) - WINDOW_MS))
