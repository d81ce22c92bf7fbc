"""The response body of requests that are accepted now and carried out later, by a command to the owners of partitions.

The requests unblock a host, or delete a host policy, a seed set or dead letters, or replay dead letters.
"""

from api.schemas.model import Model, field


class CommandAccepted(Model):
    """A command that was accepted. /v1/commands/{id} shows how many partitions have applied it."""

    command: str = field("The id of the command: see /v1/commands/{id}.", "6f1f0c5e8d3b4a7f9b1d2c3e4f5a6b7c")
