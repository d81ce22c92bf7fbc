"""CommandAccepted: the response body of requests that start a command. Owners of partitions apply the command later.

The routes of hosts, host policies, seed sets and dead letters share this response body.
"""

from api.schemas.model import Model, field


class CommandAccepted(Model):
    """A command that was accepted. /v1/commands/{id} shows how many partitions have applied it."""

    command: str = field("The id of the command: see /v1/commands/{id}.", "6f1f0c5e8d3b4a7f9b1d2c3e4f5a6b7c")
