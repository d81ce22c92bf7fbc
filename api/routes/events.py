"""/v1/events and /v1/crawls/{name}/events: streams of events, live or from any stored position."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, Header, Path, Query, Request

from api.events.reader import EventCursor
from api.http.authentication import standing
from api.http.deps import Served, Services, problem_content, problems
from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.http.routing import Router
from api.http.sse import EventStream, Last
from api.schemas.crawls import NAME
from api.schemas.events import EXAMPLE
from shared.wire.events import EVERY_EVENT, OF_A_CRAWL, Event, EventKind, event_subject, events_of

_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Events, each with an EventBody as `data`. Besides these: `gap`, if events may be missing, and "
        "`end`.",
        "content": {
            "text/event-stream": {
                "schema": {"type": "string"},
                "example": EXAMPLE,
                "x-data": {"$ref": "#/components/schemas/EventBody"},
            }
        },
    },
    429: {
        "description": "The maximum number of streams is open on this master.",
        "content": problem_content(ProblemKind.BUSY),
    },
}
_MAX: Final = 2**63 - 1


async def _slot(served: Served) -> AsyncIterator[None]:
    """Count the request as an open stream until its response ends. Raise ApiProblem if too many are open."""
    with served.streams.slot():
        yield


router = Router(tags=["events"], dependencies=[Depends(_slot)])

After = Annotated[
    int | None,
    Query(
        ge=0,
        le=_MAX,
        description="Begin after the event with this id. 0: begin with the oldest stored "
        "event. Without it: only new events.",
    ),
]
LastEventId = Annotated[
    str | None,
    Header(
        max_length=20,
        description="The id of the last event that was received. Browsers send it when they "
        "reconnect. It overrides `after`.",
    ),
]


@router.get("/v1/events", summary="Stream events", status_code=200, response_class=EventStream, responses=_STREAM)
async def follow_events(
    request: Request,
    served: Served,
    kind: Annotated[list[EventKind], Query(max_length=len(EventKind), description="Only events of these kinds.")] = [],  # noqa: B006  the framework copies it
    after: After = None,
    last_event_id: LastEventId = None,
) -> EventStream:
    """Stream the events of the cluster as Server-Sent Events.

    Ids are positions in one stream that all masters read. After an interruption a client continues at any master, after
    the last id that it received, and misses no stored event.

    Progress is published about once a second while it changes. Other events are published as they occur. The last
    10,000 progress events of a crawl are stored.
    """
    subjects = [events_of(each) for each in dict.fromkeys(kind)] or [EVERY_EVENT]
    return await _stream(request, served, subjects, _place(last_event_id, after), lambda _: False)


@router.get(
    "/v1/crawls/{name}/events", summary="Stream the events of a crawl", status_code=200, response_class=EventStream,
    responses=_STREAM | problems(404),
)  # fmt: skip
async def follow_crawl(
    request: Request,
    name: Annotated[str, Path(pattern=NAME)],
    served: Served,
    kind: Annotated[
        list[Literal[EventKind.CRAWL, EventKind.PROGRESS, EventKind.DEAD_LETTER]],
        Query(max_length=3, description="Only events of these kinds."),
    ] = [],  # noqa: B006  the framework copies it
    after: After = None,
    last_event_id: LastEventId = None,
) -> EventStream:
    """Stream the events of one crawl as Server-Sent Events, in the same form as /v1/events."""
    crawl = await served.catalog.crawl(name)
    # The stream ends at an event of the kind `crawl`, so these events are read even if they were not asked for.
    kinds = dict.fromkeys((*(kind or OF_A_CRAWL), EventKind.CRAWL))
    subjects = [event_subject(each, str(crawl.crawl_id)) for each in kinds]
    unsent = [EventKind.CRAWL] if kind and EventKind.CRAWL not in kind else []
    return await _stream(request, served, subjects, _place(last_event_id, after), _deleted, unsent)


async def _stream(
    request: Request,
    served: Services,
    subjects: Sequence[str],
    after: int | None,
    last: Last,
    unsent: Sequence[EventKind] = (),
) -> EventStream:
    following = EventCursor(served.events, subjects, after)
    gap = await following.open()
    return EventStream(
        following,
        gap,
        events=served.events,
        streams=served.streams,
        allowed=standing(request.scope, served.catalog, served.clock),
        last=last,
        unsent=unsent,
    )


def _place(last_event_id: str | None, after: int | None) -> int | None:
    if last_event_id is None or not last_event_id.strip():
        return after
    text = last_event_id.strip()
    if not (text.isascii() and text.isdigit()) or int(text) > _MAX:
        wrong = FieldError("Last-Event-ID", "is not the id of an event", "send the id of an event unchanged")
        raise ApiProblem(ProblemKind.INVALID, "a header is not valid", errors=[wrong])
    return int(text)


def _deleted(event: Event) -> bool:
    return event.kind == EventKind.CRAWL and event.action == "deleted"
