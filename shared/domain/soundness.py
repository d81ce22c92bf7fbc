"""What a look at a cluster's tables can find wrong with them."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

SHOWN: Final = 20
"""So many findings of a kind are kept with their words; the others are counted."""


class Damage(StrEnum):
    """The invariants of the frontier, each named for what breaks it."""

    COUNTER = "counter"
    """A counter of a (crawl, partition) is not the number of rows that it counts."""
    URL_IDENTITY = "url-identity"
    """discovered is not queued + leased + done + failed + excluded."""
    LINK_IDENTITY = "link-identity"
    """accepted is not new + known + refused."""
    QUEUE = "queue"
    """A queue's numbers are not those of its URLs."""
    QUEUE_SLEEPS = "queue-sleeps"
    """A queue would be looked at only after its first waiting URL is due."""
    LEASE = "lease"
    """A URL is out under no lease, or one that does not name it; or names a lease and is not out."""
    PLACE = "place"
    """A host, queue or lease is in another partition than it belongs to."""
    NUMBER = "number"
    """The next number of a host or lease was given already."""
    ORPHAN = "orphan"
    """A row belongs to one that is not there."""
    UNFETCHED = "unfetched"
    """A URL is done and nothing says what was fetched."""
    LEFTOVER = "leftover"
    """A crawl's rows were removed, and some are left."""


MEANINGS: Final = {
    Damage.COUNTER: "counters against the rows they count, per crawl and partition",
    Damage.URL_IDENTITY: "discovered = queued + leased + done + failed + excluded",
    Damage.LINK_IDENTITY: "accepted = new + known + refused",
    Damage.QUEUE: "queues against their URLs",
    Damage.QUEUE_SLEEPS: "queues wake by the time their first URL is due",
    Damage.LEASE: "leases against the URLs that are out",
    Damage.PLACE: "hosts, queues and leases are in the partition they belong to",
    Damage.NUMBER: "no number of a host or lease will be given twice",
    Damage.ORPHAN: "no row without the one it belongs to",
    Damage.UNFETCHED: "what is done was fetched",
    Damage.LEFTOVER: "nothing is left of crawls that were removed",
}
"""What is looked at, in the order of the report."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong: where, and what, in words."""

    damage: Damage
    where: str
    text: str


@dataclass(slots=True)
class Findings:
    """What was found, in bounded memory; `looked_at`: how many rows of each table."""

    shown: list[Finding] = field(default_factory=list)
    counts: Counter[Damage] = field(default_factory=Counter)
    looked_at: Counter[str] = field(default_factory=Counter)

    def add(self, damage: Damage, where: str, text: str) -> None:
        self.counts[damage] += 1
        if self.counts[damage] <= SHOWN:
            self.shown.append(Finding(damage, where, text))

    def same(self, damage: Damage, where: str, counted: dict[str, int], kept: dict[str, int]) -> None:
        """Add what differs: `counted` by the rows, `kept` as a number beside them."""
        for name in counted.keys() | kept.keys():
            rows, number = counted.get(name, 0), kept.get(name, 0)
            if rows != number:
                self.add(damage, where, f"{name} is {number}, and there are {rows}")

    @property
    def sound(self) -> bool:
        return not self.counts
