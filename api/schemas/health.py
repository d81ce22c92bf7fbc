"""The response bodies of /livez and /readyz."""

from api.schemas.model import Model, field
from api.schemas.pressure import ResourcePressure


class Health(Model):
    """The response of /livez. A process that answers is alive."""

    status: str = field("`ok`.", "ok")


class Readiness(Model):
    """The response of /readyz: whether the master is ready to serve requests, and what is missing."""

    status: str = field("`ok`, or `waiting` if a dependency does not answer.", "ok")
    missing: list[str] = field("The dependencies that do not answer.", ["database"])
    resource_pressure: list[ResourcePressure] = field(
        "The resources of this master that are nearly full, so that it dispatches no URLs. It still "
        "answers requests; while the database is full, its writes wait. Empty if none.",
        [],
    )
