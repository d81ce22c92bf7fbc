"""etcd: leadership, membership, partition ownership and watched configuration of a cluster.

`EtcdCoordinator` speaks to any cluster; `EmbeddedEtcd` runs the bundled server for a single machine. Inside:
`connection` (calls, failover, login, history), `requests` (etcd's words), `watching` (views), `session` and
`leadership` (leases, elections, guarded writes). Nothing of the generated stubs leaves this package.
"""

import os

# Before the library is loaded. Nobody goes on with it in a forked process; it would say so at each start of a program.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from shared.adapters.etcd.coordinator import EtcdCoordinator
from shared.adapters.etcd.server import EmbeddedEtcd, EtcdServerSettings
from shared.adapters.etcd.settings import EtcdSettings

__all__ = ["EmbeddedEtcd", "EtcdCoordinator", "EtcdServerSettings", "EtcdSettings"]
