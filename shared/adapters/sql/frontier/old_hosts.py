"""Deletes rows of hosts that no crawl uses any more, in bounded transactions.

A deletion locks the rows of the partitions, as the transactions of owners do (shared.adapters.sql.engine.fence). So no
owner can begin to use a host while its row is deleted. If an owner has the lock, the hosts of its partition stay until
the next sweep.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, bindparam, select, text

from shared.adapters.sql.engine import schema
from shared.domain.ids import HostId
from shared.ports.retained import SweepResult

MAX_QUEUES_READ: Final = 20_000
"""The maximum number of queues that one search reads to find the hosts without a queue in a list of hosts.

A host has one queue for each crawl. For example, a list has 100 hosts, which together have 50,000 queues. These are too
many, so the search starts again with only about the first 25 of the hosts."""
_CRAWLS: Final = 500
"""One statement reads the queues of at most this many crawls."""

_NEXT: Final = text(
    "SELECT host_id, partition, CASE WHEN visited_at_ms < :before AND last_failure_ms < :before"
    " AND blocked_until_ms < :now AND operator_delay_ms = 0 THEN 1 ELSE 0 END AS old"
    " FROM hosts WHERE host_id > :place ORDER BY host_id LIMIT :max_count"
)
_MET: Final = text(
    "SELECT c.crawl_id FROM crawls c WHERE c.collected_at_ms IS NULL AND"
    " (SELECT min(q.host_id) FROM queues q WHERE q.crawl_id = c.crawl_id AND q.host_id >= :first) <= :last"
)
_THERE: Final = text(
    "SELECT q.host_id FROM queues q WHERE q.crawl_id IN :crawls AND q.host_id >= :first AND q.host_id <= :last"
    " LIMIT :max_count"
).bindparams(bindparam("crawls", expanding=True))

_FORGET: Final = text(
    "DELETE FROM hosts WHERE host_id IN :hosts AND visited_at_ms < :before AND last_failure_ms < :before"
    " AND blocked_until_ms < :now AND operator_delay_ms = 0"
).bindparams(bindparam("hosts", expanding=True))


@dataclass(frozen=True, slots=True)
class Old:
    """Hosts that a sweep may delete, since they were not used for the retention time and have no queue.

    - `hosts`: the partition of each host, by host id.
    - `place`: the id of the last host that was checked, as text, such as `"128"`. The sweep continues after this host.
      An empty text means that all hosts were checked.
    """

    hosts: Mapping[HostId, int]
    place: str


def old_hosts(connection: Connection, before_ms: int, now_ms: int, place: str, max_count: int) -> Old:
    """Return the hosts to delete among the next `max_count` hosts after `place`, and where the next call continues.

    A host may be deleted if all of this is true:

    - The host was last used before `before_ms`.
    - Its back-off has ended, and its policy sets no delay.
    - No crawl has a queue for the host.

    If too many queues must be read (MAX_QUEUES_READ), only the first of these hosts are checked. The next call
    continues after the last host that was checked.

    `place`: the `Old.place` that the call before returned, "" at first.
    """
    keys = {"place": int(place or 0), "before": before_ms, "now": now_ms, "max_count": max_count}
    rows = connection.execute(_NEXT, keys).all()
    partitions = {HostId(row.host_id): row.partition for row in rows if row.old}
    unused, through = _unused(connection, list(partitions))
    hosts = {host_id: partitions[host_id] for host_id in unused}
    if partitions and through < max(partitions):
        return Old(hosts, str(through))
    return Old(hosts, str(rows[-1].host_id) if len(rows) == max_count else "")


def forget_hosts(connection: Connection, old: Old, before_ms: int, now_ms: int) -> SweepResult:
    """Delete the hosts of `old` that are still unused and have no queue. Return their number, and where to continue.

    Skip hosts of a partition whose owner is writing.
    """
    if not old.hosts:
        return SweepResult(0, old.place)
    free = _kept_out(connection, set(old.hosts.values()))
    unused, _ = _unused(connection, [host_id for host_id, partition in old.hosts.items() if partition in free])
    if not unused:
        return SweepResult(0, old.place)
    values = {"hosts": unused, "before": before_ms, "now": now_ms}
    return SweepResult(connection.execute(_FORGET, values).rowcount, old.place)


def _unused(connection: Connection, hosts: Sequence[HostId]) -> tuple[list[HostId], HostId]:
    """Return which of `hosts` have no queue, and the last host that was checked. `hosts` must be in ascending order.

    If the hosts have too many queues (MAX_QUEUES_READ), only hosts at the beginning of `hosts` are checked. Example:
    `hosts` has the ids 1 to 100, and the result is `([3, 7], 25)`. The hosts 1 to 25 were checked, and only 3 and 7
    have no queue. Nothing is known of the hosts 26 to 100.
    """
    checked = list(hosts)
    while checked:
        left, read = set(checked), 0
        crawls = connection.execute(_MET, {"first": checked[0], "last": checked[-1]}).scalars().all()
        for at in range(0, len(crawls), _CRAWLS):
            if not left or read >= MAX_QUEUES_READ:
                break
            span = {"first": min(left), "last": max(left), "max_count": MAX_QUEUES_READ - read}
            used = connection.execute(_THERE, {"crawls": crawls[at : at + _CRAWLS], **span}).scalars().all()
            read += len(used)
            left.difference_update(used)
        if not left or read < MAX_QUEUES_READ:
            return sorted(left), checked[-1]
        checked = sorted(left)[: len(left) // 4 or 1]  # Try again with the first quarter, but at least one host.
    return [], HostId(0)


def _kept_out(connection: Connection, partitions: Collection[int]) -> Collection[int]:
    """Lock the rows of those `partitions` that no other transaction has locked. Return the partitions locked here.

    The owners of the returned partitions cannot write until this transaction ends. SQLite has only one writer, so
    nothing is locked, and all partitions are returned.
    """
    table = schema.partitions.c.partition
    query = select(table).where(table.in_(sorted(partitions))).order_by(table).with_for_update(skip_locked=True)
    locked: Sequence[int] = connection.execute(query).scalars().all()
    return set(locked)
