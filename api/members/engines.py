"""The services that a cluster's master is connected to, such as the database, NATS (broker) and etcd (coordinator)."""

from collections.abc import Callable
from dataclasses import dataclass

from shared.domain.frontier.placement import StoreKind
from shared.ports.archive import PageArchive
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.ports.coordinator import Coordinator, Leadership, View
from shared.ports.desired import Desired
from shared.ports.items import ItemTable
from shared.ports.retained import Retained
from shared.ports.schedules import Schedules
from shared.ports.specs import SpecPublisher
from shared.ports.store import Store
from shared.wire.keys import Keys


@dataclass(frozen=True, slots=True)
class MasterEngines:
    """The connected database, broker (NATS) and coordinator (etcd) of a master.

    - `keys`: the names of the cluster's keys in etcd. All begin with `keys.root`.
    - `view`: the newest snapshot of these keys: the members, the leader and the assignments as of one moment.
    - `store`, `items`, `desired` and `schedules`: different tables of one database.
    - `kind`: the kind of this database.
    - `retained`: tables of this database from which the leader deletes rows after their retention.
    - `publisher` returns a publisher of crawl specs that may write while the given leadership lasts.
    - `archive`: the archive of pages, None if this master cannot read it.
    """

    keys: Keys
    coordinator: Coordinator
    view: View
    store: Store
    kind: StoreKind
    items: ItemTable
    desired: Desired
    schedules: Schedules
    retained: Retained
    broker: Broker
    publisher: Callable[[Leadership], SpecPublisher]
    clock: Clock
    archive: PageArchive | None = None
