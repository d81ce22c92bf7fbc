"""etcd as the coordinator: leadership, membership, partition ownership and watched configuration of a cluster.

`EtcdCoordinator` connects to any cluster. `EmbeddedEtcd` runs the bundled server for a single machine. Its modules:

- `connection`: calls, failover, login, and detection of an etcd that came back older.
- `requests`: etcd's messages; `errors`: the conversion of its errors.
- `watching`: views of watched keys; `specs`: published specs.
- `session`, `leadership`: leases, elections and guarded writes.
- `server`: the bundled server; `settings`: endpoints, login and time limits.

The generated stubs are used only in this package. A member here is a server of the etcd cluster, unless it is called a
master or worker.
"""

import os

# Set this before the library is loaded. No forked process uses it, and it would warn at each start of a program.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from shared.adapters.etcd.coordinator import EtcdCoordinator
from shared.adapters.etcd.server import EmbeddedEtcd, EtcdServerSettings
from shared.adapters.etcd.settings import EtcdSettings

__all__ = ["EmbeddedEtcd", "EtcdCoordinator", "EtcdServerSettings", "EtcdSettings"]
