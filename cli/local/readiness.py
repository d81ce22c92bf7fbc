"""Check whether a local cluster is ready: every member is registered, one master leads, every master reports ready."""

from collections.abc import Collection, Mapping

import httpx

from api.members.membership import leader_in, members_in
from cli.local.addresses import Address
from shared.domain.errors import Transient
from shared.ports.coordinator import Coordinator
from shared.wire.keys import Keys


class ReadinessCheck:
    """Checks at each call. `masters` maps names to the addresses of their APIs."""

    def __init__(
        self,
        coordinator: Coordinator,
        client: httpx.AsyncClient,
        keys: Keys,
        masters: Mapping[str, Address],
        workers: Collection[str],
    ) -> None:
        self._coordinator = coordinator
        self._client = client
        self._keys = keys
        self._masters = masters
        self._workers = workers

    def __repr__(self) -> str:
        return f"<ReadinessCheck {', '.join([*self._masters, *self._workers])}>"

    async def missing(self) -> list[str]:
        """Return what is still missing, in words; empty when the cluster is ready."""
        try:
            snapshot = await self._coordinator.list(self._keys.root)
        except Transient:
            return ["etcd"]
        members = members_in(snapshot, self._keys)
        missing = [name for name in self._masters if name not in members.masters]
        missing += [name for name in self._workers if name not in members.workers]
        if leader_in(snapshot, self._keys) is None:
            missing.append("a leader")
        for name, place in self._masters.items():
            if name in members.masters and (lacks := await self._lacks(place)) is not None:
                missing.append(f"{name} ({lacks})")
        return missing

    async def _lacks(self, place: Address) -> str | None:
        """Return what the master reports as missing, None if it is ready."""
        try:
            answer = await self._client.get(f"http://{place}/readyz")
        except httpx.TransportError as error:
            return f"its API does not answer: {type(error).__name__}"
        if answer.status_code == httpx.codes.OK:
            return None
        return f"it is not ready: {answer.text[:200]}"
