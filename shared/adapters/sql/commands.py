"""The transaction that applies one bounded chunk of an operator's command.

A chunk covers a bounded number of hosts and of rows, or of letters, or of seeds; it may be applied again (a crash
before the last chunk starts the command over), so every statement names the state it changes. A host with more rows
than a chunk takes is gone on with by the next.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, TextClause, bindparam, text

from shared.adapters.sql import letters
from shared.adapters.sql.apply import add_counters, add_tallies
from shared.adapters.sql.bulk import AMONG
from shared.adapters.sql.chunks import BEHIND, behind, behind_host, last_of, place_of
from shared.adapters.sql.fence import move_position, pass_fence
from shared.adapters.sql.seeds_deleted import delete_seeds
from shared.domain.command import CommandKind, check_command
from shared.domain.frontier import LEVEL_MS, Fence, Position
from shared.domain.ledger import CommandRun

_HOSTS_A_CHUNK = 200
_ROWS_A_CHUNK = 5_000
"""So that no transaction holds the one writer of SQLite, or the locks of PostgreSQL, for longer than a moment."""

_HOSTS = text(
    "SELECT host_id FROM queues WHERE crawl_id = :crawl_id AND partition = :partition AND host_id >= :first"
    " ORDER BY host_id LIMIT :most"
)
_APPLIED = text("SELECT 1 FROM commands WHERE id = :id AND partition = :partition")
_RECORD = text(
    "INSERT INTO commands (id, partition, crawl_id, kind, applied_at_ms)"
    " VALUES (:id, :partition, :crawl_id, :kind, :now_ms) ON CONFLICT (id, partition) DO NOTHING"
)
_OF_HOST = "crawl_id = :crawl_id AND host_id = :host_id"
_FAILED = f"{_OF_HOST} AND state = 4"
_UNANSWERED = f"{_FAILED} AND coalesce(reason, '') NOT LIKE 'http!_%' ESCAPE '!'"
_RETRIED = {CommandKind.RETRY_FAILED: _FAILED, CommandKind.RETRY_UNANSWERED: _UNANSWERED}
_SOME = "SELECT fingerprint FROM {} WHERE {} ORDER BY fingerprint LIMIT :most"


def _retry_statements(which: str, dialect: str) -> tuple[TextClause, TextClause, TextClause]:
    """What counts some of a host's URLs for which `which` holds, by their reasons, what finds the last of them if they
    are as many as they may be, and what queues the same ones."""
    some = f"{_OF_HOST} AND {AMONG[dialect].format(_SOME.format('urls', f'{which} AND {BEHIND}'))}"
    return (
        text(f"SELECT coalesce(reason, '') AS reason, count(*) AS n FROM urls WHERE {some} GROUP BY reason"),
        last_of(which),
        text(
            "UPDATE urls SET state = 0, attempts = 0, reason = NULL,"
            f" rank = :now_ms + CAST(depth - priority AS BIGINT) * {LEVEL_MS} WHERE {some}"
        ),
    )


_RETRY = {(kind, dialect): _retry_statements(which, dialect) for kind, which in _RETRIED.items() for dialect in AMONG}
_RETRY_QUEUE = text("UPDATE queues SET queued = queued + :n WHERE crawl_id = :crawl_id AND host_id = :host_id")
# A dead host gets its chances anew. Its block stays: it is what the host, or an operator, asked for.
_FRESH_HOST = text("UPDATE hosts SET failures = 0, unreachable = 0 WHERE host_id IN :ids").bindparams(
    bindparam("ids", expanding=True)
)
_DELETE_SOME = {
    dialect: tuple(
        text(f"DELETE FROM {table} WHERE {_OF_HOST} AND {within.format(_SOME.format(table, _OF_HOST))}")
        for table in ("fetches", "urls")
    )
    for dialect, within in AMONG.items()
}
_DELETE_QUEUE = text(f"DELETE FROM queues WHERE {_OF_HOST}")
# A lease that was ever granted stays until its grant has run out: a new owner must know that its host is being visited.
_DELETE_LEASES = text("DELETE FROM leases WHERE crawl_id = :crawl_id AND partition = :partition AND grants = 0")
_OF_CRAWL = "crawl_id = :crawl_id AND partition = :partition"
_DELETE_SOME_REST = tuple(
    text(
        f"DELETE FROM {table} WHERE {_OF_CRAWL} AND {key} IN"
        f" (SELECT {key} FROM {table} WHERE {_OF_CRAWL} ORDER BY {key} LIMIT :most)"
    )
    for table, key in (("dead_letters", "id"), ("producers", "producer"))
)
_DELETE_REST = tuple(text(f"DELETE FROM {table} WHERE {_OF_CRAWL}") for table in ("crawl_counters", "crawl_tallies"))
_BLOCK = text("UPDATE hosts SET blocked_until_ms = :until_ms WHERE host = :host AND partition = :partition")
_DELAY = text("UPDATE hosts SET operator_delay_ms = :delay_ms WHERE host = :host AND partition = :partition")


def run_chunk(
    connection: Connection, fence: Fence, position: Position, command: CommandRun, after: int, now_ms: int
) -> int | None:
    """One chunk; where the next begins, or None when the command is done and the position moved."""
    keys = {"crawl_id": command.crawl_id, "partition": fence.partition}
    pass_fence(connection, fence)
    kind = check_command(command.kind, command.args)
    repeated = connection.execute(_APPLIED, {"id": command.id, "partition": fence.partition}).first() is not None
    rest: int | None = None
    if not repeated:
        match kind:
            case CommandKind.RETRY_FAILED | CommandKind.RETRY_UNANSWERED | CommandKind.DELETE:
                first, mark = place_of(after)
                hosts = list(connection.execute(_HOSTS, keys | {"first": first, "most": _HOSTS_A_CHUNK}).scalars())
                if kind is CommandKind.DELETE:
                    rest = _delete(connection, keys, hosts)
                else:
                    rest = _retry(connection, kind, command, hosts, {first: mark}, now_ms)
                if rest is None and len(hosts) == _HOSTS_A_CHUNK:
                    rest = behind_host(hosts[-1])
                if rest is None and kind is CommandKind.DELETE and not _delete_rest(connection, keys):
                    rest = behind_host(hosts[-1]) if hosts else after
            case CommandKind.BLOCK_HOST:
                connection.execute(_BLOCK, keys | _only(command, "host", "until_ms"))
            case CommandKind.HOST_DELAY:
                connection.execute(_DELAY, keys | _only(command, "host", "delay_ms"))
            case CommandKind.DELETE_SEEDS | CommandKind.DELETE_SEEDS_BETWEEN:
                rest = delete_seeds(connection, command, after)
            case CommandKind.REPLAY:
                rest = letters.replay(connection, command, after, now_ms)
            case CommandKind.DISCARD:
                rest = letters.discard(connection, command, after)
    if rest is None:
        move_position(connection, fence.partition, position)
        connection.execute(_RECORD, keys | {"id": command.id, "kind": command.kind, "now_ms": now_ms})
    return rest


def _only(command: CommandRun, *names: str) -> dict[str, object]:
    """The arguments of these names; whatever else a message brought has no place in a statement."""
    return {name: command.args[name] for name in names}


def _retry(
    connection: Connection,
    kind: CommandKind,
    command: CommandRun,
    hosts: Sequence[int],
    marks: Mapping[int, bytes],
    now_ms: int,
) -> int | None:
    """As many as a chunk holds, host by host, behind its mark; where the next begins if that is within a host."""
    count, last, queue = _RETRY[kind, connection.dialect.name]
    left = _ROWS_A_CHUNK
    rest: int | None = None
    retried: list[int] = []
    reasons: dict[str, int] = defaultdict(int)
    for host_id in hosts:
        keys = {"crawl_id": command.crawl_id, "host_id": host_id, "after": marks.get(host_id, b""), "most": left}
        n = 0
        for row in connection.execute(count, keys):
            reasons[row.reason] += row.n
            n += row.n
        if not n:
            continue
        if n == left:
            rest = behind(host_id, connection.execute(last, keys | {"others": n - 1}).scalar_one())
        connection.execute(queue, keys | {"now_ms": now_ms})
        connection.execute(_RETRY_QUEUE, keys | {"n": n})
        retried.append(host_id)
        left -= n
        if not left:
            break
    if retried:
        total = _ROWS_A_CHUNK - left
        connection.execute(_FRESH_HOST, {"ids": retried})
        add_tallies(
            connection, command.partition, {(command.crawl_id, "failed", reason): -n for reason, n in reasons.items()}
        )
        add_counters(connection, command.crawl_id, command.partition, {"queued": total, "failed": -total})
    return rest


def _delete(connection: Connection, keys: dict[str, int], hosts: Sequence[int]) -> int | None:
    """As many rows as a chunk holds, host by host; where the next begins if a host may have more. A host's queue goes
    last."""
    left = _ROWS_A_CHUNK
    for host_id in hosts:
        host = {"crawl_id": keys["crawl_id"], "host_id": host_id}
        for statement in _DELETE_SOME[connection.dialect.name]:
            left -= connection.execute(statement, host | {"most": left}).rowcount
            if left == 0:
                return behind(host_id, b"")
        connection.execute(_DELETE_QUEUE, host)
    return None


def _delete_rest(connection: Connection, keys: dict[str, int]) -> bool:
    """What a crawl has beside its hosts, as much as a chunk holds; whether that was all."""
    left = _ROWS_A_CHUNK
    for statement in _DELETE_SOME_REST:
        left -= connection.execute(statement, keys | {"most": left}).rowcount
        if left == 0:
            return False
    for statement in (_DELETE_LEASES, *_DELETE_REST):
        connection.execute(statement, keys)
    return True
