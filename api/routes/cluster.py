"""/v1/cluster, /v1/masters, /v1/workers: what this master saw last of the others, answered without asking anybody."""

from collections import Counter

from fastapi import APIRouter, Response

from api.deps import Page, Served, Services, needs
from api.schemas.cluster import Cluster, Master, Worker, master_body, worker_body
from api.schemas.model import Listing
from shared.domain.access import Role
from shared.domain.ids import Partition

router = APIRouter(prefix="/v1", tags=["cluster"], dependencies=[needs(Role.VIEWER)])


@router.get("/cluster", summary="The cluster", operation_id="get_cluster")
async def get_cluster(served: Served) -> Cluster:
    """Who leads, who lives, and who owns which partition."""
    plane = served.plane
    owners = plane.assignments()
    return Cluster(
        member=served.member,
        leading=plane.is_leader(),
        leader_address=plane.leader_address(),
        term=plane.term(),
        masters=_masters(served),
        workers=len(plane.members().workers),
        partitions={str(p): owners.get(Partition(p)) for p in range(served.partitions)},
    )


@router.get("/masters", summary="List masters", operation_id="list_masters")
async def list_masters(served: Served) -> Listing[Master]:
    """All of them, in one page: they are few."""
    return Listing(items=_masters(served), next=None)


@router.get("/workers", summary="List workers", operation_id="list_workers")
async def list_workers(served: Served, page: Page, response: Response) -> Listing[Worker]:
    """In the order of their ids."""
    after = page.place(str, "")
    found = [member for _, member in sorted(served.plane.members().workers.items()) if member.id > after]
    shown = found[: page.most]
    place = shown[-1].id if len(found) > page.most else None
    return Listing(items=[worker_body(member) for member in shown], next=page.next(place, response))


def _masters(served: Services) -> list[Master]:
    owned = Counter(served.plane.assignments().values())
    masters = served.plane.members().masters
    return [master_body(member, owned[member.id]) for _, member in sorted(masters.items())]
