"""The cluster's members and who owns what."""

from datetime import datetime

from pydantic import Field

from api.schemas.model import Model, moment_of
from shared.wire.keys import MemberRecord


class Member(Model):
    """A master or worker that lives."""

    id: str
    version: str
    started_at: datetime
    draining: bool


class Master(Member):
    """A replica of the control plane."""

    address: str
    partitions: int = Field(description="How many it owns.")


class Worker(Member):
    """Fetches for a pool."""

    pool: str
    capacity: int = Field(description="Visits at once.")


class Cluster(Model):
    """The cluster as this master sees it."""

    member: str = Field(description="The master that answers.")
    leading: bool = Field(description="Whether it leads.")
    leader_address: str | None
    term: int | None = Field(description="Of its leadership; null unless it leads.")
    masters: list[Master]
    workers: int
    partitions: dict[str, str | None] = Field(description="The owner of each partition; null where none is known.")


def master_body(member: MemberRecord, partitions: int) -> Master:
    """The master as it is shown."""
    return Master(
        id=member.id,
        version=member.version,
        started_at=moment_of(member.started_at_ms),
        draining=member.draining,
        address=member.address,
        partitions=partitions,
    )


def worker_body(member: MemberRecord) -> Worker:
    """The worker as it is shown."""
    return Worker(
        id=member.id,
        version=member.version,
        started_at=moment_of(member.started_at_ms),
        draining=member.draining,
        pool=member.pool,
        capacity=member.capacity,
    )
