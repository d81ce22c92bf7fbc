"""etcd as the coordinator: the service in which members of a cluster register, elect a leader and watch keys."""

from contextlib import AbstractAsyncContextManager

from shared.adapters.etcd import requests
from shared.adapters.etcd.connection import EtcdConnection
from shared.adapters.etcd.session import EtcdSession, open_session
from shared.adapters.etcd.settings import EtcdSettings
from shared.adapters.etcd.watching import EtcdView, follow, list_prefix
from shared.ports.clock import Clock
from shared.ports.coordinator import Entry, Snapshot


class EtcdCoordinator:
    """Reads and watches keys of an etcd cluster, and opens sessions. It implements the port `Coordinator`.

    A session is an etcd lease with the keys attached to it. The lease is renewed until the session ends.

    The coordinator connects at the first call, and again whenever needed. Create it on the event loop that uses it, in
    a process that does not fork afterwards.
    """

    def __init__(self, settings: EtcdSettings, clock: Clock) -> None:
        """Prepare the connection to etcd, which is opened at the first call.

        Raise Unusable if the settings are invalid, or if a file that they name cannot be read.
        """
        self._connection = EtcdConnection(settings)
        self._clock = clock

    async def list(self, prefix: str) -> Snapshot:
        return await list_prefix(self._connection, prefix)

    async def get(self, key: str) -> Entry | None:
        answer = await self._connection.call("KV.Range", requests.read(key), repeat=True)
        return requests.entry_of(answer.kvs[0]) if answer.kvs else None

    def watch(self, prefix: str) -> AbstractAsyncContextManager[EtcdView]:
        return follow(self._connection, self._clock, prefix)

    def session(self, ttl_s: float) -> AbstractAsyncContextManager[EtcdSession]:
        return open_session(self._connection, self._clock, ttl_s)

    async def close(self) -> None:
        await self._connection.close()

    def __repr__(self) -> str:
        return f"<EtcdCoordinator {self._connection!r}>"
