"""The response body of resource pressure: the resources of a member that are nearly full."""

from collections.abc import Iterable

from pydantic import Field

from api.schemas.model import Model, field
from shared.domain.ops.watermarks import Pressure, Resource


class ResourcePressure(Model):
    """A nearly full resource of a member. The member begins no new work until enough of the resource is free."""

    resource: str = Field(
        description="`database`: the disk or size limit of the database; `nats`: the storage limit of NATS; "
        "`nats_disk`: the disk of NATS; `archive`: the disk of a worker's archive; `memory`: the memory of "
        "the process.",
        json_schema_extra={"enum": [place.value for place in Resource]},
    )
    member: str = field("The id of the master or worker that measures it.", "m1")
    detail: str = field(
        "How full the resource is, and when work resumes.",
        "the database has 900.0 MiB free of 100.0 GiB; it goes on when 2.0 GiB are free",
    )


def pressure_body(member: str, pressure: Iterable[Pressure]) -> list[ResourcePressure]:
    """Return the nearly full resources of a member as the API shows them. `member` is its id."""
    return [ResourcePressure(resource=each.resource, member=member, detail=each.detail) for each in pressure]
