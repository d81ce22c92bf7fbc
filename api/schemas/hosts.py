"""The bodies of requests that block or slow a host, and of the response to commands."""

from pydantic import Field

from api.schemas.model import Model, Moment, RequestModel, field


class Block(RequestModel):
    """The time until which a host is blocked: no request is sent to it."""

    until: Moment = field(
        "Until when no crawl sends a request to the host. It needs a time zone.", "2030-01-01T00:00:00Z"
    )


class Delay(RequestModel):
    """The least delay between two requests to a host."""

    delay_s: float = Field(
        ge=0,
        le=86_400,
        description="Seconds from the end of an answer to the start of the next request to the host, for every "
        "crawl. 0 removes the operator's delay.",
        examples=[2.0],
    )


class CommandAccepted(Model):
    """A command that was accepted and is applied by the owners of partitions."""

    command: str = field("The id of the command: see /v1/commands/{id}.", "6f1f0c5e8d3b4a7f9b1d2c3e4f5a6b7c")
