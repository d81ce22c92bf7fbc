"""/v1/cluster, /v1/masters, /v1/workers: what this master saw last of the others, answered without asking anybody; and
who of them is to drain."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from fastapi import Path, Response

from api.control.roster import WorkerLoad
from api.deps import By, Page, Served, Services, needs, problems
from api.routing import Router
from api.schemas.cluster import Cluster, Drain, Drained, Master, Worker, master_body, worker_body
from api.schemas.model import MEMBER_ID, Listing
from shared.domain.access import Role
from shared.domain.config import MemberRole
from shared.domain.declared import Actor
from shared.domain.ids import Partition
from shared.ports.catalog import Missing

router = Router(prefix="/v1", tags=["cluster"])

MemberName = Annotated[str, Path(pattern=MEMBER_ID, description="Its id.", examples=["w1"])]
_NAMED: Final = 100
_READS: Final = [needs(Role.VIEWER)]
_WRITES: Final = [needs(Role.OPERATOR)]


@router.get("/cluster", summary="The cluster", operation_id="get_cluster", dependencies=_READS)
async def get_cluster(served: Served) -> Cluster:
    """Who leads, who lives, who owns which partition, and who runs which revision of the hot configuration."""
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
        behind=_behind(masters, dict(zip(members.workers, loads, strict=True)), wanted.config.revision),
        drains=Drained(masters=list(wanted.drains.masters), workers=list(wanted.drains.workers)),
        partitions={str(p): owners.get(Partition(p)) for p in range(served.partitions)},
    )


# --- masters ----------------------------------------------------------------------------------------------------------


@router.get("/masters", summary="List masters", operation_id="list_masters", dependencies=_READS)
async def list_masters(served: Served, page: Page, response: Response) -> Listing[Master]:
    """In the order of their ids."""
    after = page.place(str, "")
    found = [master for master in _masters(served) if master.id > after]
    shown = found[: page.most]
    place = shown[-1].id if len(found) > page.most else None
    return Listing(items=shown, next=page.next(place, response))


@router.get(
    "/masters/{id}", summary="Get a master", operation_id="get_master", dependencies=_READS, responses=problems(404)
)
async def get_master(id: MemberName, served: Served) -> Master:
    """What it owns, whether it leads, and which revision of the hot configuration it runs."""
    return _master(served, id, drained=id in served.wanted().drains.masters)


@router.post(
    "/masters/{id}/drain", status_code=202, summary="Drain a master", operation_id="drain_master",
    dependencies=_WRITES, responses=problems(404),
)  # fmt: skip
async def drain_master(id: MemberName, served: Served, by: By) -> Drain:
    """Its partitions move to others, and another one leads, as long as there are any. It answers requests as before.
    Kept until it is taken back, also across restarts of anybody."""
    return await _drain(served, MemberRole.MASTER, id, by)


@router.post(
    "/masters/{id}/undrain", status_code=202, summary="Take a master's drain back", operation_id="undrain_master",
    dependencies=_WRITES, responses=problems(404),
)  # fmt: skip
async def undrain_master(id: MemberName, served: Served, by: By) -> Drain:
    """It is given partitions again, and may lead."""
    return await _undrain(served, MemberRole.MASTER, id, by)


# --- workers ----------------------------------------------------------------------------------------------------------


@router.get("/workers", summary="List workers", operation_id="list_workers", dependencies=_READS)
async def list_workers(served: Served, page: Page, response: Response) -> Listing[Worker]:
    """In the order of their ids, with their load."""
    after = page.place(str, "")
    found = [name for name in sorted(served.plane.members().workers) if name > after]
    shown = found[: page.most]
    place = shown[-1] if len(found) > page.most else None
    drained = frozenset(served.wanted().drains.workers)
    items = [_worker(served, name, drained=name in drained) for name in shown]
    return Listing(items=items, next=page.next(place, response))


@router.get(
    "/workers/{id}", summary="Get a worker", operation_id="get_worker", dependencies=_READS, responses=problems(404)
)
async def get_worker(id: MemberName, served: Served) -> Worker:
    """Its load, and which revision of the hot configuration it runs."""
    return _worker(served, id, drained=id in served.wanted().drains.workers)


@router.post(
    "/workers/{id}/drain", status_code=202, summary="Drain a worker", operation_id="drain_worker",
    dependencies=_WRITES, responses=problems(404),
)  # fmt: skip
async def drain_worker(id: MemberName, served: Served, by: By) -> Drain:
    """It pulls nothing more, finishes what it has, and stays: `state` turns to `drained`. Kept until it is taken back,
    also across restarts of anybody."""
    return await _drain(served, MemberRole.WORKER, id, by)


@router.post(
    "/workers/{id}/undrain", status_code=202, summary="Take a worker's drain back", operation_id="undrain_worker",
    dependencies=_WRITES, responses=problems(404),
)  # fmt: skip
async def undrain_worker(id: MemberName, served: Served, by: By) -> Drain:
    """It pulls again."""
    return await _undrain(served, MemberRole.WORKER, id, by)


# --- what they share --------------------------------------------------------------------------------------------------


async def _drain(served: Services, role: MemberRole, name: str, by: Actor) -> Drain:
    """Only a member that lives: a name that is nobody's is most likely a mistake."""
    if name not in _living(served, role):
        raise _unknown(role, name)
    if await served.desired.drain(role, name, actor=by, now_ms=served.clock.unix_ms()):
        served.plane.wake()
    return Drain(id=name, role=role, draining=True, living=True)


async def _undrain(served: Services, role: MemberRole, name: str, by: Actor) -> Drain:
    """Also a member that is away may be drained."""
    living = name in _living(served, role)
    if await served.desired.undrain(role, name, actor=by, now_ms=served.clock.unix_ms()):
        served.plane.wake()
    elif not living:
        raise _unknown(role, name)
    return Drain(id=name, role=role, draining=False, living=living)


def _behind(masters: Sequence[Master], workers: Mapping[str, WorkerLoad | None], revision: int) -> list[str]:
    """Who does not run the revision, as far as is known."""
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
