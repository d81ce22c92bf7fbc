"""Hosts that no crawl has anything of any more, forgotten in bounded transactions.

A host is found by its name in the owner's transaction that gives a crawl its first URL there. So its row may go only
where no such transaction can have read it: those of its partition are kept out first, by the row that every one of them
begins with (shared.adapters.sql.fence). Where an owner is at work in that very moment, its hosts wait for another walk.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, bindparam, select, text

from shared.adapters.sql import schema
from shared.domain.ids import HostId
from shared.ports.retained import Forgotten

LOOKED_UP: Final = 20_000
"""Queues that one look at a span of hosts reads, at most. It finds each crawl's first queue there besides, by the key
of queues: so what it costs grows with the crawls that are kept, of which `master.most_crawls` bounds the number."""
_CRAWLS: Final = 500
"""Whose queues are asked for in one statement."""

_NEXT: Final = text(
    "SELECT host_id, partition, CASE WHEN visited_at_ms < :before AND last_failure_ms < :before"
    " AND blocked_until_ms < :now AND operator_delay_ms = 0 THEN 1 ELSE 0 END AS old"
    " FROM hosts WHERE host_id > :place ORDER BY host_id LIMIT :most"
)
_MET: Final = text(
    "SELECT c.crawl_id FROM crawls c WHERE c.collected_at_ms IS NULL AND"
    " (SELECT min(q.host_id) FROM queues q WHERE q.crawl_id = c.crawl_id AND q.host_id >= :first) <= :last"
)
_THERE: Final = text(
    "SELECT q.host_id FROM queues q WHERE q.crawl_id IN :crawls AND q.host_id >= :first AND q.host_id <= :last"
    " LIMIT :most"
).bindparams(bindparam("crawls", expanding=True))

_FORGET: Final = text(
    "DELETE FROM hosts WHERE host_id IN :hosts AND visited_at_ms < :before AND last_failure_ms < :before"
    " AND blocked_until_ms < :now AND operator_delay_ms = 0"
).bindparams(bindparam("hosts", expanding=True))


@dataclass(frozen=True, slots=True)
class Old:
    """Hosts that nobody asked for so long and no crawl had a queue of, with their partitions; and where to go on, "" at
    the end."""

    hosts: Mapping[HostId, int]
    place: str


def old_hosts(connection: Connection, before_ms: int, now_ms: int, place: str, most: int) -> Old:
    """Those of the next `most` rows, or of fewer where crawls have many queues of them, that no crawl has one of."""
    keys = {"place": int(place or 0), "before": before_ms, "now": now_ms, "most": most}
    rows = connection.execute(_NEXT, keys).all()
    partitions = {HostId(row.host_id): row.partition for row in rows if row.old}
    unused, through = _unused(connection, list(partitions))
    hosts = {host_id: partitions[host_id] for host_id in unused}
    if partitions and through < max(partitions):
        return Old(hosts, str(through))
    return Old(hosts, str(rows[-1].host_id) if len(rows) == most else "")


def forget_hosts(connection: Connection, old: Old, before_ms: int, now_ms: int) -> Forgotten:
    """Remove those of them that are old still, and that no crawl has a queue of."""
    if not old.hosts:
        return Forgotten(0, old.place)
    free = _kept_out(connection, set(old.hosts.values()))
    unused, _ = _unused(connection, [host_id for host_id, partition in old.hosts.items() if partition in free])
    if not unused:
        return Forgotten(0, old.place)
    values = {"hosts": unused, "before": before_ms, "now": now_ms}
    return Forgotten(connection.execute(_FORGET, values).rowcount, old.place)


def _unused(connection: Connection, hosts: Sequence[HostId]) -> tuple[list[HostId], HostId]:
    """Of these, by number, those that no crawl has a queue of; and through which of them that is known: a span that has
    too many queues is shortened, to one host if need be, of which a single queue tells."""
    asked = list(hosts)
    while asked:
        left, looked = set(asked), 0
        crawls = connection.execute(_MET, {"first": asked[0], "last": asked[-1]}).scalars().all()
        for at in range(0, len(crawls), _CRAWLS):
            if not left or looked >= LOOKED_UP:
                break
            span = {"first": min(left), "last": max(left), "most": LOOKED_UP - looked}
            found = connection.execute(_THERE, {"crawls": crawls[at : at + _CRAWLS], **span}).scalars().all()
            looked += len(found)
            left.difference_update(found)
        if not left or looked < LOOKED_UP:
            return sorted(left), asked[-1]
        asked = sorted(left)[: len(left) // 4 or 1]
    return [], HostId(0)


def _kept_out(connection: Connection, partitions: Collection[int]) -> Collection[int]:
    """Those of the partitions whose owners wait from now on, until this transaction ends, and read after it what is
    there. SQLite has one writer."""
    table = schema.partitions.c.partition
    query = select(table).where(table.in_(sorted(partitions))).order_by(table).with_for_update(skip_locked=True)
    found: Sequence[int] = connection.execute(query).scalars().all()
    return set(found)
