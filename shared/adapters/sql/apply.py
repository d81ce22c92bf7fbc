"""The transaction that writes an owner's decisions (shared.domain.ledger.Changes)."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, text

from shared.adapters.sql import schema
from shared.adapters.sql.bulk import AMONG, Bulk
from shared.adapters.sql.fence import pass_fence
from shared.domain.frontier import Fence, Position
from shared.domain.ids import CrawlId, Partition
from shared.domain.ledger import Changes, DeadLetter, QueueEnd

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
_LETTERS_SENT = text("DELETE FROM dead_letters WHERE id = :id")
_GIVEN_UP_AT_ONCE = 5_000
"""So that a host of any size holds up the one writer of SQLite, or a row lock, for no longer than a moment."""

_OF_HOST = "crawl_id = :crawl_id AND host_id = :host_id"
# By the indexes of what is queued and of what waits.
_BEST = (
    f"SELECT fingerprint FROM urls WHERE {_OF_HOST} AND state = 0 ORDER BY rank LIMIT :most",
    f"SELECT fingerprint FROM urls WHERE {_OF_HOST} AND state = 1 ORDER BY rank LIMIT :most",
)
_GIVE_UP = {
    dialect: [
        text(f"UPDATE urls SET state = :state, reason = :reason WHERE {_OF_HOST} AND {among.format(best)}")
        for best in _BEST
    ]
    for dialect, among in AMONG.items()
}
_GIVE_UP_QUEUE = text(
    "UPDATE queues SET queued = queued - :queued, waiting = waiting - :waiting,"
    f" next_due_ms = CASE WHEN waiting <= :waiting THEN 0 ELSE next_due_ms END WHERE {_OF_HOST}"
)

_place = attrgetter("crawl_id", "host_id", "fingerprint")


def storable(value: Any) -> Any:
    """A text without NUL, which PostgreSQL cannot store and pages, headers and evidence may hold; all else as it is."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) and "\0" in value else value


def apply(connection: Connection, fence: Fence, position: Position, changes: Changes) -> Sequence[QueueEnd]:
    """Write everything, in the order that keeps rows clustered; the queues that may have more to end."""
    pass_fence(connection, fence, position)
    return write(connection, fence.partition, changes)


def write(connection: Connection, partition: Partition, changes: Changes) -> Sequence[QueueEnd]:
    """Write the changes inside a transaction that has passed the fence; see `apply`."""
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
    most, unfinished = _GIVEN_UP_AT_ONCE, []
    for end in changes.give_up:
        n = _give_up(connection, end, most)
        most -= n
        if most == 0:
            unfinished.append(end)
        crawl_id, _, state, reason = end
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
    if changes.letters_sent:
        connection.execute(_LETTERS_SENT, [{"id": letter} for letter in changes.letters_sent])
    return unfinished


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


def _give_up(connection: Connection, end: QueueEnd, most: int) -> int:
    """End up to `most` URLs of a queue; how many."""
    crawl_id, host_id, state, reason = end
    keys: dict[str, Any] = {"crawl_id": crawl_id, "host_id": host_id}
    ended: list[int] = []
    for statement in _GIVE_UP[connection.dialect.name]:
        some = keys | {"reason": reason, "state": int(state), "most": most - sum(ended)}
        ended.append(connection.execute(statement, some).rowcount)
    queued, waiting = ended
    if queued or waiting:
        connection.execute(_GIVE_UP_QUEUE, keys | {"queued": queued, "waiting": waiting})
    return queued + waiting
