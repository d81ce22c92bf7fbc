"""What an operator asks of a host."""

from pydantic import Field

from api.schemas.model import Model, Moment, Wanted


class Block(Wanted):
    """Until when a host is left alone."""

    until: Moment = Field(description="With a time zone.", examples=["2030-01-01T00:00:00Z"])


class Delay(Wanted):
    """How a host is spared."""

    delay_s: float = Field(ge=0, le=86_400, description="From the end of a response to the start of the next request.")


class Asked(Model):
    """A command on its way to the host's owner."""

    command: str = Field(description="See /v1/commands/{id}.")
