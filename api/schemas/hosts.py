"""The response body of requests that create a command for the owners of partitions."""

from api.schemas.model import Model, field


class CommandAccepted(Model):
    """A command that was accepted. The owners of partitions apply it after the response."""

    command: str = field("The id of the command: see /v1/commands/{id}.", "6f1f0c5e8d3b4a7f9b1d2c3e4f5a6b7c")
