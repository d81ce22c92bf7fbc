"""The bodies of probes."""

from pydantic import Field

from api.schemas.model import Model
from api.schemas.pressure import ResourcePressure


class Health(Model):
    """The state of the process."""

    status: str = Field(description="`ok`.", examples=["ok"])


class Readiness(Model):
    """The readiness of the master to serve requests."""

    status: str = Field(description="`ok`, or `waiting` if a dependency does not answer.", examples=["ok"])
    missing: list[str] = Field(description="The dependencies that do not answer.", examples=[["database"]])
    resource_pressure: list[ResourcePressure] = Field(
        description="The resources of this master that are nearly full, so that it dispatches no URLs. It still "
        "answers requests; while the database is full, its writes wait. Empty if none.",
        examples=[[]],
    )
