"""What probes are told."""

from pydantic import Field

from api.schemas.model import Model


class Health(Model):
    """The process lives."""

    status: str = Field(examples=["ok"])


class Readiness(Model):
    """Whether requests can be served."""

    status: str = Field(description="`ok` or `waiting`.", examples=["ok"])
    missing: list[str] = Field(description="Dependencies that do not answer.", examples=[["database"]])
