"""/v1/events and /v1/crawls/{name}/events: what happens, as it happens, and again from any place that is kept."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, Header, Path, Query, Request

from api.control.following import Following
from api.deps import Served, Services, needs, problem_content, problems
from api.errors import Kind, Problem
from api.feeds import EventStream, Last
from api.fields import FieldError
from api.routing import Router
from api.schemas.crawls import NAME
from api.schemas.events import EXAMPLE
from shared.domain.access import ApiKey, Role
from shared.domain.errors import Transient
from shared.wire.events import EVERY_EVENT, OF_A_CRAWL, Event, EventKind, event_subject, events_of

_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Events, each `data` an EventBody; besides these `gap`, where some may be missing, and `end`.",
        "content": {
            "text/event-stream": {
                "schema": {"type": "string"},
                "example": EXAMPLE,
                "x-data": {"$ref": "#/components/schemas/EventBody"},
            }
        },
    },
    429: {"description": "This master has as many streams open as it may.", "content": problem_content(Kind.BUSY)},
}
_MOST: Final = 2**63 - 1


async def _slot(served: Served) -> AsyncIterator[None]:
    """Room for a stream, until it has ended."""
    with served.streams.slot():
        yield


router = Router(tags=["events"], dependencies=[needs(Role.VIEWER), Depends(_slot)])

After = Annotated[
    int | None,
    Query(
        ge=0,
        le=_MOST,
        description="Begin behind this id; 0: with the oldest event that is kept. By default with what happens next.",
    ),
]
LastEventId = Annotated[
    str | None,
    Header(max_length=20, description="The id seen last, as a browser sends it by itself; it outranks `after`."),
]


@router.get(
    "/v1/events", summary="Follow what happens", operation_id="follow_events",
    status_code=200, response_class=EventStream, responses=_STREAM,
)  # fmt: skip
async def follow_events(
    request: Request,
    served: Served,
    kind: Annotated[list[EventKind], Query(max_length=9, description="Only these kinds.")] = [],  # noqa: B006  the framework copies it
    after: After = None,
    last_event_id: LastEventId = None,
) -> EventStream:
    """Server-Sent Events, until you leave. Every id is a place in one stream that all masters read: a client that was
    cut off goes on behind the last id it saw, here or elsewhere, and misses nothing that is still kept.

    Progress is told about every second, of what moves; dead letters, alarms, members and configuration as they come.
    Of one crawl's progress the last 10,000 are kept.
    """
    subjects = [events_of(each) for each in dict.fromkeys(kind)] or [EVERY_EVENT]
    return await _stream(request, served, subjects, _place(last_event_id, after), lambda _: False)


@router.get(
    "/v1/crawls/{name}/events", summary="Follow a crawl", operation_id="follow_crawl",
    status_code=200, response_class=EventStream, responses=_STREAM | problems(404),
)  # fmt: skip
async def follow_crawl(
    request: Request,
    name: Annotated[str, Path(pattern=NAME)],
    served: Served,
    kind: Annotated[
        list[Literal[EventKind.CRAWL, EventKind.PROGRESS, EventKind.DEAD_LETTER]],
        Query(max_length=3, description="Only these kinds."),
    ] = [],  # noqa: B006  the framework copies it
    after: After = None,
    last_event_id: LastEventId = None,
) -> EventStream:
    """The same for one crawl. It ends when the crawl is deleted or begun anew: ask again for what has its name then."""
    crawl = await served.catalog.crawl(name)
    subjects = [event_subject(each, str(crawl.crawl_id)) for each in dict.fromkeys(kind or OF_A_CRAWL)]
    return await _stream(request, served, subjects, _place(last_event_id, after), _deleted)


async def _stream(
    request: Request, served: Services, subjects: Sequence[str], after: int | None, last: Last
) -> EventStream:
    key: ApiKey = request.state.key

    async def allowed() -> bool:
        try:
            kept = await served.catalog.key(key.key_id)
        except Transient:
            return True
        return kept is not None and kept.revoked_at_ms is None

    following = Following(served.events, subjects, after)
    gap = await following.open()
    return EventStream(following, gap, events=served.events, streams=served.streams, allowed=allowed, last=last)


def _place(last_event_id: str | None, after: int | None) -> int | None:
    if last_event_id is None or not last_event_id.strip():
        return after
    text = last_event_id.strip()
    if not (text.isascii() and text.isdigit()) or int(text) > _MOST:
        wrong = FieldError("Last-Event-ID", "is no id of an event", "send the id of an event as it was")
        raise Problem(Kind.INVALID, "a header is not valid", errors=[wrong])
    return int(text)


def _deleted(event: Event) -> bool:
    return event.kind == EventKind.CRAWL and event.action == "deleted"
