"""The kinds of damage that a check of the database's tables can find, and the findings of a check."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

SHOWN: Final = 20
"""The maximum number of findings of each kind of damage that `Findings` stores. Further ones are only counted."""


class Damage(StrEnum):
    """The kinds of damage: each is a rule of the frontier's tables that is violated."""

    COUNTER = "counter"
    """A counter of a (crawl, partition) is not the number of rows that it counts."""
    URL_IDENTITY = "url-identity"
    """The counters of URLs do not add up: `discovered` is not queued + leased + done + failed + excluded."""
    LINK_IDENTITY = "link-identity"
    """The counters of links do not add up: `accepted` is not new + known + refused."""
    QUEUE = "queue"
    """A count in a queue's row is wrong. The row counts the queue's queued, waiting and leased URLs, and its pages."""
    QUEUE_SLEEPS = "queue-sleeps"
    """A queue's due time is missing, or later than that of its first waiting URL. The URL would be fetched late."""
    LEASE = "lease"
    """A LEASED URL has no lease, or its lease does not contain it. Or a URL in another state refers to a lease."""
    PLACE = "place"
    """A host, queue or lease is in the wrong partition."""
    NUMBER = "number"
    """The number that a partition would give to its next host or lease is already used."""
    ORPHAN = "orphan"
    """A row refers to a row that does not exist, such as a URL to its host."""
    UNFETCHED = "unfetched"
    """A URL is done, but has no record of a fetch."""
    LEFTOVER = "leftover"
    """A deleted crawl is marked as removed from all tables, but some of its rows are still there."""


MEANINGS: Final = {
    Damage.COUNTER: "counters against the rows they count, per crawl and partition",
    Damage.URL_IDENTITY: "discovered = queued + leased + done + failed + excluded",
    Damage.LINK_IDENTITY: "accepted = new + known + refused",
    Damage.QUEUE: "queues against their URLs",
    Damage.QUEUE_SLEEPS: "queues wake by the time their first URL is due",
    Damage.LEASE: "leases against the URLs that are out",
    Damage.PLACE: "hosts, queues and leases are in the partition they belong to",
    Damage.NUMBER: "the next numbers of hosts and leases are unused",
    Damage.ORPHAN: "no row refers to a missing row",
    Damage.UNFETCHED: "every done URL has a fetch",
    Damage.LEFTOVER: "no rows of removed crawls are left",
}
"""What is checked for each kind of damage, in the order of the report."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One place in the tables that is damaged: the kind of damage, the place (`where`), and a description."""

    damage: Damage
    where: str
    text: str


@dataclass(slots=True)
class Findings:
    """The findings of a check of the tables, in bounded memory.

    `shown`: the first SHOWN findings of each kind of damage. `counts`: the number of all findings by kind. `looked_at`:
    how many rows of each table were checked.
    """

    shown: list[Finding] = field(default_factory=list)
    counts: Counter[Damage] = field(default_factory=Counter)
    looked_at: Counter[str] = field(default_factory=Counter)

    def add(self, damage: Damage, where: str, text: str) -> None:
        self.counts[damage] += 1
        if self.counts[damage] <= SHOWN:
            self.shown.append(Finding(damage, where, text))

    def add_differences(self, damage: Damage, where: str, counted: dict[str, int], kept: dict[str, int]) -> None:
        """Add a finding for each counter whose stored value is wrong, of the kind `damage` at the place `where`.

        The keys of both mappings are names of counters, such as `queued`.

        - `counted`: the right value of each counter. The check has just counted the rows.
        - `kept`: the value of each counter that the database stores.

        A counter that is missing in a mapping has the value 0 there.
        """
        for name in counted.keys() | kept.keys():
            rows, number = counted.get(name, 0), kept.get(name, 0)
            if rows != number:
                self.add(damage, where, f"{name} is {number}, and there are {rows}")

    @property
    def sound(self) -> bool:
        return not self.counts
