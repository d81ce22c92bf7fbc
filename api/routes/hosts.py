"""/v1/hosts: what is known of hosts, and how they are spared."""

import uuid
from typing import Annotated

from fastapi import Path, Query, Response

from api.deps import By, Page, Served, Services, needs, problems
from api.errors import Kind, Problem
from api.fields import FieldError
from api.routes.turning import commanded
from api.routing import Router
from api.schemas.frontier import HostDetail, HostSummary, host_body, queue_body
from api.schemas.hosts import Asked, Block, Delay
from api.schemas.model import Listing, ms_of
from shared.domain.access import Role
from shared.domain.command import CommandKind
from shared.domain.declared import Actor
from shared.domain.ids import CrawlId
from shared.domain.url import locate, partition_of
from shared.ports.catalog import Missing

router = Router(prefix="/v1/hosts", tags=["hosts"])

HostName = Annotated[str, Path(max_length=300, description="`name` or `name:port`.", examples=["example.org"])]
_QUEUES = 100


@router.get(
    "", summary="List hosts", operation_id="list_hosts", dependencies=[needs(Role.VIEWER)], responses=problems(404)
)
async def list_hosts(
    served: Served,
    page: Page,
    response: Response,
    crawl: Annotated[str | None, Query(min_length=1, max_length=63, description="Only those of this crawl.")] = None,
) -> Listing[HostSummary]:
    """In the order in which they were found in their partitions; with the numbers of one crawl, if it is named."""
    crawl_id = None if crawl is None else (await served.catalog.crawl(crawl)).crawl_id
    found = await served.catalog.hosts(crawl_id, after=page.place(int, -1), most=page.most + 1)
    shown = found[: page.most]
    place = shown[-1].host_id if len(found) > page.most else None
    return Listing(
        items=[host_body(host, of_a_crawl=crawl is not None) for host in shown], next=page.next(place, response)
    )


@router.get(
    "/{host}", summary="Get a host", operation_id="get_host", dependencies=[needs(Role.VIEWER)],
    responses=problems(404),
)  # fmt: skip
async def get_host(host: HostName, served: Served) -> HostDetail:
    """What is known of it, and its queues of at most 100 crawls."""
    view = await served.catalog.host(_named(host), None)
    if view is None:
        raise Missing(f"no crawl has heard of the host {host!r}")
    queues = await served.catalog.host_queues(view.host_id, _QUEUES)
    return HostDetail(host=host_body(view, of_a_crawl=False), queues=[queue_body(queue) for queue in queues])


@router.put(
    "/{host}/block", status_code=202, summary="Leave a host alone", operation_id="block_host",
    dependencies=[needs(Role.OPERATOR)],
)  # fmt: skip
async def block_host(host: HostName, wanted: Block, served: Served, by: By) -> Asked:
    """No crawl asks it anything until then. What is under way there is finished."""
    if wanted.until.tzinfo is None:
        raise Problem(Kind.INVALID, "the time is not valid", errors=[FieldError("until", "has no time zone")])
    return await _ask(served, by, host, CommandKind.BLOCK_HOST, "until_ms", max(0, ms_of(wanted.until)))


@router.delete(
    "/{host}/block", status_code=202, summary="Unblock a host", operation_id="unblock_host",
    dependencies=[needs(Role.OPERATOR)],
)  # fmt: skip
async def unblock_host(host: HostName, served: Served, by: By) -> Asked:
    """Also where the host itself has asked for peace: use it with care."""
    return await _ask(served, by, host, CommandKind.BLOCK_HOST, "until_ms", 0)


@router.put(
    "/{host}/delay", status_code=202, summary="Set a host's delay", operation_id="set_host_delay",
    dependencies=[needs(Role.OPERATOR)],
)  # fmt: skip
async def set_host_delay(host: HostName, wanted: Delay, served: Served, by: By) -> Asked:
    """At least so long between two requests, for every crawl; 0 takes it back. It never shortens another delay."""
    return await _ask(served, by, host, CommandKind.HOST_DELAY, "delay_ms", round(wanted.delay_s * 1000))


async def _ask(served: Services, by: Actor, host: str, kind: CommandKind, argument: str, value: int) -> Asked:
    name = _named(host)
    partition = partition_of(name, served.partitions)
    command_id = f"host-{uuid.uuid4().hex}"
    args: dict[str, object] = {"host": name, argument: value}
    return Asked(command=await commanded(served, command_id, CrawlId(0), kind, args, by, partition))


def _named(host: str) -> str:
    """The host as URLs name it."""
    location = locate(f"http://{host}/")
    if location is None or location.url != f"http://{location.host}/":
        wrong = FieldError("host", "is no host", "write name or name:port, as in a URL")
        raise Problem(Kind.INVALID, "the host is not valid", errors=[wrong])
    return location.host
