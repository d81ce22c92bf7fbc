"""The response bodies of the cluster: its members, their load, and the owners of partitions."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from api.members.member_stats import WorkerActivity
from api.schemas.model import Model, moment_of
from api.schemas.pressure import ResourcePressure, pressure_body
from shared.domain.ops.config import MemberRole
from shared.wire.keys import MemberRecord
from shared.wire.messages import MasterStatus


class MemberState(StrEnum):
    """The state of a member. A `draining` member finishes its work and takes no more; a `drained` one has none left."""

    ACTIVE = "active"
    DRAINING = "draining"
    DRAINED = "drained"


class Member(Model):
    """A master or worker that is alive."""

    id: str = Field(description="The id that the member was started with.", examples=["m1"])
    version: str = Field(description="The version of orb that it runs.", examples=["0.1.0"])
    started_at: datetime = Field(description="When the process was started.", examples=["2030-01-01T08:00:00Z"])
    draining: bool = Field(
        description="True if it takes on no new work, because an operator asked for that or because it is stopping."
    )
    state: MemberState = Field(
        description="`active`, `draining` while it finishes its work, or `drained` once it has none."
    )
    config_revision: int | None = Field(
        description="The revision of the hot configuration that it runs. Null if it has not reported within 5 s.",
        examples=[3],
    )


class MasterLoad(Model):
    """The load of a master, as it reported it last."""

    partitions: int = Field(description="The number of partitions that it owns and has loaded.", examples=[64])
    shards: int = Field(
        description="The number of URL shards of these partitions that are leased to workers.", examples=[12]
    )
    resource_pressure: list[ResourcePressure] = Field(
        description="The resources that are nearly full, so that the master dispatches no URLs. Empty if none.",
        examples=[[]],
    )
    uptime_s: float = Field(description="Seconds since the process was started.", examples=[3600.0])


class Master(Member):
    """A master: a process that serves the API and owns partitions."""

    address: str = Field(description="The host and port of its API.", examples=["10.0.0.11:8080"])
    leading: bool = Field(description="True if it is the leader of the cluster.")
    partitions: int = Field(description="The number of partitions that the leader has assigned to it.", examples=[64])
    load: MasterLoad | None = Field(description="What it reported last. Null if it has not reported within 5 s.")


class WorkerLoad(Model):
    """The load of a worker, as it reported it last."""

    visits: int = Field(description="The number of URL shards that it can process at a time.", examples=[64])
    active_visits: int = Field(description="The number of URL shards that it is processing.", examples=[12])
    free_visits: int = Field(
        description="The number of further URL shards that it can take now. 0 while it takes none.", examples=[52]
    )
    in_flight: int = Field(description="The number of requests to sites that are in progress.", examples=[3])
    pages: int = Field(description="The number of pages archived since the process was started.", examples=[870])
    bytes: int = Field(description="The payload of these pages in bytes.", examples=[15877500])
    pages_per_s: float | None = Field(
        description="Pages archived per second, over about ten seconds. Null until it has reported twice.",
        examples=[4.2],
    )
    resource_pressure: list[ResourcePressure] = Field(
        description="The resources that are nearly full, so that the worker takes no URL shard. Empty if none.",
        examples=[[]],
    )
    uptime_s: float = Field(description="Seconds since the process was started.", examples=[3600.0])


class Worker(Member):
    """A worker: a process that fetches pages for a pool."""

    pool: str = Field(description="The pool that it fetches for.", examples=["default"])
    capacity: int = Field(description="The number of URL shards at a time that it registered with.", examples=[64])
    load: WorkerLoad | None = Field(description="What it reported last. Null if it has not reported within 5 s.")


class DrainingMembers(Model):
    """The members that should drain, alive or not."""

    masters: list[str] = Field(description="The ids of masters that are to drain, alive or not.", examples=[["m1"]])
    workers: list[str] = Field(description="The ids of workers that are to drain, alive or not.", examples=[["w1"]])


class DrainState(Model):
    """The drain of a member, as operators want it."""

    id: str = Field(description="The member's id.", examples=["w1"])
    role: MemberRole = Field(description="Whether it is a master or a worker.")
    draining: bool = Field(description="True if the member is to take on no new work.")
    alive: bool = Field(
        description="True if the member is registered now. A member that is away drains when it comes back."
    )


class Cluster(Model):
    """The leader, the members and the owners of partitions, as this master sees them."""

    member: str = Field(description="The id of the master that answers.", examples=["m1"])
    leading: bool = Field(description="True if this master is the leader.")
    leader_address: str | None = Field(
        description="The host and port of the leader's API. Null if there is no leader.", examples=["10.0.0.11:8080"]
    )
    term: int | None = Field(
        description="The term of this master's leadership. Null if it is not the leader.", examples=[42]
    )
    masters: list[Master] = Field(description="The masters that are alive, by id.")
    workers: int = Field(description="The number of workers that are alive.", examples=[12])
    config_revision: int = Field(
        description="The revision of the hot configuration that this master runs.", examples=[3]
    )
    worker_revisions: dict[str, int] = Field(
        description="The number of workers by the revision of the hot configuration that they run. `unknown` counts "
        "those that have not reported within 5 s.",
        examples=[{"3": 12}],
    )
    outdated_members: list[str] = Field(
        description="Members that are alive and have not reported that they run `config_revision`, at most 100.",
        examples=[["worker w1"]],
    )
    drains: DrainingMembers = Field(description="The members that are to drain.")
    partitions: dict[str, str | None] = Field(
        description="The id of the owner of each partition. Null if a partition has no known owner.",
        examples=[{"0": "m1", "1": "m1"}],
    )


def master_body(
    member: MemberRecord, partitions: int, status: MasterStatus | None, *, leading: bool, wanted: bool
) -> Master:
    """Return a master as the API shows it. `wanted`: it should drain, although it may not have applied that yet."""
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
        else MasterLoad(
            partitions=status.partitions,
            shards=status.shards,
            resource_pressure=pressure_body(status.master, status.pressure),
            uptime_s=status.uptime_ms / 1000,
        ),
    )


def worker_body(member: MemberRecord, load: WorkerActivity | None, *, wanted: bool) -> Worker:
    """Return a worker as the API shows it. `wanted`: it should drain, although it may not have applied that yet."""
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


def _load(load: WorkerActivity) -> WorkerLoad:
    status = load.status
    return WorkerLoad(
        visits=status.visits,
        active_visits=status.busy,
        free_visits=status.free,
        in_flight=status.in_flight,
        pages=status.pages,
        bytes=status.bytes,
        pages_per_s=None if load.pages_per_s is None else round(load.pages_per_s, 2),
        resource_pressure=pressure_body(status.worker, status.pressure),
        uptime_s=status.uptime_ms / 1000,
    )


def _state(draining: bool, idle: bool) -> MemberState:
    if not draining:
        return MemberState.ACTIVE
    return MemberState.DRAINED if idle else MemberState.DRAINING
