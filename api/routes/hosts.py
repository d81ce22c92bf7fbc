"""/v1/hosts: the state of hosts, and the commands that block or slow them."""

import uuid
from typing import Annotated

from fastapi import Path, Query, Response

from api.http.deps import By, Page, Served, Services, needs, problems
from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.http.routing import Router
from api.routes.crawl_verbs import commanded
from api.schemas.frontier import HostDetail, HostSummary, QueueSummary, host_body
from api.schemas.hosts import Block, CommandAccepted, Delay
from api.schemas.model import Listing, ms_of
from shared.domain.frontier.commands import CommandKind
from shared.domain.ids import CrawlId
from shared.domain.ops.access import Role
from shared.domain.reads.declared import Actor
from shared.domain.web.url import locate, partition_of
from shared.ports.catalog import Missing

router = Router(prefix="/v1/hosts", tags=["hosts"])

HostName = Annotated[
    str, Path(max_length=300, description="The host, as `name` or `name:port`.", examples=["example.org"])
]
_QUEUES = 100


@router.get("", summary="List hosts", dependencies=[needs(Role.VIEWER)], responses=problems(404))
async def list_hosts(
    served: Served,
    page: Page,
    response: Response,
    crawl: Annotated[str | None, Query(min_length=1, max_length=63, description="Only hosts of this crawl.")] = None,
) -> Listing[HostSummary]:
    """List hosts by partition, in the order of discovery.

    With `crawl`, each host has the counters of that crawl's queue.
    """
    crawl_id = None if crawl is None else (await served.catalog.crawl(crawl)).crawl_id
    rows = await served.catalog.hosts(crawl_id, after=page.place(int, -1), max_count=page.max_count + 1)
    shown = rows[: page.max_count]
    place = shown[-1].host_id if len(rows) > page.max_count else None
    return Listing(
        items=[host_body(host, of_a_crawl=crawl is not None) for host in shown], next=page.next(place, response)
    )


@router.get("/{host}", summary="Get a host", dependencies=[needs(Role.VIEWER)], responses=problems(404))
async def get_host(host: HostName, served: Served) -> HostDetail:
    """Return the state of a host, and its queues of at most 100 crawls."""
    view = await served.catalog.host(_named(host), None)
    if view is None:
        raise Missing(f"no crawl knows the host {host!r}")
    queues = await served.catalog.host_queues(view.host_id, _QUEUES)
    return HostDetail(host=host_body(view, of_a_crawl=False), queues=[QueueSummary.of(queue) for queue in queues])


@router.put("/{host}/block", status_code=202, summary="Block a host", dependencies=[needs(Role.OPERATOR)])
async def block_host(host: HostName, wanted: Block, served: Served, by: By) -> CommandAccepted:
    """Send no request of any crawl to the host before `until`. Requests in progress are finished."""
    if wanted.until.tzinfo is None:
        raise ApiProblem(ProblemKind.INVALID, "the time is not valid", errors=[FieldError("until", "has no time zone")])
    return await _ask(served, by, host, CommandKind.BLOCK_HOST, "until_ms", max(0, ms_of(wanted.until)))


@router.delete("/{host}/block", status_code=202, summary="Unblock a host", dependencies=[needs(Role.OPERATOR)])
async def unblock_host(host: HostName, served: Served, by: By) -> CommandAccepted:
    """End the block of a host.

    Use it with care: it also ends a block that follows the host's own 429 or 503 answers.
    """
    return await _ask(served, by, host, CommandKind.BLOCK_HOST, "until_ms", 0)


@router.put("/{host}/delay", status_code=202, summary="Set a host's delay", dependencies=[needs(Role.OPERATOR)])
async def set_host_delay(host: HostName, wanted: Delay, served: Served, by: By) -> CommandAccepted:
    """Set the least delay between two requests to the host, for every crawl.

    A delay of 0 removes it. The longest of all delays counts, so it shortens none.
    """
    return await _ask(served, by, host, CommandKind.HOST_DELAY, "delay_ms", round(wanted.delay_s * 1000))


async def _ask(served: Services, by: Actor, host: str, kind: CommandKind, argument: str, value: int) -> CommandAccepted:
    name = _named(host)
    partition = partition_of(name, served.partitions)
    command_id = f"host-{uuid.uuid4().hex}"
    args: dict[str, object] = {"host": name, argument: value}
    return CommandAccepted(command=await commanded(served, command_id, CrawlId(0), kind, args, by, partition))


def _named(host: str) -> str:
    """Return the host in the form that it has in URLs."""
    location = locate(f"http://{host}/")
    if location is None or location.url != f"http://{location.host}/":
        wrong = FieldError("host", "is not a host", "write name or name:port, as in a URL")
        raise ApiProblem(ProblemKind.INVALID, "the host is not valid", errors=[wrong])
    return location.host
