"""The response bodies of /livez and /readyz."""

from pydantic import Field

from api.schemas.model import Model
from api.schemas.pressure import ResourcePressure


class Health(Model):
    """The answer of a process that runs."""

    status: str = Field(description="`ok`.", examples=["ok"])


class Readiness(Model):
    """Whether the master is ready to serve requests, and what it lacks."""

    status: str = Field(description="`ok`, or `waiting` if a dependency does not answer.", examples=["ok"])
    missing: list[str] = Field(description="The dependencies that do not answer.", examples=[["database"]])
    resource_pressure: list[ResourcePressure] = Field(
        description="The resources of this master that are nearly full, so that it dispatches no URLs. It still "
        "answers requests; while the database is full, its writes wait. Empty if none.",
        examples=[[]],
    )
