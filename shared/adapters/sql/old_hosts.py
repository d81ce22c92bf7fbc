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
"""Queues that one pass looks up, at most: one for each host that is old and each crawl that may have some there."""

_NEXT: Final = text(
    "SELECT host_id, partition, CASE WHEN visited_at_ms < :before AND last_failure_ms < :before"
    " AND blocked_until_ms < :now AND operator_delay_ms = 0 THEN 1 ELSE 0 END AS old"
    " FROM hosts WHERE host_id > :place ORDER BY host_id LIMIT :most"
)
_CRAWLS: Final = text("SELECT count(*) FROM crawls WHERE collected_at_ms IS NULL")
USED: Final = text(
    "SELECT DISTINCT q.host_id FROM crawls c CROSS JOIN queues q"
    " WHERE c.collected_at_ms IS NULL AND q.crawl_id = c.crawl_id AND q.host_id IN :hosts"
).bindparams(bindparam("hosts", expanding=True))
"""By the key of queues, crawl by crawl."""

_FORGET: Final = text(
    "DELETE FROM hosts WHERE host_id IN :hosts AND visited_at_ms < :before AND last_failure_ms < :before"
    " AND blocked_until_ms < :now AND operator_delay_ms = 0"
).bindparams(bindparam("hosts", expanding=True))


@dataclass(frozen=True, slots=True)
class Old:
    """Hosts that nobody asked for so long, with their partitions; and where to go on, "" at the end."""

    hosts: Mapping[HostId, int]
    place: str


def old_hosts(connection: Connection, before_ms: int, now_ms: int, place: str, most: int) -> Old:
    """The next of them, of `most` rows at most, and of fewer where there are so many crawls to ask."""
    keys = {"place": int(place or 0), "before": before_ms, "now": now_ms, "most": most}
    rows = connection.execute(_NEXT, keys).all()
    asked = max(1, LOOKED_UP // max(1, connection.execute(_CRAWLS).scalar_one()))
    found = [row for row in rows if row.old]
    if len(found) > asked:
        return Old({HostId(row.host_id): row.partition for row in found[:asked]}, str(found[asked - 1].host_id))
    hosts = {HostId(row.host_id): row.partition for row in found}
    return Old(hosts, str(rows[-1].host_id) if len(rows) == most else "")


def forget_hosts(connection: Connection, old: Old, before_ms: int, now_ms: int) -> Forgotten:
    """Remove those of them that are old still, and that no crawl has a queue of."""
    if not old.hosts:
        return Forgotten(0, old.place)
    free = _kept_out(connection, set(old.hosts.values()))
    hosts = [host_id for host_id, partition in old.hosts.items() if partition in free]
    used = set(connection.execute(USED, {"hosts": hosts}).scalars()) if hosts else set()
    unused = [host_id for host_id in hosts if host_id not in used]
    if not unused:
        return Forgotten(0, old.place)
    values = {"hosts": unused, "before": before_ms, "now": now_ms}
    return Forgotten(connection.execute(_FORGET, values).rowcount, old.place)


def _kept_out(connection: Connection, partitions: Collection[int]) -> Collection[int]:
    """Those of the partitions whose owners wait from now on, until this transaction ends, and read after it what is
    there. SQLite has one writer."""
    table = schema.partitions.c.partition
    query = select(table).where(table.in_(sorted(partitions))).order_by(table).with_for_update(skip_locked=True)
    found: Sequence[int] = connection.execute(query).scalars().all()
    return set(found)
