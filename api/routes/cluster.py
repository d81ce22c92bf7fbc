"""/v1/cluster, /v1/masters, /v1/workers: the members as this master last saw them, and their drains.

Reads are answered from this master's memory, without a request to another member.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from fastapi import Path, Response

from api.http.deps import By, Page, Served, Services, problems
from api.http.routing import Router
from api.members.member_stats import WorkerActivity
from api.schemas.cluster import Cluster, DrainingMembers, DrainState, Master, Worker, master_body, worker_body
from api.schemas.model import MEMBER_ID, Listing
from shared.domain.ids import Partition
from shared.domain.ops.config import MemberRole
from shared.domain.reads.declared import Actor
from shared.ports.catalog import Missing

router = Router(prefix="/v1", tags=["cluster"])

MemberName = Annotated[str, Path(pattern=MEMBER_ID, description="The member's id.", examples=["w1"])]
_NAMED: Final = 100


@router.get("/cluster", summary="Get the cluster")
async def get_cluster(served: Served) -> Cluster:
    """Return the leader, the masters, the number of workers and the owners of partitions.

    The response also shows the configuration revisions that members run, and the drains.
    """
    plane, wanted, now = served.plane, served.wanted(), served.clock.elapsed()
    owners, members = plane.assignments(), plane.members()
    loads = [served.roster.worker(name, now) for name in members.workers]
    running = Counter("unknown" if load is None else str(load.status.config) for load in loads)
    masters = _masters(served)
    return Cluster(
        member=served.member,
        leading=plane.is_leader(),
        leader_address=plane.leader_address(),
        term=plane.term(),
        masters=masters,
        workers=len(members.workers),
        config_revision=wanted.config.revision,
        worker_revisions=dict(sorted(running.items())),
        outdated_members=_outdated(masters, dict(zip(members.workers, loads, strict=True)), wanted.config.revision),
        drains=DrainingMembers(masters=list(wanted.drains.masters), workers=list(wanted.drains.workers)),
        partitions={str(p): owners.get(Partition(p)) for p in range(served.partitions)},
    )


# --- masters ----------------------------------------------------------------------------------------------------------


@router.get("/masters", summary="List masters")
async def list_masters(served: Served, page: Page, response: Response) -> Listing[Master]:
    """List masters by id."""
    after = page.place(str, "")
    later = [master for master in _masters(served) if master.id > after]
    shown = later[: page.max_count]
    place = shown[-1].id if len(later) > page.max_count else None
    return Listing(items=shown, next=page.next(place, response))


@router.get("/masters/{id}", summary="Get a master", responses=problems(404))
async def get_master(id: MemberName, served: Served) -> Master:
    """Return a master with its number of partitions, its load and its configuration revision."""
    return _master(served, id, drained=id in served.wanted().drains.masters)


@router.post("/masters/{id}/drain", status_code=202, summary="Drain a master", responses=problems(404))
async def drain_master(id: MemberName, served: Served, by: By) -> DrainState:
    """Move the master's partitions and leadership to other masters, if there are any.

    It still answers requests. The drain lasts until it is cancelled, even if the master restarts.
    """
    return await _drain(served, MemberRole.MASTER, id, by)


@router.post(
    "/masters/{id}/undrain", status_code=202, summary="Cancel a master's drain",
    responses=problems(404),
)  # fmt: skip
async def undrain_master(id: MemberName, served: Served, by: By) -> DrainState:
    """Let the master own partitions and lead again."""
    return await _undrain(served, MemberRole.MASTER, id, by)


# --- workers ----------------------------------------------------------------------------------------------------------


@router.get("/workers", summary="List workers")
async def list_workers(served: Served, page: Page, response: Response) -> Listing[Worker]:
    """List workers by id, with their load."""
    after = page.place(str, "")
    later = [name for name in sorted(served.plane.members().workers) if name > after]
    shown = later[: page.max_count]
    place = shown[-1] if len(later) > page.max_count else None
    drained = frozenset(served.wanted().drains.workers)
    items = [_worker(served, name, drained=name in drained) for name in shown]
    return Listing(items=items, next=page.next(place, response))


@router.get("/workers/{id}", summary="Get a worker", responses=problems(404))
async def get_worker(id: MemberName, served: Served) -> Worker:
    """Return a worker with its load and its configuration revision."""
    return _worker(served, id, drained=id in served.wanted().drains.workers)


@router.post("/workers/{id}/drain", status_code=202, summary="Drain a worker", responses=problems(404))
async def drain_worker(id: MemberName, served: Served, by: By) -> DrainState:
    """Let the worker finish its URL shards and take no more.

    Its `state` then becomes `drained`. The drain lasts until it is cancelled, even if the worker restarts.
    """
    return await _drain(served, MemberRole.WORKER, id, by)


@router.post(
    "/workers/{id}/undrain", status_code=202, summary="Cancel a worker's drain",
    responses=problems(404),
)  # fmt: skip
async def undrain_worker(id: MemberName, served: Served, by: By) -> DrainState:
    """Let the worker take URL shards again."""
    return await _undrain(served, MemberRole.WORKER, id, by)


# --- what they share --------------------------------------------------------------------------------------------------


async def _drain(served: Services, role: MemberRole, name: str, by: Actor) -> DrainState:
    """Request the drain of a member, and return its new state. Raise Missing if no such member is alive."""
    if name not in _living(served, role):
        raise _unknown(role, name)
    if await served.desired.drain(role, name, actor=by, now_ms=served.clock.unix_ms()):
        served.plane.wake()
    return DrainState(id=name, role=role, draining=True, alive=True)


async def _undrain(served: Services, role: MemberRole, name: str, by: Actor) -> DrainState:
    """Delete the stored order to drain a member, and return the member's new state. The member need not be alive.

    If no such order is stored: change nothing if the member is alive, and raise Missing otherwise.
    """
    living = name in _living(served, role)
    if await served.desired.undrain(role, name, actor=by, now_ms=served.clock.unix_ms()):
        served.plane.wake()
    elif not living:
        raise _unknown(role, name)
    return DrainState(id=name, role=role, draining=False, alive=living)


def _outdated(masters: Sequence[Master], workers: Mapping[str, WorkerActivity | None], revision: int) -> list[str]:
    """Return the members that do not run the configuration revision `revision`, at most `_NAMED` of them.

    A member is written as `master ID` or `worker ID`. Members whose revision is unknown are included.
    """
    late = [f"master {master.id}" for master in masters if master.config_revision != revision]
    late += [f"worker {name}" for name, load in workers.items() if load is None or load.status.config != revision]
    return sorted(late)[:_NAMED]


def _living(served: Services, role: MemberRole) -> frozenset[str]:
    members = served.plane.members()
    return frozenset(members.masters if role is MemberRole.MASTER else members.workers)


def _masters(served: Services) -> list[Master]:
    drained = frozenset(served.wanted().drains.masters)
    return [_master(served, name, drained=name in drained) for name in sorted(served.plane.members().masters)]


def _master(served: Services, name: str, *, drained: bool) -> Master:
    plane = served.plane
    member = plane.members().masters.get(name)
    if member is None:
        raise _unknown(MemberRole.MASTER, name)
    owned = sum(owner == name for owner in plane.assignments().values())
    status = served.roster.master(name, served.clock.elapsed())
    return master_body(member, owned, status, leading=plane.leader_address() == member.address, wanted=drained)


def _worker(served: Services, name: str, *, drained: bool) -> Worker:
    member = served.plane.members().workers.get(name)
    if member is None:
        raise _unknown(MemberRole.WORKER, name)
    return worker_body(member, served.roster.worker(name, served.clock.elapsed()), wanted=drained)


def _unknown(role: MemberRole, name: str) -> Missing:
    return Missing(f"there is no {role} {name!r} now")
