"""Seeds taken back, in a transaction that has passed the fence.

A seed is a URL that no page led to. One that is still to be fetched leaves the queue and is excluded; one
that was fetched stays what it is, and one that was only queued to be fetched again is done. One that is out stays out:
it is being fetched.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, TextClause, bindparam, text

from shared.adapters.sql.apply import add_counters, add_tallies
from shared.adapters.sql.bulk import AMONG
from shared.adapters.sql.chunks import BEHIND, behind, behind_host, last_of, place_of
from shared.domain.command import GREATEST, SEED_DELETED, CommandKind
from shared.domain.frontier import COUNTED_AS_PAGE
from shared.domain.ids import CrawlId
from shared.domain.ledger import CommandRun

_PLACES_A_CHUNK = 500
_HOSTS_A_CHUNK = 200
_ROWS_A_CHUNK = 5_000
"""Seeds may all be on one host: no transaction takes more of them than a moment's work."""

_HOSTS = text(
    "SELECT q.host_id, h.host FROM queues q JOIN hosts h ON h.host_id = q.host_id"
    " WHERE q.crawl_id = :crawl_id AND q.partition = :partition AND q.host_id >= :first AND q.queued + q.waiting > 0"
    " ORDER BY q.host_id LIMIT :most"
)
_HOST = text("SELECT host_id FROM hosts WHERE host = :host AND partition = :partition")
_HERE = "crawl_id = :crawl_id AND host_id = :host_id"
_OPEN = f"{_HERE} AND state IN (0, 1) AND via_host IS NULL"
_FETCHED = f"flags & {COUNTED_AS_PAGE}"


def _statements(which: str) -> tuple[TextClause, TextClause]:
    """What counts the seeds for which `which` holds, by what becomes of them, and what ends them."""
    return text(
        f"SELECT state, {_FETCHED} AS fetched, count(*) AS n FROM urls WHERE {which} GROUP BY state, {_FETCHED}"
    ), text(
        f"UPDATE urls SET state = CASE WHEN {_FETCHED} > 0 THEN 3 ELSE 5 END,"
        f" reason = CASE WHEN {_FETCHED} > 0 THEN NULL ELSE '{SEED_DELETED}' END, rank = 0 WHERE {which}"
    )


def _others(dialect: str, kept: str) -> tuple[TextClause, TextClause, TextClause]:
    """What finds the last of a chunk's open seeds that are not `kept`, counts them, and ends them."""
    which = f"{_OPEN} AND {kept} AND fingerprint <= :upto"
    some = f"SELECT fingerprint FROM urls WHERE {which} AND {BEHIND} ORDER BY fingerprint LIMIT :most"
    return last_of(which), *_statements(f"{_HERE} AND {AMONG[dialect].format(some)}")


_IN: BindParameter[bytes] = bindparam("places", expanding=True)
_NAMED_COUNT, _NAMED_END = (each.bindparams(_IN) for each in _statements(f"{_OPEN} AND fingerprint IN :places"))
# Any number of seeds may stay: they are one parameter, for which each engine has a form of its own.
_KEPT = {
    "sqlite": "hex(fingerprint) NOT IN (SELECT value FROM json_each(:places))",
    "postgresql": "fingerprint <> ALL(CAST(:places AS BYTEA[]))",
}
_OTHERS = {dialect: _others(dialect, kept) for dialect, kept in _KEPT.items()}
_QUEUE = text(
    "UPDATE queues SET queued = queued - :queued, waiting = waiting - :waiting, next_due_ms = coalesce((SELECT"
    " min(rank) FROM urls WHERE crawl_id = :crawl_id AND host_id = :host_id AND state = 1), 0)"
    " WHERE crawl_id = :crawl_id AND host_id = :host_id"
)


def delete_seeds(connection: Connection, command: CommandRun, after: int) -> int | None:
    """One chunk; where the next begins: behind so many of those named, or with `all` as `chunks` has it."""
    places: Any = command.args["places"]
    by_host: dict[str, list[bytes]] = defaultdict(list)
    if command.kind == CommandKind.DELETE_SEEDS_BETWEEN or command.args["all"]:
        above, upto = _between(command)
        for host, key in places:
            by_host[host].append(key)
        first, mark = place_of(after)
        keys = {"crawl_id": command.crawl_id, "partition": command.partition}
        rows = connection.execute(_HOSTS, keys | {"first": first, "most": _HOSTS_A_CHUNK}).all()
        most = _ROWS_A_CHUNK
        for row in rows:
            which = {"after": max(above, mark) if row.host_id == first else above, "upto": upto, "most": most}
            ended, last = _end_others(connection, command, row.host_id, by_host.get(row.host, []), which)
            if last is not None:
                return behind(row.host_id, last)
            most -= ended
        return behind_host(rows[-1].host_id) if len(rows) == _HOSTS_A_CHUNK else None
    rest = after + _PLACES_A_CHUNK
    for host, key in places[after:rest]:
        by_host[host].append(key)
    for host, fingerprints in sorted(by_host.items()):
        host_id = connection.execute(_HOST, {"host": host, "partition": command.partition}).scalar()
        if host_id is not None:
            _end(connection, command, host_id, (_NAMED_COUNT, _NAMED_END), {"places": fingerprints})
    return rest if rest < len(places) else None


def _between(command: CommandRun) -> tuple[bytes, bytes]:
    """Behind which fingerprint, and up to which, seeds are meant."""
    above, upto = command.args.get("above", b""), command.args.get("upto", GREATEST)
    assert isinstance(above, bytes)
    assert isinstance(upto, bytes)
    return above, upto


def _end_others(
    connection: Connection, command: CommandRun, host_id: int, kept: Sequence[bytes], which: dict[str, Any]
) -> tuple[int, bytes | None]:
    """End a host's seeds, but those that stay, as many as may be: how many, and the last if they are that many."""
    dialect = connection.dialect.name
    places = list(kept) if dialect == "postgresql" else json.dumps([key.hex().upper() for key in kept])
    find_last, *statements = _OTHERS[dialect]
    here = {"crawl_id": command.crawl_id, "host_id": host_id, "others": which["most"] - 1}
    last = connection.execute(find_last, here | which | {"places": places}).scalar()
    return _end(connection, command, host_id, statements, which | {"places": places}), last


def _end(
    connection: Connection,
    command: CommandRun,
    host_id: int,
    statements: Sequence[TextClause],
    which: dict[str, Any],
) -> int:
    keys = {"crawl_id": command.crawl_id, "host_id": host_id}
    count, end = statements
    states = {0: 0, 1: 0}
    ends = {"done": 0, "excluded": 0}
    for row in connection.execute(count, keys | which):
        states[row.state] += row.n
        ends["done" if row.fetched else "excluded"] += row.n
    total = sum(states.values())
    if not total:
        return 0
    connection.execute(end, keys | which)
    connection.execute(_QUEUE, keys | {"queued": states[0], "waiting": states[1]})
    crawl_id = CrawlId(command.crawl_id)
    add_counters(connection, crawl_id, command.partition, {"queued": -total, **ends})
    if ends["excluded"]:
        add_tallies(connection, command.partition, {(crawl_id, "excluded", SEED_DELETED): ends["excluded"]})
    return total
