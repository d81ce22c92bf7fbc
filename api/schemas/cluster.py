"""The response bodies of the cluster: its members, their load, and the owners of partitions."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from api.members.member_stats import WorkerActivity
from api.schemas.model import Model, field
from api.schemas.pressure import ResourcePressure, pressure_body
from shared.domain.ops.config import MemberRole
from shared.wire.keys import MemberRecord
from shared.wire.messages import MasterStatus, WorkerStatus


class MemberState(StrEnum):
    """The state of a member.

    An `active` member takes on work. A `draining` member takes on no new work and finishes what it has. A `drained`
    member has no work left.
    """

    ACTIVE = "active"
    DRAINING = "draining"
    DRAINED = "drained"


class Member(Model):
    """A master or worker that is registered in the cluster now."""

    id: str = field("The id that the member was started with.", "m1")
    version: str = field("The version of orb that it runs.", "0.1.0")
    started_at: datetime = field("When the process was started.", "2030-01-01T08:00:00Z")
    draining: bool = field(
        "True if it takes on no new work, because an operator asked for that or because it is stopping."
    )
    state: MemberState = field("`active`, `draining` while it finishes its work, or `drained` once it has none.")
    config_revision: int | None = field(
        "The revision of the hot configuration that it runs. Null if it has not reported within 5 s.", 3
    )


class MasterLoad(Model):
    """The load of a master, from its latest status report."""

    partitions: int = field("The number of partitions that it owns and has loaded.", 64)
    shards: int = field("The number of URL shards of these partitions that are leased to workers.", 12)
    resource_pressure: list[ResourcePressure] = field(
        "The resources that are nearly full, so that the master dispatches no URLs. Empty if none.", []
    )
    uptime_s: float = field("Seconds since the process was started.", 3600.0)


class Master(Member):
    """A master: a process that serves the API and owns partitions."""

    address: str = field("The host and port of its API.", "10.0.0.11:8080")
    leading: bool = field("True if it is the leader of the cluster.")
    partitions: int = field("The number of partitions that the leader has assigned to it.", 64)
    load: MasterLoad | None = field("What it reported last. Null if it has not reported within 5 s.")


class WorkerLoad(Model):
    """The load of a worker, from its latest status report."""

    visits: int = field("The number of URL shards that it can process at a time.", 64)
    active_visits: int = field("The number of URL shards that it is processing.", 12)
    free_visits: int = field("The number of further URL shards that it can take now. 0 while it takes none.", 52)
    in_flight: int = field("The number of requests to sites that are in progress.", 3)
    pages: int = field("The number of pages archived since the process was started.", 870)
    bytes: int = field("The payload of these pages in bytes.", 15877500)
    pages_per_s: float | None = field(
        "Pages archived per second, over about ten seconds. Null until it has reported twice.", 4.2
    )
    resource_pressure: list[ResourcePressure] = field(
        "The resources that are nearly full, so that the worker takes no URL shard. Empty if none.", []
    )
    uptime_s: float = field("Seconds since the process was started.", 3600.0)


class Worker(Member):
    """A worker: a process that fetches pages for a pool."""

    pool: str = field("The pool that it fetches for.", "default")
    capacity: int = field("The number of URL shards at a time that it registered with.", 64)
    load: WorkerLoad | None = field("What it reported last. Null if it has not reported within 5 s.")


class DrainingMembers(Model):
    """The members that operators have asked to drain, including members that are not running now."""

    masters: list[str] = field("The ids of masters that are to drain, alive or not.", ["m1"])
    workers: list[str] = field("The ids of workers that are to drain, alive or not.", ["w1"])


class DrainState(Model):
    """Whether operators have asked a member to drain, and whether the member is running."""

    id: str = field("The member's id.", "w1")
    role: MemberRole = field("Whether it is a master or a worker.")
    draining: bool = field("True if the member is to take on no new work.")
    alive: bool = field("True if the member is registered now. A member that is away drains when it comes back.")


class Cluster(Model):
    """The leader, the members and the owners of partitions, as this master sees them."""

    member: str = field("The id of the master that answers.", "m1")
    leading: bool = field("True if this master is the leader.")
    leader_address: str | None = field(
        "The host and port of the leader's API. Null if there is no leader.", "10.0.0.11:8080"
    )
    term: int | None = field("The term of this master's leadership. Null if it is not the leader.", 42)
    masters: list[Master] = field("The masters that are alive, by id.")
    workers: int = field("The number of workers that are alive.", 12)
    config_revision: int = field("The revision of the hot configuration that this master runs.", 3)
    worker_revisions: dict[str, int] = field(
        "The number of workers by the revision of the hot configuration that they run. `unknown` counts "
        "those that have not reported within 5 s.",
        {"3": 12},
    )
    outdated_members: list[str] = field(
        "Members that are alive and have not reported that they run `config_revision`, at most 100.", ["worker w1"]
    )
    drains: DrainingMembers = field("The members that are to drain.")
    partitions: dict[str, str | None] = field(
        "The id of the owner of each partition. Null if a partition has no known owner.", {"0": "m1", "1": "m1"}
    )


def master_body(
    member: MemberRecord, partitions: int, status: MasterStatus | None, *, leading: bool, wanted: bool
) -> Master:
    """Return a master as the API shows it.

    - `partitions`: the number of partitions that the leader has assigned to the master.
    - `status`: the latest status report of the master, None if there is no recent one.
    - `leading`: True if the master is the leader.
    - `wanted`: True if an operator has asked the master to drain, even if it has not begun to drain yet.
    """
    draining = wanted or member.draining
    idle = status is not None and status.draining and not (status.leading or status.partitions or partitions or leading)
    return Master.of(
        member,
        draining=draining,
        state=_state(draining, idle),
        config_revision=None if status is None else status.config,
        leading=leading,
        partitions=partitions,
        load=None if status is None else MasterLoad.of(status, **_reported(status.master, status)),
    )


def worker_body(member: MemberRecord, load: WorkerActivity | None, *, wanted: bool) -> Worker:
    """Return a worker as the API shows it.

    - `load`: the latest status report of the worker, None if there is no recent one.
    - `wanted`: True if an operator has asked the worker to drain, even if it has not begun to drain yet.
    """
    draining = wanted or member.draining
    idle = load is not None and load.status.draining and load.status.busy == 0
    return Worker.of(
        member,
        draining=draining,
        state=_state(draining, idle),
        config_revision=None if load is None else load.status.config,
        load=None if load is None else _load(load),
    )


def _load(load: WorkerActivity) -> WorkerLoad:
    status = load.status
    return WorkerLoad.of(
        status,
        active_visits=status.busy,
        free_visits=status.free,
        pages_per_s=None if load.pages_per_s is None else round(load.pages_per_s, 2),
        **_reported(status.worker, status),
    )


def _reported(member: str, status: MasterStatus | WorkerStatus) -> dict[str, Any]:
    pressure = pressure_body(member, status.pressure)
    return {"resource_pressure": pressure, "uptime_s": status.uptime_ms / 1000}


def _state(draining: bool, idle: bool) -> MemberState:
    if not draining:
        return MemberState.ACTIVE
    return MemberState.DRAINED if idle else MemberState.DRAINING
