"""The transaction that writes an owner's decisions (shared.domain.ledger.Changes)."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, text

from shared.adapters.sql import schema
from shared.adapters.sql.bulk import Bulk
from shared.adapters.sql.fence import pass_fence
from shared.domain.frontier import Fence, Position, UrlState
from shared.domain.ids import CrawlId, HostId, Partition
from shared.domain.ledger import Changes, DeadLetter

_URL = Bulk(
    "UPDATE urls SET state = :state, rank = :rank, attempts = :attempts, flags = :flags, reason = :reason,"
    " lease_id = NULL WHERE crawl_id = :crawl_id AND host_id = :host_id AND fingerprint = :fingerprint",
    ("state", "rank", "attempts", "flags", "reason", "crawl_id", "host_id", "fingerprint"),
)
_FETCH_COLUMNS = tuple(column.name for column in schema.fetches.columns if column.name != "history")
_FETCH_KEYS = ("crawl_id", "host_id", "fingerprint")
_BRINGS_PAGE = "excluded.page OR NOT fetches.page"
_TOLD = "{0}.at_ms || ' ' || {0}.status || ' ' || coalesce({0}.reason, '-')"
_HISTORY = (
    f"substr(CASE WHEN {_BRINGS_PAGE} THEN {_TOLD.format('fetches')} ELSE {_TOLD.format('excluded')} END"
    " || coalesce(';' || fetches.history, ''), 1, 512)"
)
# A page that was stored keeps its whole row when a later fetch brings none: what the index shows never changes into
# what is not there. The later fetch is told by the history, as an earlier one is where the row is replaced.
_FETCH = Bulk(
    "INSERT INTO fetches (" + ", ".join(f'"{name}"' for name in _FETCH_COLUMNS) + ")"
    f" VALUES ({', '.join(':' + name for name in _FETCH_COLUMNS)})"
    f" ON CONFLICT ({', '.join(_FETCH_KEYS)}) DO UPDATE SET history = {_HISTORY}, "
    + ", ".join(
        f'"{name}" = CASE WHEN {_BRINGS_PAGE} THEN excluded."{name}" ELSE fetches."{name}" END'
        for name in _FETCH_COLUMNS
        if name not in _FETCH_KEYS
    ),
    _FETCH_COLUMNS,
)
_fetch_values = attrgetter(*_FETCH_COLUMNS)
_QUEUE = text(
    "UPDATE queues SET queued = queued + :queued, waiting = waiting + :waiting, leased = leased + :leased,"
    " pages = pages + :pages, shard_cap = coalesce(:shard_cap, shard_cap),"
    " active_at_ms = coalesce(:active_at_ms, active_at_ms),"
    " next_due_ms = CASE WHEN CAST(:next_due_ms AS BIGINT) IS NULL THEN next_due_ms"
    " WHEN next_due_ms = 0 OR next_due_ms > :next_due_ms THEN :next_due_ms ELSE next_due_ms END"
    " WHERE crawl_id = :crawl_id AND host_id = :host_id"
)
_HOST = text(
    "UPDATE hosts SET crawl_delay_ms = :crawl_delay_ms, latency_ms = :latency_ms, failures = :failures,"
    " unreachable = :unreachable, last_failure_ms = :last_failure_ms, last_failure = :last_failure,"
    " blocked_until_ms = :blocked_until_ms, visited_at_ms = :visited_at_ms,"
    " ip = coalesce(:ip, ip) WHERE host_id = :host_id"
)
_FREE = text("DELETE FROM leases WHERE lease_id = :lease_id")
_EXPIRED = text("UPDATE leases SET expired = :expired WHERE lease_id = :lease_id")
_TALLY = text(
    "INSERT INTO crawl_tallies (crawl_id, partition, kind, key, n) VALUES (:crawl_id, :partition, :kind, :key, :n)"
    " ON CONFLICT (crawl_id, partition, kind, key) DO UPDATE SET n = crawl_tallies.n + excluded.n"
)
_DEAD_LETTER = text(
    "INSERT INTO dead_letters (partition, crawl_id, kind, at_ms, url, evidence, payload)"
    " VALUES (:partition, :crawl_id, :kind, :at_ms, :url, :evidence, :payload)"
)
_GIVE_UP = text(
    "UPDATE urls SET state = :state, reason = :reason"
    " WHERE crawl_id = :crawl_id AND host_id = :host_id AND state IN (0, 1)"
)
_GIVE_UP_QUEUE = text(
    "UPDATE queues SET queued = 0, waiting = 0, next_due_ms = 0 WHERE crawl_id = :crawl_id AND host_id = :host_id"
)

_place = attrgetter("crawl_id", "host_id", "fingerprint")


def storable(value: Any) -> Any:
    """A text without NUL, which PostgreSQL cannot store and pages, headers and evidence may hold; all else as it is."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) and "\0" in value else value


def apply(connection: Connection, fence: Fence, position: Position, changes: Changes) -> None:
    """Write everything, in the order that keeps rows clustered."""
    pass_fence(connection, fence, position)
    write(connection, fence.partition, changes)


def write(connection: Connection, partition: Partition, changes: Changes) -> None:
    """Write the changes inside a transaction that has passed the fence."""
    _URL.run(
        connection,
        [
            (c.state.value, c.rank, c.attempts, c.flags, c.reason, c.crawl_id, c.host_id, c.fingerprint)
            for c in sorted(changes.urls, key=_place)
        ],
    )
    _FETCH.run(connection, [tuple(map(storable, _fetch_values(row))) for row in sorted(changes.fetches, key=_place)])
    if changes.queues:
        connection.execute(
            _QUEUE,
            [
                {
                    "crawl_id": crawl_id,
                    "host_id": host_id,
                    "queued": delta.queued,
                    "waiting": delta.waiting,
                    "leased": delta.leased,
                    "pages": delta.pages,
                    "shard_cap": delta.shard_cap,
                    "active_at_ms": delta.active_at_ms,
                    "next_due_ms": delta.next_due_ms,
                }
                for (crawl_id, host_id), delta in changes.queues.items()
            ],
        )
    counters = {crawl_id: dict(deltas) for crawl_id, deltas in changes.counters.items()}
    tallies = dict(changes.tallies)
    for crawl_id, host_id, state, reason in changes.give_up:
        n = _give_up(connection, crawl_id, host_id, state, reason)
        column = state.name.lower()
        deltas = counters.setdefault(crawl_id, {})
        deltas["queued"] = deltas.get("queued", 0) - n
        deltas[column] = deltas.get(column, 0) + n
        tallies[crawl_id, column, reason] = tallies.get((crawl_id, column, reason), 0) + n
    if changes.hosts:
        connection.execute(
            _HOST,
            [
                {
                    "host_id": host.host_id,
                    "crawl_delay_ms": host.crawl_delay_ms,
                    "latency_ms": host.latency_ms,
                    "failures": host.failures,
                    "unreachable": host.unreachable,
                    "last_failure_ms": host.last_failure_ms,
                    "last_failure": storable(host.last_failure),
                    "blocked_until_ms": host.blocked_until_ms,
                    "visited_at_ms": host.visited_at_ms,
                    "ip": host.ip,
                }
                for host in changes.hosts.values()
            ],
        )
    if changes.freed:
        connection.execute(_FREE, [{"lease_id": lease_id} for lease_id in changes.freed])
    if changes.expired:
        connection.execute(_EXPIRED, [{"lease_id": k, "expired": n} for k, n in changes.expired.items()])
    for crawl_id, deltas in counters.items():
        add_counters(connection, crawl_id, partition, deltas)
    add_tallies(connection, partition, tallies)
    for letter in changes.dead_letters:
        bury(connection, partition, letter)


def add_tallies(connection: Connection, partition: Partition, tallies: Mapping[tuple[CrawlId, str, str], int]) -> None:
    """Add to tallies (crawl, kind, key) of this partition."""
    if tallies:
        connection.execute(
            _TALLY,
            [
                {"crawl_id": crawl_id, "partition": partition, "kind": kind, "key": storable(key)[:64], "n": n}
                for (crawl_id, kind, key), n in tallies.items()
            ],
        )


def add_counters(connection: Connection, crawl_id: CrawlId, partition: Partition, deltas: dict[str, int]) -> None:
    """Add to a crawl's counters in this partition, making the row on first use."""
    names = [name for name in schema.COUNTERS if deltas.get(name)]
    values: dict[str, Any] = {name: deltas[name] for name in names}
    columns = "".join(f", {name}" for name in names)
    places = "".join(f", :{name}" for name in names)
    sums = "".join(f", {name} = crawl_counters.{name} + excluded.{name}" for name in names)
    connection.execute(
        text(
            f"INSERT INTO crawl_counters (crawl_id, partition, version{columns})"
            f" VALUES (:crawl_id, :partition, 1{places})"
            f" ON CONFLICT (crawl_id, partition) DO UPDATE SET version = crawl_counters.version + 1{sums}"
        ),
        values | {"crawl_id": crawl_id, "partition": partition},
    )


def bury(connection: Connection, partition: Partition, letter: DeadLetter) -> None:
    """Keep a dead letter."""
    connection.execute(
        _DEAD_LETTER,
        {
            "partition": partition,
            "crawl_id": letter.crawl_id,
            "kind": letter.kind,
            "at_ms": letter.at_ms,
            "url": storable(letter.url),
            "evidence": storable(letter.evidence),
            "payload": letter.payload,
        },
    )


def _give_up(connection: Connection, crawl_id: CrawlId, host_id: HostId, state: UrlState, reason: str) -> int:
    keys = {"crawl_id": crawl_id, "host_id": host_id}
    n = connection.execute(_GIVE_UP, keys | {"reason": reason, "state": int(state)}).rowcount
    connection.execute(_GIVE_UP_QUEUE, keys)
    return n
