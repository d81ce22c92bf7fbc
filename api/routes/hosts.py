"""/v1/hosts and /v1/host-policies: the state of hosts, their policies, and the command that ends a back-off."""

import uuid
from typing import Annotated, Final

import msgspec
from fastapi import Path, Query, Response

from api.http.deps import (
    CONDITIONAL,
    UNCHANGED,
    By,
    Expected,
    IfMatch,
    OnlyNew,
    Page,
    Served,
    Services,
    check_conditions,
    etag,
    problems,
)
from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.http.routing import Router
from api.routes.crawl_verbs import commanded
from api.schemas.frontier import HostDetail, HostSummary, QueueSummary, host_body
from api.schemas.host_policies import HostPolicyInput, HostPolicySummary, host_policy_body, until_ms
from api.schemas.hosts import CommandAccepted
from api.schemas.model import Listing
from api.schemas.plans import DeclarationPlan, declaration_plan
from shared.domain.frontier.commands import CommandKind
from shared.domain.ids import CrawlId
from shared.domain.ops.host_policies import StoredHostPolicy, limits_of
from shared.domain.reads.declared import PutOutcome
from shared.domain.web.url import DEFAULT_PORT, host_named, partition_of, without_default_port
from shared.ports.catalog import Missing
from shared.wire.events import EventKind

router = Router(prefix="/v1/hosts", tags=["hosts"])
policies = Router(prefix="/v1/host-policies", tags=["hosts"])

HostName = Annotated[
    str, Path(max_length=300, description="The host, as `name` or `name:port`.", examples=["example.org"])
]
_QUEUES: Final = 100
_EVENT: Final = "host-policies"


@router.get("", summary="List hosts", responses=problems(404))
async def list_hosts(
    served: Served,
    page: Page,
    response: Response,
    crawl: Annotated[str | None, Query(min_length=1, max_length=63, description="Only hosts of this crawl.")] = None,
) -> Listing[HostSummary]:
    """List hosts by partition, and within a partition in the order of discovery.

    With `crawl`, each host has the counters of that crawl's queue.
    """
    crawl_id = None if crawl is None else (await served.catalog.crawl(crawl)).crawl_id
    rows = await served.catalog.hosts(crawl_id, after=page.place(int, -1), max_count=page.max_count + 1)
    shown = rows[: page.max_count]
    place = shown[-1].host_id if len(rows) > page.max_count else None
    return Listing(
        items=[host_body(host, of_a_crawl=crawl is not None) for host in shown], next=page.next(place, response)
    )


@router.get("/{host}", summary="Get a host", responses=problems(404))
async def get_host(host: HostName, served: Served) -> HostDetail:
    """Return the state of a host and its queues, of at most 100 crawls."""
    view = await served.catalog.host(_named(host), None)
    if view is None:
        raise Missing(f"no crawl knows the host {host!r}")
    queues = await served.catalog.host_queues(view.host_id, _QUEUES)
    return HostDetail(host=host_body(view, of_a_crawl=False), queues=[QueueSummary.of(queue) for queue in queues])


@router.post("/{host}/unblock", status_code=202, summary="Ask a host again now")
async def unblock_host(host: HostName, served: Served, by: By) -> CommandAccepted:
    """End the back-off of a host that failed, or that answered 429 or 503. A block by the host's policy remains.

    Use it with care: the host may have asked for the pause.
    """
    name = _named(host)
    partition = partition_of(name, served.partitions)
    command_id = f"host-{uuid.uuid4().hex}"
    args: dict[str, object] = {"host": name}
    kind = CommandKind.UNBLOCK_HOST
    return CommandAccepted(command=await commanded(served, command_id, CrawlId(0), kind, args, by, partition))


@policies.get("", summary="List host policies")
async def list_host_policies(served: Served, page: Page, response: Response) -> Listing[HostPolicySummary]:
    """List host policies by host."""
    rows = await served.desired.host_policies(after=page.place(str, ""), max_count=page.max_count + 1)
    shown, now_ms = rows[: page.max_count], served.clock.unix_ms()
    place = shown[-1].host if len(rows) > page.max_count else None
    return Listing(items=[host_policy_body(each, now_ms) for each in shown], next=page.next(place, response))


@policies.get(
    "/{host}", summary="Get the policy of a host", dependencies=[CONDITIONAL],
    responses={**UNCHANGED, **problems(404)},
)  # fmt: skip
async def get_host_policy(host: HostName, served: Served, response: Response) -> HostPolicySummary:
    """Return the policy of a host: the values that were put, and the values in effect now."""
    stored = await served.desired.host_policy(_named(host))
    response.headers.update(etag(stored.tag))
    return host_policy_body(stored, served.clock.unix_ms())


@policies.put(
    "/{host}", summary="Create or replace the policy of a host",
    responses={
        201: {"model": HostPolicySummary, "description": "It was created."}, **problems(ProblemKind.FULL, 412)
    },
)  # fmt: skip
async def put_host_policy(
    host: HostName,
    wanted: HostPolicyInput,
    served: Served,
    by: By,
    expected: IfMatch,
    new: OnlyNew,
    response: Response,
) -> HostPolicySummary:
    """Create the policy of a host, or replace it as a whole. It applies to every crawl.

    If nothing differs, nothing changes. The policy may be put before the host is discovered. It applies until it is
    deleted.
    """
    name, spec, now_ms = _new_name(host), wanted.spec(), served.clock.unix_ms()
    ends_ms = until_ms(wanted)
    _check_end(ends_ms, now_ms, wanted, await _stored(served, name))
    check_conditions(new, expected)
    stored, outcome = await served.desired.put_host_policy(
        name,
        partition_of(name, served.partitions),
        spec,
        limits_of(spec, ends_ms),
        expected=expected,
        actor=by,
        now_ms=now_ms,
        new=new,
    )
    if outcome is not PutOutcome.UNCHANGED:
        _changed(name, outcome, served)
    created = outcome is PutOutcome.CREATED
    response.status_code = 201 if created else 200
    response.headers.update(etag(stored.tag))
    if created:
        response.headers["Location"] = f"/v1/host-policies/{name}"
    return host_policy_body(stored, now_ms)


@policies.post("/{host}/plan", summary="Plan a change of the policy of a host")
async def plan_host_policy(host: HostName, wanted: HostPolicyInput, served: Served) -> DeclarationPlan:
    """Return what a PUT of the policy would change, without changing anything.

    The request is validated as for a PUT.
    """
    stored = await _stored(served, _new_name(host))
    _check_end(until_ms(wanted), served.clock.unix_ms(), wanted, stored)
    before = None if stored is None else msgspec.to_builtins(stored.spec)
    return declaration_plan(before, msgspec.to_builtins(wanted.spec()))


@policies.delete(
    "/{host}", status_code=202, summary="Delete the policy of a host",
    responses=problems(404, 412),
)  # fmt: skip
async def delete_host_policy(host: HostName, served: Served, by: By, expected: Expected) -> CommandAccepted:
    """Delete the policy of a host. If the policy blocks the host, the block ends.

    From then on, the delay of the host depends only on crawl specs, its robots.txt and its responses.
    """
    name = _named(host)
    command = await served.desired.delete_host_policy(name, expected=expected, actor=by, now_ms=served.clock.unix_ms())
    _changed(name, "deleted", served)
    return CommandAccepted(command=command)


async def _stored(served: Services, host: str) -> StoredHostPolicy | None:
    """Return the stored policy of a host, or None if it has none."""
    try:
        return await served.desired.host_policy(host)
    except Missing:
        return None


def _check_end(ends_ms: int | None, now_ms: int, wanted: HostPolicyInput, stored: StoredHostPolicy | None) -> None:
    """Raise ApiProblem if the block in `wanted` ends in the past, unless the stored policy has the same block.

    `ends_ms`: the end of the block in Unix ms; None if it has no end.
    """
    if ends_ms is None or ends_ms > now_ms or (stored is not None and stored.spec.block == wanted.spec().block):
        return
    wrong = FieldError("block.until", "is in the past", "leave out the block, or give a time to come")
    raise ApiProblem(ProblemKind.INVALID, "the time is not valid", errors=[wrong])


def _changed(host: str, change: str, served: Services) -> None:
    served.plane.wake()
    served.telling.publish(EventKind.CONFIG, _EVENT, "updated", data={"host": host, "change": change})


def _named(host: str) -> str:
    """Return the host in canonical form, as it is written in URLs. Raise ApiProblem if it is not a host."""
    name = host_named(host)
    if name is None:
        wrong = FieldError("host", "is not a host", "write name or name:port, as in a URL")
        raise ApiProblem(ProblemKind.INVALID, "the host is not valid", errors=[wrong])
    return name


def _new_name(host: str) -> str:
    """Return the host of a new policy in canonical form. Raise ApiProblem if it is not a host, or has a default port.

    A policy of a default port would apply to no usual URL. One that an earlier version stored stays readable, and can
    be deleted.
    """
    name = _named(host)
    if (plain := without_default_port(host)) is not None:
        wrong = FieldError("host", DEFAULT_PORT, f"write {plain}: its policy applies to http and https")
        raise ApiProblem(ProblemKind.INVALID, "the host is not valid", errors=[wrong])
    return name
