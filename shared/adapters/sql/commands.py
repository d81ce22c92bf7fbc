"""The transaction that applies one bounded chunk of an operator's command.

A chunk covers a bounded number of hosts, and each host's rows by whole statements; it may be applied again (a crash
before the last chunk starts the command over), so every statement names the state it changes.
"""

from collections import defaultdict

from sqlalchemy import Connection, bindparam, text

from shared.adapters.sql.apply import add_counters, add_tallies
from shared.adapters.sql.fence import move_position, pass_fence
from shared.domain.command import CommandKind, check_command
from shared.domain.frontier import LEVEL_MS, Fence, Position
from shared.domain.ledger import CommandRun

_HOSTS_A_CHUNK = 200

_HOSTS = text(
    "SELECT host_id FROM queues WHERE crawl_id = :crawl_id AND partition = :partition AND host_id > :after"
    " ORDER BY host_id LIMIT :most"
)
_APPLIED = text("SELECT 1 FROM commands WHERE id = :id AND partition = :partition")
_RECORD = text(
    "INSERT INTO commands (id, partition, crawl_id, kind, applied_at_ms)"
    " VALUES (:id, :partition, :crawl_id, :kind, :now_ms) ON CONFLICT (id, partition) DO NOTHING"
)
_FAILED = "crawl_id = :crawl_id AND host_id = :host_id AND state = 4"
_UNANSWERED = f"{_FAILED} AND coalesce(reason, '') NOT LIKE 'http!_%' ESCAPE '!'"
_RETRIED = {CommandKind.RETRY_FAILED: _FAILED, CommandKind.RETRY_UNANSWERED: _UNANSWERED}
_REASONS = {
    kind: text(f"SELECT coalesce(reason, '') AS reason, count(*) AS n FROM urls WHERE {which} GROUP BY reason")
    for kind, which in _RETRIED.items()
}
_RETRY = {
    kind: text(
        "UPDATE urls SET state = 0, attempts = 0, reason = NULL,"
        f" rank = :now_ms + CAST(depth - priority AS BIGINT) * {LEVEL_MS} WHERE {which}"
    )
    for kind, which in _RETRIED.items()
}
_RETRY_QUEUE = text("UPDATE queues SET queued = queued + :n WHERE crawl_id = :crawl_id AND host_id = :host_id")
# A dead host gets its chances anew. Its block stays: it is what the host, or an operator, asked for.
_FRESH_HOST = text("UPDATE hosts SET failures = 0, unreachable = 0 WHERE host_id IN :ids").bindparams(
    bindparam("ids", expanding=True)
)
_DELETE_HOST = tuple(
    text(f"DELETE FROM {table} WHERE crawl_id = :crawl_id AND host_id = :host_id")
    for table in ("fetches", "urls", "queues")
)
# A lease that was ever granted stays until its grant has run out: a new owner must know that its host is being visited.
_DELETE_LEASES = text("DELETE FROM leases WHERE crawl_id = :crawl_id AND partition = :partition AND grants = 0")
_DELETE_REST = tuple(
    text(f"DELETE FROM {table} WHERE crawl_id = :crawl_id AND partition = :partition")
    for table in ("producers", "crawl_counters", "crawl_tallies", "dead_letters")
)
_BLOCK = text("UPDATE hosts SET blocked_until_ms = :until_ms WHERE host = :host AND partition = :partition")
_DELAY = text("UPDATE hosts SET operator_delay_ms = :delay_ms WHERE host = :host AND partition = :partition")


def run_chunk(
    connection: Connection, fence: Fence, position: Position, command: CommandRun, after_host: int, now_ms: int
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
                chunk = keys | {"after": after_host, "most": _HOSTS_A_CHUNK}
                hosts = [row.host_id for row in connection.execute(_HOSTS, chunk)]
                rest = hosts[-1] if len(hosts) == _HOSTS_A_CHUNK else None
                if kind is CommandKind.DELETE:
                    _delete(connection, keys, hosts, last=rest is None)
                else:
                    _retry(connection, kind, command, fence, hosts, now_ms)
            case CommandKind.BLOCK_HOST:
                connection.execute(_BLOCK, keys | _only(command, "host", "until_ms"))
            case CommandKind.HOST_DELAY:
                connection.execute(_DELAY, keys | _only(command, "host", "delay_ms"))
    if rest is None:
        move_position(connection, fence.partition, position)
        connection.execute(_RECORD, keys | {"id": command.id, "kind": command.kind, "now_ms": now_ms})
    return rest


def _only(command: CommandRun, *names: str) -> dict[str, object]:
    """The arguments of these names; whatever else a message brought has no place in a statement."""
    return {name: command.args[name] for name in names}


def _retry(
    connection: Connection, kind: CommandKind, command: CommandRun, fence: Fence, hosts: list[int], now_ms: int
) -> None:
    total = 0
    retried: list[int] = []
    reasons: dict[str, int] = defaultdict(int)
    for host_id in hosts:
        keys = {"crawl_id": command.crawl_id, "host_id": host_id}
        for row in connection.execute(_REASONS[kind], keys):
            reasons[row.reason] += row.n
        n = connection.execute(_RETRY[kind], keys | {"now_ms": now_ms}).rowcount
        if n:
            connection.execute(_RETRY_QUEUE, keys | {"n": n})
            total += n
            retried.append(host_id)
    if retried:
        connection.execute(_FRESH_HOST, {"ids": retried})
        add_tallies(
            connection, fence.partition, {(command.crawl_id, "failed", reason): -n for reason, n in reasons.items()}
        )
        add_counters(connection, command.crawl_id, fence.partition, {"queued": total, "failed": -total})


def _delete(connection: Connection, keys: dict[str, int], hosts: list[int], *, last: bool) -> None:
    for host_id in hosts:
        for statement in _DELETE_HOST:
            connection.execute(statement, {"crawl_id": keys["crawl_id"], "host_id": host_id})
    if last:
        for statement in (_DELETE_LEASES, *_DELETE_REST):
            connection.execute(statement, keys)
