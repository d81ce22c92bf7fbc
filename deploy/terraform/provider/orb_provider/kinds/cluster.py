"""`orb_cluster`: a data source with the members of the cluster."""

from orb_provider.fields import FieldType, Shape, Values, computed
from orb_provider.sources import DataSource


class ClusterSource(DataSource):
    """A data source with the masters, workers and configuration revision of the cluster, as one master sees them."""

    SHAPE = Shape(
        "cluster",
        "The members of the cluster, as the master that answers sees them.",
        (
            computed("id", FieldType.TEXT, "Always `cluster`."),
            computed("leader_address", FieldType.TEXT, "The host and port of the leader's API. Null without a leader."),
            computed("masters", FieldType.TEXTS, "The ids of the masters that are alive."),
            computed("workers", FieldType.WHOLE, "The number of workers that are alive."),
            computed("config_revision", FieldType.WHOLE, "The revision of the hot configuration."),
            computed("outdated_members", FieldType.TEXTS, "Members that do not run that revision yet."),
        ),
    )

    def read(self, config: Values) -> Values:
        body = self.client.get("cluster").body
        return self.filled(config, body | {"id": "cluster", "masters": [each["id"] for each in body["masters"]]})
