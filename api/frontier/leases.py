"""Leases and their grants: which worker may fetch the rest of a URL shard, and until when.

Pure: times are the owner's monotonic seconds. Grant n of a lease is durable before the worker gets it. Grant n + 1 is
given only after grant n has expired. The owner counts the time of a grant from the owner's answer. The worker counts
from its own question, which was earlier, so the worker stops first. A new owner assumes that every grant began at the
moment when it claimed the partition.
"""

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Final

from blake3 import blake3
from msgspec import Struct, field

from shared.domain.crawl.exclusions import OWNER, Exclusions
from shared.domain.crawl.scope import CompiledScope
from shared.domain.crawl.scope_change import judge_found
from shared.domain.frontier.states import ALSO_PAGE, ANSWER_S, with_extra_hops
from shared.domain.frontier.store_model import LeasedUrl, LeaseRow
from shared.domain.ids import CrawlId, Fingerprint, LeaseId
from shared.ports.broker import QueuedVisit

SPLIT_BY: Final = 8
"""If a shard fails as a whole, the next shards of its queue have this many times fewer URLs (500, 62, 7, 1)."""


class LeaseGrant(Struct):
    """A worker's permission to fetch the URLs of a lease. It ends at `until` (`Clock.elapsed`).

    - `number`: 1 for the first grant of the lease.
    - `delivery`: how many times the broker had delivered the shard when the holder asked.
    - `holder`: the visit that has the grant. None after a takeover, until the first `extendable` names the holder.
    - `late`: the owner gave the grant so late that the worker may have stopped waiting. If a late grant expires, the
      lease's number of failures does not rise.
    - `end_recorded`: SQL has the record that this grant is over, so the lease may get a further grant. A grant that was
      late is recorded, too.
    """

    number: int
    delivery: int
    holder: str | None
    until: float
    late: bool = False
    end_recorded: bool = False


class TrackedLease(Struct):
    """A lease in the memory of its owner, with its newest grant (None if it never had one).

    - `orphan`: the holder of its newest grant is dead.
    - `began`: when its first grant was given (`Clock.elapsed`).
    - `charged_s`: the visit time that its crawl was charged with.
    - `too_large`: why the broker refused its message as too large. The sweep splits such a lease.
    - `outside`: its URLs that the crawl's scope excludes, each with the rule.
    - `judged_at`: the spec revision by whose scope `outside` was decided.
    - `recalled`: its visit must end, because a command must withdraw some of its URLs.
    """

    row: LeaseRow
    grant: LeaseGrant | None
    published_at: float
    orphan: bool = False
    began: float = inf
    charged_s: float = 0.0
    too_large: str | None = None
    outside: Mapping[Fingerprint, str] = field(default_factory=dict)
    judged_at: int = 0
    recalled: bool = False

    @property
    def hash(self) -> bytes:
        """The hash of the crawl and of the shard's URLs (8 bytes). Two leases with the same `lease_id` differ in it.

        A `lease_id` may be given a second time if the database was restored to an earlier state.
        """
        row = self.row
        return blake3(b"%d " % row.crawl_id + b"".join(row.order)).digest(length=8)

    def live(self, now: float) -> bool:
        """Return True if a worker may be fetching under this lease now."""
        return self.grant is not None and now < self.grant.until

    def excluded(self, exclusions: Exclusions) -> dict[Fingerprint, str]:
        """Return the URLs that have no outcome and may not be requested, each with the reason for the exclusion.

        These are the URLs that one of `exclusions` covers, and those that the crawl's scope excludes (`outside`).
        """
        host, urls = self.row.host, self.row.urls
        excluded = {key: rule for key, rule in self.outside.items() if key in urls}
        if exclusions and exclusions.touches(host):
            excluded |= {key: OWNER for key, url in urls.items() if exclusions.first(url.url, host) is not None}
        return excluded

    def judge(self, scope: CompiledScope, via_hosts: Mapping[Fingerprint, str | None]) -> None:
        """Set `outside` to the URLs that the scope excludes, with the rule for each.

        `via_hosts`: for each URL, the host of the page or redirect that led to it, None for a seed. A URL without an
        entry is not judged.
        """
        outside: dict[Fingerprint, str] = {}
        for key, url in self.row.urls.items():
            if key not in via_hosts:
                continue
            rule = judge_found(
                scope,
                url.url,
                self.row.host,
                depth=url.least,
                hops=url.hops,
                flags=url.flags,
                via_host=via_hosts[key],
            )
            if rule is not None:
                outside[key] = rule.name.value
        self.outside = outside

    def remaining(self) -> list[int]:
        """Return the positions, in the shard, of the URLs that have no outcome yet."""
        return [i for i, fingerprint in enumerate(self.row.order) if fingerprint in self.row.urls]


class NoSuchLease(Struct, frozen=True):
    """Decision of `Leases.begin`: the shard's lease does not exist. The worker acknowledges and drops the message."""


class HeldByAnother(Struct, frozen=True):
    """Decision of `Leases.begin`: another visit or delivery has a live grant. The worker asks again in `seconds`."""

    seconds: float


class OldDelivery(Struct, frozen=True):
    """Decision of `Leases.begin`: the worker has an outdated delivery of the shard's message, so it gets no grant.

    The broker delivered the message again later, and the later delivery has the live grant.
    """


class SameHolder(Struct, frozen=True):
    """Decision of `Leases.begin`: the worker has the live grant already. It gets the same grant, extended."""

    held: TrackedLease


class MayGrant(Struct, frozen=True):
    """Decision of `Leases.begin`: the lease has no live grant, so the caller may give the worker a grant.

    `expired`: True if the lease had a grant that expired. Before giving the new grant, the caller must then apply the
    outcomes that were reported under earlier grants. The caller must also record in SQL that the grant has expired.
    """

    held: TrackedLease
    expired: bool


GrantDecision = NoSuchLease | HeldByAnother | OldDelivery | SameHolder | MayGrant


Watch = Callable[[TrackedLease, int, float], None]
"""Called with a lease, a code for what happens to the lease, and the time (`Clock.elapsed`).

The codes:

- `1`: the lease was added.
- `-1`: the lease is over.
- `0`: the lease is about to get a new grant.
"""


class Leases:
    """The leases of one partition. A change of `grant_s` (seconds) applies to later grants and extensions."""

    def __init__(self, *, grant_s: float, longest_s: float = 0.0) -> None:
        """Create an empty set.

        - `grant_s`: how long a grant lasts, in seconds.
        - `longest_s`: how long a grant of an earlier owner may last, if that is longer than `grant_s`.
        """
        self.grant_s = grant_s
        self.watched_by: Watch | None = None
        self._now = 0.0
        self._longest_s = longest_s
        self._held: dict[LeaseId, TrackedLease] = {}

    def __repr__(self) -> str:
        return f"<Leases {len(self._held)}>"

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[TrackedLease]:
        return iter(list(self._held.values()))

    def __contains__(self, held: TrackedLease) -> bool:
        """Return True if this lease is not over."""
        return self._held.get(held.row.lease_id) is held

    def get(self, lease_id: LeaseId) -> TrackedLease | None:
        """Return the lease, or None if it is over."""
        return self._held.get(lease_id)

    def add(self, row: LeaseRow, now: float) -> TrackedLease:
        """Add a lease that was just committed and is about to be published."""
        held = self._held[row.lease_id] = TrackedLease(row, None, now)
        self._count(held, 1, now)
        return held

    def take_over(self, row: LeaseRow, now: float, *, ended: bool) -> TrackedLease:
        """Add a lease that an earlier owner made, when this owner claims the partition.

        `ended`: True if all workers from before the claim are known to be dead. Then the lease's grant has ended.
        Otherwise the grant counts as given at the moment of the claim.
        """
        grant = None
        if row.grants:
            longest_s = max(self.grant_s, self._longest_s)
            grant = LeaseGrant(row.grants, 0, None, now if ended else now + longest_s)
        held = self._held[row.lease_id] = TrackedLease(row, grant, now, orphan=ended and grant is not None)
        held.began = now if row.grants else inf
        self._count(held, 1, now)
        return held

    def begin(
        self, lease_id: LeaseId, delivery: int, holder: str, now: float, lease_hash: bytes = b""
    ) -> GrantDecision:
        """Decide whether a worker may begin to fetch the shard of this lease, and return the decision.

        This call only decides: it gives no grant. If the decision is MayGrant, the caller stores a new grant in SQL and
        then calls `granted`.

        - `delivery`: how many times the broker has delivered the shard.
        - `holder`: the name of the visit that asks.
        - `lease_hash`: that of the shard, empty if it has none. A shard with another hash than the lease's belongs to
          an earlier lease with this number. That lease was lost when the database came back older.
        """
        held = self._held.get(lease_id)
        if held is None or (lease_hash and lease_hash != held.hash):
            return NoSuchLease()
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

    def extendable(self, lease_id: LeaseId, number: int, holder: str, now: float) -> TrackedLease | None:
        """Check if a grant may be extended. Return its lease if so, otherwise None. The grant's end is not changed.

        If a lease is returned, the caller sets the new end with `extend`. Both of these must be true:

        - Grant `number` must be the newest grant of the lease, and must not have expired.
        - The grant must belong to `holder`. If an earlier owner gave the grant, no holder is known at first. Then this
          call records `holder` as the holder.
        """
        held = self._held.get(lease_id)
        if held is None or held.grant is None or held.grant.number != number or now >= held.grant.until:
            return None
        if held.grant.holder is None:
            held.grant.holder = holder
        return held if held.grant.holder == holder else None

    def granted(
        self, held: TrackedLease, delivery: int, holder: str, now: float, *, asked: float | None = None
    ) -> LeaseGrant:
        """Record a new grant of the lease, which was just committed, and return it.

        `asked`: when the holder's question arrived (`Clock.elapsed`). If that is long ago, the grant is marked as
        `late`. None: that is not known.
        """
        if held.row.lease_id in self._held:
            self._count(held, 0, now)
        held.began = min(held.began, now)
        held.row.grants += 1
        held.orphan = False
        late = asked is not None and now - asked >= min(ANSWER_S, self.grant_s) / 2
        held.grant = LeaseGrant(held.row.grants, delivery, holder, now + self.grant_s, late)
        return held.grant

    def extend(self, held: TrackedLease, now: float) -> None:
        """Set the end of the newest grant to `grant_s` seconds from now, unless it ends later already.

        Call this when the holder asked again, which proves that it received the grant.
        """
        if held.grant is not None:
            held.grant.late = False
            held.grant.until = max(held.grant.until, now + self.grant_s)

    def handed_back(self, held: TrackedLease, now: float) -> None:
        """End the lease's newest grant now, because its visit failed. The lease may then get a new grant."""
        if held.grant is not None:
            held.grant.until = min(held.grant.until, now)
            held.grant.end_recorded = True

    def at(self, place: QueuedVisit) -> TrackedLease | None:
        """Return the lease whose shard has this place (pool, host and slot) in a visit queue; None if there is none."""
        return next((held for held in self if subject_of(held.row) == place), None)

    def of_crawl(self, crawl_id: CrawlId) -> list[TrackedLease]:
        """Return the leases of this crawl."""
        return [held for held in self._held.values() if held.row.crawl_id == crawl_id]

    def update(self, lease_id: LeaseId, urls: dict[Fingerprint, LeasedUrl], *, freed: bool, now: float = 0.0) -> None:
        """Update a lease in memory after a transaction that changed it was committed.

        - `urls`: the lease's URLs that have no outcome yet.
        - `freed`: True if the lease is over. Then remove the lease and ignore `urls`.
        - `now`: when the lease ended (`Clock.elapsed`). It is used only with `freed`.
        """
        if freed:
            gone = self._held.pop(lease_id, None)
            if gone is not None:
                self._count(gone, -1, now)
        elif (held := self._held.get(lease_id)) is not None:
            held.row.urls = urls

    def lower(self, lease_id: LeaseId, fingerprint: Fingerprint, depth: int) -> None:
        """Record that a leased URL was discovered again at a lesser depth."""
        held = self._held.get(lease_id)
        url = held.row.urls.get(fingerprint) if held else None
        if url is not None:
            url.least = min(url.least, depth)

    def at_hops(self, lease_id: LeaseId, fingerprint: Fingerprint, extra: int) -> None:
        """Record that a leased URL was discovered again after `extra` hops beyond the scope (`scope.extra_hops`)."""
        held = self._held.get(lease_id)
        url = held.row.urls.get(fingerprint) if held else None
        if url is not None:
            url.flags = with_extra_hops(url.flags, extra)

    def also_page(self, lease_id: LeaseId, fingerprint: Fingerprint) -> None:
        """Record that a leased requisite was discovered as a page, too."""
        held = self._held.get(lease_id)
        url = held.row.urls.get(fingerprint) if held else None
        if url is not None:
            url.flags |= ALSO_PAGE

    def _count(self, held: TrackedLease, out: int, now: float) -> None:
        self._now = max(self._now, now)
        if self.watched_by is not None:
            self.watched_by(held, out, self._now)


def subject_of(row: LeaseRow) -> QueuedVisit:
    """Return the place of the lease's shard in the broker: pool, host and slot."""
    return QueuedVisit(row.pool, row.host_id, row.slot)
