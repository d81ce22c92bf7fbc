"""A view that a test publishes snapshots on."""

from collections.abc import Mapping

from shared.ports.coordinator import Entry, Snapshot
from shared.runtime.latest import Latest


class Published(Latest):
    """`shared.ports.coordinator.View`; `show` replaces all its entries, at the next revision."""

    def __init__(self, entries: Mapping[str, bytes] | None = None) -> None:
        self._revision = 1
        super().__init__(self._of(entries or {}))

    @property
    def answered_at(self) -> float:
        return 0.0

    def show(self, entries: Mapping[str, bytes]) -> None:
        """These are the keys and values from now on."""
        self._revision += 1
        self.publish(self._of(entries))

    def _of(self, entries: Mapping[str, bytes]) -> Snapshot:
        found = {key: Entry(key, value, self._revision, self._revision) for key, value in entries.items()}
        return Snapshot(found, self._revision, self._revision)
