"""Deletes seeds for an operator's command, in a transaction that has passed the fence.

A seed is a URL that no page led to. A seed that was never fetched leaves the queue and is excluded. A fetched seed
stays as it is; if it was queued for another fetch, it becomes done. A leased seed stays leased: a worker fetches it.
"""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import BindParameter, Connection, TextClause, bindparam, text

from shared.adapters.sql.engine.bulk import AMONG
from shared.adapters.sql.engine.chunks import BEHIND, HOSTS, UNMARKED, Chunk, last_of
from shared.adapters.sql.frontier.apply import add_counters, add_tallies
from shared.adapters.sql.frontier.revisits import forget_rates
from shared.adapters.sql.frontier.url_flags import NOT_QUEUED_AGAIN, QUEUED_AS
from shared.domain.frontier import command_progress
from shared.domain.frontier.command_progress import behind, behind_host, deletes_by_host, place_of, places_of_chunk
from shared.domain.frontier.commands import GREATEST, SEED_DELETED
from shared.domain.frontier.states import COUNTED_AS_PAGE, REVISIT
from shared.domain.frontier.store_model import CommandRun
from shared.domain.ids import CrawlId

_HOST = text("SELECT host_id FROM hosts WHERE host = :host AND partition = :partition")
_HERE = "crawl_id = :crawl_id AND host_id = :host_id"
_SEEDS = f"{_HERE} AND via_host IS NULL"
_OPEN = f"{_SEEDS} AND state IN (0, 1) AND {UNMARKED}"
_FETCHED = f"flags & {COUNTED_AS_PAGE}"


# SQLite has no statistics here and prefers the primary key, which would also read URLs that are no seeds.
_BY_SEEDS = {"sqlite": "urls INDEXED BY urls_seeds", "postgresql": "urls"}


def _statements(which: str) -> tuple[TextClause, TextClause, TextClause]:
    """Return three statements on the seeds that match `which`.

    The first counts them by their new state, the next reads those that are fetched again, and the last ends them.
    """
    return (
        text(
            f"SELECT state, {_FETCHED} AS fetched, {QUEUED_AS} AS part, count(*) AS n FROM urls WHERE {which}"
            " GROUP BY 1, 2, 3"
        ),
        text(f"SELECT fingerprint, flags FROM urls WHERE {which} AND flags & {COUNTED_AS_PAGE | REVISIT} <> 0"),
        text(
            f"UPDATE urls SET state = CASE WHEN {_FETCHED} > 0 THEN 3 ELSE 5 END,"
            f" reason = CASE WHEN {_FETCHED} > 0 THEN NULL ELSE '{SEED_DELETED}' END, rank = 0,"
            f" flags = {NOT_QUEUED_AGAIN} WHERE {which}"
        ),
    )


def _others(dialect: str, kept: str) -> tuple[TextClause, TextClause, TextClause]:
    """Return the statements of `_statements` on the open seeds that match `kept`, among a host's next seeds."""
    some = f"SELECT fingerprint FROM {_BY_SEEDS[dialect]} WHERE {_SEEDS} AND {BEHIND} ORDER BY fingerprint LIMIT :step"
    return _statements(f"{_OPEN} AND {kept} AND fingerprint <= :upto AND {AMONG[dialect].format(some)}")


_LAST = {dialect: last_of(_SEEDS, table) for dialect, table in _BY_SEEDS.items()}
_IN: BindParameter[bytes] = bindparam("places", expanding=True)
_NAMED = tuple(each.bindparams(_IN) for each in _statements(f"{_OPEN} AND fingerprint IN :places"))
# Any number of seeds may be kept, so they are one parameter. Each engine has its own form of it.
_KEPT = {
    "sqlite": "hex(fingerprint) NOT IN (SELECT value FROM json_each(:places))",
    "postgresql": "fingerprint <> ALL(CAST(:places AS BYTEA[]))",
}
_OTHERS = {dialect: _others(dialect, kept) for dialect, kept in _KEPT.items()}
TAKE_FROM_QUEUE: Final = text(
    "UPDATE queues SET queued = queued - :queued, waiting = waiting - :waiting, next_due_ms = coalesce((SELECT"
    " min(rank) FROM urls WHERE crawl_id = :crawl_id AND host_id = :host_id AND state = 1), 0)"
    " WHERE crawl_id = :crawl_id AND host_id = :host_id"
)


def delete_seeds(connection: Connection, command: CommandRun) -> int | None:
    """Apply one chunk of a command that deletes seeds. Return where the next chunk begins, None at the end.

    If the command names its seeds, that is the number of seeds done, else a position as `command_progress.behind` makes
    it.
    """
    places: Any = command.args["places"]
    by_host: dict[str, list[bytes]] = defaultdict(list)
    if deletes_by_host(command):
        for host, key in sorted(places):
            by_host[host].append(key)
        return _delete_others(connection, command, by_host)
    rest = command.after + command_progress.PLACES_A_CHUNK
    for host, key in places_of_chunk(command):
        by_host[host].append(key)
    for host, fingerprints in sorted(by_host.items()):
        host_id = connection.execute(_HOST, {"host": host, "partition": command.partition}).scalar()
        if host_id is not None:
            _end(connection, command, host_id, _NAMED, {"places": fingerprints})
    return rest if rest < len(places) else None


def _delete_others(connection: Connection, command: CommandRun, kept: dict[str, list[bytes]]) -> int | None:
    """Delete one chunk of the seeds that are not in `kept` (sorted), host by host. Return where the next begins."""
    dialect = connection.dialect.name
    above, upto = _between(command)
    first, mark = place_of(command.after)
    which_hosts = {
        "crawl_id": command.crawl_id,
        "partition": command.partition,
        "first": first,
        "max_count": command_progress.HOSTS_A_CHUNK,
    }
    hosts = connection.execute(HOSTS[dialect], which_hosts).all()
    chunk = Chunk()
    places = [(row, max(above, mark) if row.host_id == first else above) for row in reversed(hosts) if row.open]
    while places:
        row, after = places.pop()
        step, stay = chunk.step, kept.get(row.host, [])
        keys = {"crawl_id": command.crawl_id, "host_id": row.host_id, "after": after, "others": step - 1}
        last = connection.execute(_LAST[dialect], keys).scalar()
        until = upto if last is None else min(upto, bytes(last))
        some = stay[bisect_right(stay, after) : bisect_right(stay, until)]
        which = {"after": after, "upto": until, "step": step, "places": _parameter(dialect, some)}
        ended = _end(connection, command, row.host_id, _OTHERS[dialect], which)
        chunk.take(ended if last is None else step)
        if until < upto:
            places.append((row, until))
        if places and chunk.full:
            following, mark = places[-1]
            return behind(following.host_id, mark)
    return behind_host(hosts[-1].host_id) if len(hosts) == command_progress.HOSTS_A_CHUNK else None


def _parameter(dialect: str, kept: Sequence[bytes]) -> Any:
    return list(kept) if dialect == "postgresql" else json.dumps([key.hex().upper() for key in kept])


def _between(command: CommandRun) -> tuple[bytes, bytes]:
    """Return the range of the command's fingerprints: above the first, up to and including the second."""
    above, upto = command.args.get("above", b""), command.args.get("upto", GREATEST)
    assert isinstance(above, bytes)
    assert isinstance(upto, bytes)
    return above, upto


def _end(
    connection: Connection,
    command: CommandRun,
    host_id: int,
    statements: Sequence[TextClause],
    which: dict[str, Any],
) -> int:
    keys = {"crawl_id": command.crawl_id, "host_id": host_id, "number": command.number}
    count, again, end = statements
    states = {0: 0, 1: 0}
    ends = {"done": 0, "excluded": 0}
    parts: dict[str, int] = {}
    for row in connection.execute(count, keys | which):
        states[row.state] += row.n
        if row.part is not None:
            parts[row.part] = parts.get(row.part, 0) - row.n
        ends["done" if row.fetched else "excluded"] += row.n
    total = sum(states.values())
    if not total:
        return 0
    stored = {bytes(row.fingerprint): int(row.flags) for row in connection.execute(again, keys | which)}
    connection.execute(end, keys | which)
    connection.execute(TAKE_FROM_QUEUE, keys | {"queued": states[0], "waiting": states[1]})
    crawl_id = CrawlId(command.crawl_id)
    add_counters(connection, crawl_id, command.partition, {"queued": -total, **ends, **parts})
    tallies = forget_rates(connection, crawl_id, host_id, stored)
    if ends["excluded"]:
        tallies[crawl_id, "excluded", SEED_DELETED] = ends["excluded"]
    add_tallies(connection, command.partition, tallies)
    return total
