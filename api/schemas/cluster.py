"""The cluster's members, how they are loaded, and who owns what."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from api.control.roster import WorkerLoad
from api.schemas.model import Model, moment_of
from shared.domain.config import MemberRole
from shared.wire.keys import MemberRecord
from shared.wire.messages import MasterStatus


class MemberState(StrEnum):
    """`draining`: takes up nothing new and finishes what it has; `drained`: has nothing left."""

    ACTIVE = "active"
    DRAINING = "draining"
    DRAINED = "drained"


class Member(Model):
    """A master or worker that lives."""

    id: str
    version: str
    started_at: datetime
    draining: bool = Field(description="Whether it is to take up nothing new.")
    state: MemberState
    config_revision: int | None = Field(
        description="The revision of the hot configuration that it runs; null while it was not heard of lately."
    )


class OwnerLoad(Model):
    """What a master has in hand, by its own account of the last seconds."""

    partitions: int = Field(description="It owns, loaded and at work.")
    shards: int = Field(description="URL shards of these that are out.")
    held: str | None = Field(
        description="Why it sends nothing out: what it sees that is nearly full; null while it does."
    )
    uptime_s: float


class Master(Member):
    """A replica of the control plane."""

    address: str
    leading: bool
    partitions: int = Field(description="How many are assigned to it.")
    load: OwnerLoad | None = Field(description="Null while it was not heard of lately.")


class VisitLoad(Model):
    """What a worker has in hand, by its own account of the last seconds."""

    visits: int = Field(description="URL shards that it may have in hand at once.")
    open: int = Field(description="URL shards in hand.")
    free: int = Field(description="That it could take now; 0 while it pulls none.")
    in_flight: int = Field(description="Requests under way.")
    pages: int = Field(description="Answers archived since it was started.")
    bytes: int = Field(description="Their payloads.")
    pages_per_s: float | None = Field(description="Over about ten seconds; null until it was heard of twice.")
    short: str | None = Field(
        description="Why it takes no visit: its disk or memory is nearly full; null while it does."
    )
    uptime_s: float


class Worker(Member):
    """Fetches for a pool."""

    pool: str
    capacity: int = Field(description="Visits at once, as it is registered.")
    load: VisitLoad | None = Field(description="Null while it was not heard of lately.")


class Drained(Model):
    """The members that are to drain, by id, whether they live or not."""

    masters: list[str]
    workers: list[str]


class Drain(Model):
    """What operators want of a member now."""

    id: str
    role: MemberRole
    draining: bool = Field(description="Whether it is to take up nothing new.")
    living: bool = Field(description="Whether it is there; one that is away finds it so when it comes back.")


class Cluster(Model):
    """The cluster as this master sees it."""

    member: str = Field(description="The master that answers.")
    leading: bool = Field(description="Whether it leads.")
    leader_address: str | None
    term: int | None = Field(description="Of its leadership; null unless it leads.")
    masters: list[Master]
    workers: int
    config_revision: int = Field(description="Of the hot configuration, as this master runs it.")
    worker_revisions: dict[str, int] = Field(
        description="How many workers run which revision of the hot configuration; `unknown` were not heard of lately.",
        examples=[{"3": 12}],
    )
    behind: list[str] = Field(
        description="Members that live and did not say lately that they run it, at most 100.", examples=[["worker w1"]]
    )
    drains: Drained
    partitions: dict[str, str | None] = Field(description="The owner of each partition; null where none is known.")


def master_body(
    member: MemberRecord, partitions: int, status: MasterStatus | None, *, leading: bool, wanted: bool
) -> Master:
    """The master as it is shown. `wanted`: operators want it to drain; it may not have heard of it yet."""
    draining = wanted or member.draining
    idle = status is not None and status.draining and not (status.leading or status.partitions or partitions or leading)
    return Master(
        id=member.id,
        version=member.version,
        started_at=moment_of(member.started_at_ms),
        draining=draining,
        state=_state(draining, idle),
        config_revision=None if status is None else status.config,
        address=member.address,
        leading=leading,
        partitions=partitions,
        load=None
        if status is None
        else OwnerLoad(
            partitions=status.partitions,
            shards=status.shards,
            held=status.held or None,
            uptime_s=status.uptime_ms / 1000,
        ),
    )


def worker_body(member: MemberRecord, load: WorkerLoad | None, *, wanted: bool) -> Worker:
    """The worker as it is shown. `wanted`: operators want it to drain; it may not have heard of it yet."""
    draining = wanted or member.draining
    idle = load is not None and load.status.draining and load.status.busy == 0
    return Worker(
        id=member.id,
        version=member.version,
        started_at=moment_of(member.started_at_ms),
        draining=draining,
        state=_state(draining, idle),
        config_revision=None if load is None else load.status.config,
        pool=member.pool,
        capacity=member.capacity,
        load=None if load is None else _load(load),
    )


def _load(load: WorkerLoad) -> VisitLoad:
    status = load.status
    return VisitLoad(
        visits=status.visits,
        open=status.busy,
        free=max(0, status.visits - status.busy) if status.pulling else 0,
        in_flight=status.in_flight,
        pages=status.pages,
        bytes=status.bytes,
        pages_per_s=None if load.pages_per_s is None else round(load.pages_per_s, 2),
        short=status.short or None,
        uptime_s=status.uptime_ms / 1000,
    )


def _state(draining: bool, idle: bool) -> MemberState:
    if not draining:
        return MemberState.ACTIVE
    return MemberState.DRAINED if idle else MemberState.DRAINING
