"""Leases and their grants: who may fetch what is left of a URL shard, and until when.

Pure: times are the owner's monotonic seconds. Grant n of a lease is durable before it is answered, and grant n + 1 is
given only after grant n has expired, measured here from the answer and at the worker from its question, so the worker's
ends first. A new owner takes every lease that was ever granted as granted at its claim.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from shared.domain.frontier import ANSWER_S
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId
from shared.domain.ledger import LeasedUrl, LeaseRow
from shared.ports.broker import QueuedVisit

SPLIT_BY: Final = 8
"""How much smaller the next shards of a queue are after a split (500, 62, 7, 1)."""


@dataclass(slots=True)
class Grant:
    """The newest grant of a lease.

    `holder` None: given by an earlier owner, its holder makes itself known by extending. `late`: it was answered so
    long after it was asked for that perhaps nobody waited any more; that it ran out tells nothing of its URLs.
    `counted`: that it ran out was counted, and a further one is due.
    """

    number: int
    delivery: int
    holder: str | None
    until: float
    late: bool = False
    counted: bool = False


@dataclass(slots=True)
class Held:
    """A lease of this owner, with its newest grant if it ever had one. `orphan`: the holder of that grant is dead.
    `began`: when its first grant was given. `charged_s`: visit time that its crawl was charged with for it.
    `too_large`: why the broker takes no message of its size; the sweep then splits it.
    """

    row: LeaseRow
    grant: Grant | None
    published_at: float
    orphan: bool = False
    began: float = inf
    charged_s: float = 0.0
    too_large: str | None = None

    def live(self, now: float) -> bool:
        """Whether a worker may be fetching under this lease now."""
        return self.grant is not None and now < self.grant.until

    def remaining(self) -> list[int]:
        """Positions in the shard of what is not settled."""
        return [i for i, fingerprint in enumerate(self.row.order) if fingerprint in self.row.urls]


@dataclass(frozen=True, slots=True)
class LeaseGone:
    """No such lease: the message is to be acknowledged and dropped."""


@dataclass(frozen=True, slots=True)
class HeldByAnother:
    """A live grant, or a host that still rests: come again after `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class OldDelivery:
    """A later delivery of the same message is held by a live grant."""


@dataclass(frozen=True, slots=True)
class SameHolder:
    """The holder asks again: the same grant, for longer."""

    held: Held


@dataclass(frozen=True, slots=True)
class MayGrant:
    """Nobody holds it.

    `expired`: the newest grant ran out, so outcomes must be applied and the expiry counted first.
    """

    held: Held
    expired: bool


Standing = LeaseGone | HeldByAnother | OldDelivery | SameHolder | MayGrant


Watch = Callable[[Held, int, float], None]
"""Counts a lease at a time: 1: it is new, -1: it is over, 0: a grant of it begins."""


class Leases:
    """The leases of one partition. `grant_s` may change: it is for what is granted and extended from then on."""

    def __init__(self, *, grant_s: float, longest_s: float = 0.0) -> None:
        """`longest_s`: for how long an earlier owner may have granted, where that is longer."""
        self.grant_s = grant_s
        self.watched_by: Watch | None = None
        self._now = 0.0
        self._longest_s = longest_s
        self._held: dict[LeaseId, Held] = {}

    def __repr__(self) -> str:
        return f"<Leases {len(self._held)}>"

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._held.values()))

    def get(self, lease_id: LeaseId) -> Held | None:
        """The lease, if it is live."""
        return self._held.get(lease_id)

    def add(self, row: LeaseRow, now: float) -> Held:
        """A lease just committed and about to be published."""
        held = self._held[row.lease_id] = Held(row, None, now)
        self._count(held, 1, now)
        return held

    def take_over(self, row: LeaseRow, now: float, *, ended: bool) -> Held:
        """A lease of an earlier owner, as of this owner's claim.

        `ended`: every worker of before is proven dead, so an earlier grant has ended; otherwise it may last until the
        claim plus a whole grant, as long as any owner gives them.
        """
        grant = None
        if row.grants:
            longest_s = max(self.grant_s, self._longest_s)
            grant = Grant(row.grants, 0, None, now if ended else now + longest_s)
        held = self._held[row.lease_id] = Held(row, grant, now, orphan=ended and grant is not None)
        held.began = now if row.grants else inf
        self._count(held, 1, now)
        return held

    def begin(self, lease_id: LeaseId, delivery: int, holder: str, now: float) -> Standing:
        """How the one who asks to begin stands."""
        held = self._held.get(lease_id)
        if held is None:
            return LeaseGone()
        grant = held.grant
        if grant is None:
            return MayGrant(held, expired=False)
        if now < grant.until:
            if delivery < grant.delivery:
                return OldDelivery()
            if holder == grant.holder and delivery == grant.delivery:
                return SameHolder(held)
            return HeldByAnother(grant.until - now)
        return MayGrant(held, expired=True)

    def extend(self, lease_id: LeaseId, number: int, holder: str, now: float) -> Held | None:
        """The lease, if the asker holds its live grant; it makes the holder of a taken-over grant known."""
        held = self._held.get(lease_id)
        if held is None or held.grant is None or held.grant.number != number or now >= held.grant.until:
            return None
        if held.grant.holder is None:
            held.grant.holder = holder
        return held if held.grant.holder == holder else None

    def granted(self, held: Held, delivery: int, holder: str, now: float, *, asked: float | None = None) -> Grant:
        """A further grant, durable by now, begins; its holder, who asked for it at `asked`, has counted since then."""
        if held.row.lease_id in self._held:
            self._count(held, 0, now)
        held.began = min(held.began, now)
        held.row.grants += 1
        held.orphan = False
        late = asked is not None and now - asked >= min(ANSWER_S, self.grant_s) / 2
        held.grant = Grant(held.row.grants, delivery, holder, now + self.grant_s, late)
        return held.grant

    def extended(self, held: Held, now: float) -> None:
        """The grant lasts longer, never shorter: its holder has it."""
        if held.grant is not None:
            held.grant.late = False
            held.grant.until = max(held.grant.until, now + self.grant_s)

    def handed_back(self, held: Held, now: float) -> None:
        """End the newest grant now, counted, since its visit failed: a further one may begin."""
        if held.grant is not None:
            held.grant.until = min(held.grant.until, now)
            held.grant.counted = True

    def expired(self, now: float) -> list[Held]:
        """Leases whose grant ran out."""
        return [held for held in self._held.values() if held.grant is not None and now >= held.grant.until]

    def at(self, place: QueuedVisit) -> Held | None:
        """The lease whose shard is to stand there."""
        return next((held for held in self if place_of(held.row) == place), None)

    def of_crawl(self, crawl_id: CrawlId) -> list[Held]:
        """The crawl's leases."""
        return [held for held in self._held.values() if held.row.crawl_id == crawl_id]

    def settle(self, lease_id: LeaseId, urls: dict[Fingerprint, LeasedUrl], *, freed: bool, now: float = 0.0) -> None:
        """What is left of a lease after committed outcomes; `freed`: nothing, it is over."""
        if freed:
            gone = self._held.pop(lease_id, None)
            if gone is not None:
                self._count(gone, -1, now)
        elif (held := self._held.get(lease_id)) is not None:
            held.row.urls = urls

    def lower(self, lease_id: LeaseId, fingerprint: Fingerprint, depth: int) -> None:
        """A leased URL was found at a lesser depth."""
        held = self._held.get(lease_id)
        url = held.row.urls.get(fingerprint) if held else None
        if url is not None:
            url.least = min(url.least, depth)

    def _count(self, held: Held, out: int, now: float) -> None:
        self._now = max(self._now, now)
        if self.watched_by is not None:
            self.watched_by(held, out, self._now)


def place_of(row: LeaseRow) -> QueuedVisit:
    """Where the shard of a lease stands."""
    return QueuedVisit(row.pool, row.host_id, row.slot)


def host_ids(leases: Leases) -> set[HostId]:
    """Hosts with a lease out."""
    return {held.row.host_id for held in leases}
