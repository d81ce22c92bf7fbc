"""What Terraform reads without managing it."""

from typing import ClassVar

from orb_provider.client import Client
from orb_provider.fields import Shape, Values
from orb_provider.lifecycle import received


class DataSource:
    """A data source of one kind."""

    SHAPE: ClassVar[Shape]

    def __init__(self, client: Client) -> None:
        self.client = client

    def read(self, config: Values) -> Values:
        """Return the values for a configuration. Raise Refusal or Rejected."""
        raise NotImplementedError

    def filled(self, config: Values, body: Values) -> Values:
        """Return the configuration with the computed values from the API's answer."""
        computed = {f.name: received(f, body) for f in self.SHAPE.fields if not f.settable}
        return {f.name: config.get(f.name) for f in self.SHAPE.settable()} | computed
