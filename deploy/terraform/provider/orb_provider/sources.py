"""The base class of data sources: resources that Terraform reads but does not manage."""

from typing import ClassVar

from orb_provider.client import Client
from orb_provider.fields import Shape, Values
from orb_provider.lifecycle import received


class DataSource:
    """A data source of one kind. A subclass has its attributes (`SHAPE`), and implements `read`."""

    SHAPE: ClassVar[Shape]

    def __init__(self, client: Client) -> None:
        self.client = client

    def read(self, config: Values) -> Values:
        """Return all values of the data source for a configuration. Raise Refusal or Rejected as the client does."""
        raise NotImplementedError

    def filled(self, config: Values, body: Values) -> Values:
        """Return the values of the configuration and the computed values in `body`, an answer of the API."""
        computed = {f.name: received(f, body) for f in self.SHAPE.fields if not f.settable}
        return {f.name: config.get(f.name) for f in self.SHAPE.settable()} | computed
