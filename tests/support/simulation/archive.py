"""The archive of a simulated cluster: the links of each stored page, which owners read again for a wider scope."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from shared.domain.archive.model import RecordLocation
from shared.domain.archive.stored_body import StoredBody
from shared.wire.messages import Record
from tests.support.simulation.world import Fault, Process, World

T = TypeVar("T")


@dataclass(eq=False)
class SimArchive:
    """Has the outlinks of each record. `short`: URLs whose record lists none of their links.

    `cut_off`: behind so many of the next readings, the process cannot reach an engine once.
    """

    world: World
    short: set[str] = field(default_factory=set)
    cut_off: int = 0
    _records: dict[int, Sequence[tuple[str, str]]] = field(default_factory=dict)

    def keep(self, url: str, outlinks: Sequence[tuple[str, str]]) -> Record:
        """Store a page's links."""
        place = len(self._records)
        self._records[place] = () if url in self.short else tuple(outlinks)
        return Record("sim.warc", place, 1)

    def at(self, location: RecordLocation) -> Sequence[tuple[str, str]]:
        """Return the links of a record."""
        return self._records[location.offset]

    def reader(self, process: Process) -> "SimReader":
        """Return the archive as an owner's process reads it."""
        return SimReader(self, process)


@dataclass(eq=False)
class SimReader:
    """A `PageArchive` of links. Each reading is a step of the simulated world, so that the owner may die in it."""

    archive: SimArchive
    process: Process

    def outlinks(self, location: RecordLocation) -> Sequence[tuple[str, str]]:
        return self.archive.at(location)

    async def aside(self, work: Callable[[], T]) -> T:
        await self.archive.world.gate(self.process, "archive read")
        found = work()
        if self.archive.cut_off:
            self.archive.cut_off -= 1
            self.process.fault = Fault.LOST
        return found

    def body(self, location: RecordLocation) -> StoredBody:
        raise NotImplementedError("a simulated archive has no bodies")

    def size(self, segment: str) -> int:
        raise NotImplementedError("a simulated archive has no bytes")

    def piece(self, segment: str, offset: int, max_count: int) -> bytes:
        raise NotImplementedError("a simulated archive has no bytes")
