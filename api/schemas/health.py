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
    held: str | None = Field(
        description="Why this master would send nothing out: what it sees that is nearly full. While the database is "
        "full, what the master must write waits; it answers all the same. Null where it sees room.",
        examples=[None],
    )
