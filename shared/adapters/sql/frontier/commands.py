"""The transactions that accept an operator's command and apply one bounded chunk of it.

An accepted command is stored in `commands_in_progress`. Each chunk is one transaction, which reads a bounded number of
rows for a bounded time. It also stores where the next chunk begins, so a crash repeats no chunk. The last chunk moves
the command to `commands`. A command on a single host has no chunks: the transaction that accepts it also applies it.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, assert_never

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, TextClause, bindparam, text

from shared.adapters.sql.engine.bulk import AMONG
from shared.adapters.sql.engine.chunks import BEHIND, HOSTS, UNMARKED, Chunk, step_end_query
from shared.adapters.sql.engine.fence import pass_fence
from shared.adapters.sql.engine.host_limits import apply_policy
from shared.adapters.sql.frontier import dead_letters as letters
from shared.adapters.sql.frontier.apply import add_counters, add_tallies
from shared.adapters.sql.frontier.crawl_rows import chunked
from shared.adapters.sql.frontier.exclude import exclude
from shared.adapters.sql.frontier.recrawl_schedule import schedule, used_recrawl
from shared.adapters.sql.frontier.rediscover import rediscovered
from shared.adapters.sql.frontier.rescope import rescope
from shared.adapters.sql.frontier.seed_deletion import delete_seeds
from shared.adapters.sql.frontier.url_flags import NOT_QUEUED_AGAIN, RANK_NOW
from shared.domain.crawl.exclusions import NO_EXCLUSIONS, Exclusions
from shared.domain.crawl.scope_change import ChangedScope
from shared.domain.crawl.wider_scope import Rediscovered
from shared.domain.frontier import command_progress
from shared.domain.frontier.command_progress import behind, behind_host, place_of
from shared.domain.frontier.commands import GREATEST, CommandKind, check_command
from shared.domain.frontier.states import DUE_AT_ONCE, IS_REQUISITE, REVISIT, Fence, Position
from shared.domain.frontier.store_model import CommandRun
from shared.domain.ids import CrawlId, Partition

_ID = "id = :id AND partition = :partition"
_KNOWN = text(f"SELECT 1 FROM commands WHERE {_ID} UNION ALL SELECT 1 FROM commands_in_progress WHERE {_ID}")
_RECORD = text(
    "INSERT INTO commands (id, partition, crawl_id, kind, applied_at_ms)"
    " VALUES (:id, :partition, :crawl_id, :kind, :now_ms) ON CONFLICT (id, partition) DO NOTHING"
)
_BEGIN = text(
    "INSERT INTO commands_in_progress"
    " (id, partition, number, crawl_id, kind, args, sequence, through, after, accepted_at_ms)"
    " VALUES (:id, :partition, :number, :crawl_id, :kind, :args, :sequence, :through, '0', :now_ms)"
)
_GO_ON = text(f"UPDATE commands_in_progress SET after = :after WHERE {_ID}")
_END = text(f"DELETE FROM commands_in_progress WHERE {_ID}")
_OF_CRAWL = "crawl_id = :crawl_id AND partition = :partition"
_OTHERS = text(f"SELECT id, kind, args FROM commands_in_progress WHERE {_OF_CRAWL}")
_IN_PROGRESS = text(
    "SELECT id, crawl_id, kind, args, number, sequence, through, after FROM commands_in_progress"
    " WHERE partition = :partition ORDER BY number"
)
_CRAWLS_WITH: Final = text(
    "SELECT crawl_id FROM commands_in_progress WHERE crawl_id IN :crawl_ids UNION SELECT crawl_id FROM schedule_effects"
    " WHERE command IS NOT NULL AND NOT commanded AND crawl_id IN :crawl_ids"
).bindparams(bindparam("crawl_ids", expanding=True))

_BY_KIND: Final = text(
    "SELECT kind, count(DISTINCT partition) AS n FROM commands_in_progress WHERE crawl_id = :crawl_id GROUP BY kind"
)

_OF_HOST = "crawl_id = :crawl_id AND host_id = :host_id"
_FAILED = f"state = 4 AND {UNMARKED}"
_UNANSWERED = f"{_FAILED} AND coalesce(reason, '') NOT LIKE 'http!_%' ESCAPE '!'"
_RETRIED = {CommandKind.RETRY_FAILED: _FAILED, CommandKind.RETRY_UNANSWERED: _UNANSWERED}
_SOME = f"SELECT fingerprint FROM {{}} WHERE {_OF_HOST} AND {BEHIND} ORDER BY fingerprint LIMIT :step"


def _retry_statements(which: str, dialect: str, stored: str) -> tuple[TextClause, TextClause]:
    """Return two SQL statements: the first counts failed URLs, the second queues the same URLs again.

    Both statements read the next `:step` URLs of one host.

    - The first statement returns one row for each reason of failure, with the number of failed URLs (`n`). One more
      row, with the reason NULL, counts the URLs that are not queued again. The sum of `n` is the number of URLs read.
    - The second statement gives a failed URL the state QUEUED. If the URL is a stored page or sitemap, the state is
      WAITING instead, with a due time of now.

    `which`: the SQL condition for the failed URLs to queue again. `stored`: that for stored pages and sitemaps.
    """
    return text(
        f"SELECT CASE WHEN {which} THEN coalesce(reason, '') END AS reason, count(*) AS n, count(*) FILTER"
        f" (WHERE flags & {IS_REQUISITE} <> 0 AND {which}) AS requisites, count(*) FILTER"
        f" (WHERE {stored} AND {which}) AS revisits FROM (SELECT state, reason, flags,"
        f" after_command FROM urls WHERE {_OF_HOST} AND {BEHIND} ORDER BY fingerprint LIMIT :step) w GROUP BY 1"
    ), text(
        "UPDATE urls SET attempts = 0, reason = NULL,"
        f" state = CASE WHEN {stored} THEN 1 ELSE 0 END,"
        f" flags = CASE WHEN {stored} THEN flags | {DUE_AT_ONCE} ELSE {NOT_QUEUED_AGAIN} END,"
        f" rank = CASE WHEN {stored} THEN :now_ms ELSE {RANK_NOW} END"
        f" WHERE {_OF_HOST} AND {which} AND {AMONG[dialect].format(_SOME.format('urls'))}"
    )


# The last part of a key: whether the crawl fetches stored pages again. If not, they are queued as the other URLs are.
_RETRY = {
    (kind, dialect, recrawled): _retry_statements(which, dialect, stored)
    for kind, which in _RETRIED.items()
    for dialect in AMONG
    for recrawled, stored in ((True, f"flags & {REVISIT} <> 0"), (False, "1 = 0"))
}
# It runs before the second of `_retry_statements`, on the stored pages and sitemaps that this one makes due.
_UNCONDITIONAL = {
    (kind, dialect): text(
        f"UPDATE fetches SET etag = '', last_modified = '' WHERE {_OF_HOST} AND "
        + among.format(
            "SELECT fingerprint FROM (SELECT fingerprint, state, flags, reason, after_command FROM urls"
            f" WHERE {_OF_HOST} AND {BEHIND} ORDER BY fingerprint LIMIT :step) w"
            f" WHERE flags & {REVISIT} <> 0 AND {which}"
        )
    )
    for kind, which in _RETRIED.items()
    for dialect, among in AMONG.items()
}
_LAST = step_end_query(_OF_HOST)
_RETRY_QUEUE = text(
    "UPDATE queues SET queued = queued + :queued, waiting = waiting + :revisits, next_due_ms = coalesce((SELECT"
    f" min(rank) FROM urls WHERE {_OF_HOST} AND state = 1), 0) WHERE {_OF_HOST}"
)
# A dead host gets fresh attempts. Its block stays, because the host or an operator requested it.
_FRESH_HOST = text(
    "UPDATE hosts SET failures = 0, unreachable = 0, silent_since_ms = 0 WHERE host_id IN :ids"
).bindparams(bindparam("ids", expanding=True))
_DELETE_URLS = {
    dialect: text(f"DELETE FROM urls WHERE {_OF_HOST} AND {among.format(_SOME.format('urls'))} RETURNING fingerprint")
    for dialect, among in AMONG.items()
}
_DELETE_FETCHES = tuple(
    text(f"DELETE FROM {table} WHERE {_OF_HOST} AND {BEHIND} AND fingerprint <= :upto")
    for table in ("page_versions", "url_contexts", "fetches", "seed_links")
)
_DELETE_QUEUE = text(f"DELETE FROM queues WHERE {_OF_HOST}")
# A lease that was granted stays until its grant has expired: a new owner must see that its host is being visited.
_SOME_OF_REST = (
    ("dead_letters", "id", f"{_OF_CRAWL} ORDER BY id"),
    ("producers", "producer", f"{_OF_CRAWL} ORDER BY producer"),
    ("leases", "lease_id", f"{_OF_CRAWL} AND grants = 0"),
    ("page_changes", "number", _OF_CRAWL),
    ("seed_contexts", "context_id", _OF_CRAWL),
)
# As for `AMONG`: with an array only the primary key can find the rows on PostgreSQL.
_DELETE_SOME_REST = {
    dialect: tuple(
        text(
            f"DELETE FROM {table} WHERE {_OF_CRAWL} AND {key} {begin}"
            f"SELECT {key} FROM {table} WHERE {which} LIMIT :step{end}"
        )
        for table, key, which in _SOME_OF_REST
    )
    for dialect, begin, end in (("sqlite", "IN (", ")"), ("postgresql", "= ANY(ARRAY(", "))"))
}
# These have one row, one per reason of an outcome, and a bounded number per reason of excluded links.
_REST = ("crawl_counters", "crawl_tallies", "links_left_out")
_DELETE_REST = tuple(text(f"DELETE FROM {table} WHERE {_OF_CRAWL}") for table in _REST)
_UNBLOCK = text("UPDATE hosts SET blocked_until_ms = 0 WHERE host = :host AND partition = :partition")


def accept(
    connection: Connection, fence: Fence, position: Position, command: CommandRun, now_ms: int
) -> CommandRun | None:
    """Accept a command, so that `run_chunk` can apply it (Store.accept_command).

    Also store `position`, up to where the owner has applied the reports. Return the command with its number. Return
    None in these cases, in which `run_chunk` must not be called:

    - The command was accepted before, or a newer command replaces it.
    - The command concerns one host, so this call has applied it completely.
    - Its crawl is being deleted.
    """
    kind = check_command(command.kind, command.args)
    pass_fence(connection, fence, position)
    keys: dict[str, Any] = {"id": command.id, "partition": fence.partition, "crawl_id": command.crawl_id}
    if connection.execute(_KNOWN, keys).first() is not None:
        return None
    record = keys | {"kind": command.kind, "now_ms": now_ms}
    others = connection.execute(_OTHERS, keys).all()
    match kind:
        case CommandKind.HOST_POLICY:
            apply_policy(connection, fence.partition, command.args["host"])
            connection.execute(_RECORD, record)
            return None
        case CommandKind.UNBLOCK_HOST:
            connection.execute(_UNBLOCK, {"host": command.args["host"], "partition": fence.partition})
            connection.execute(_RECORD, record)
            return None
        case CommandKind.DELETE:
            for other in others:
                connection.execute(_END, keys | {"id": other.id})
                connection.execute(_RECORD, record | {"id": other.id, "kind": other.kind})
        case _ if any(other.kind == CommandKind.DELETE for other in others):
            connection.execute(_RECORD, record)
            return None
        case CommandKind.RESCOPE | CommandKind.REDISCOVER:
            # Each chunk applies the present scope, so the command of the newest revision does all that the others have
            # left. Messages of two leaders may come in another order.
            of_kind = [other for other in others if other.kind == kind]
            if any(_revision(msgspec.msgpack.decode(bytes(other.args))) > _revision(command.args) for other in of_kind):
                connection.execute(_RECORD, record)
                return None
            for other in of_kind:
                connection.execute(_END, keys | {"id": other.id})
                connection.execute(_RECORD, record | {"id": other.id})
    # Each transaction has its own version of the fence, greater than all earlier ones.
    through = letters.newest_letter(connection) if kind in (CommandKind.REPLAY, CommandKind.DISCARD) else 0
    run = replace(command, number=fence.version, through=through, after=0)
    args = msgspec.msgpack.encode(command.args)
    numbers = {"number": run.number, "sequence": run.sequence, "through": through, "args": args}
    connection.execute(_BEGIN, record | numbers)
    return run


def in_progress(connection: Connection, partition: Partition) -> tuple[CommandRun, ...]:
    """Return a partition's commands in progress (accepted, but not applied completely), in the order of acceptance."""
    rows = connection.execute(_IN_PROGRESS, {"partition": partition})
    return tuple(
        CommandRun(
            row.id,
            CrawlId(row.crawl_id),
            row.kind,
            msgspec.msgpack.decode(bytes(row.args)),
            partition,
            row.number,
            row.sequence,
            row.through,
            int(row.after),
        )
        for row in rows
    )


def crawls_with_commands(connection: Connection, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
    """Return which of the crawls have a command in progress or to be published (Store.crawls_with_commands)."""
    return {
        CrawlId(n)
        for some in chunked(crawl_ids)
        for n in connection.execute(_CRAWLS_WITH, {"crawl_ids": some}).scalars()
    }


def by_kind(connection: Connection, crawl_id: CrawlId) -> Mapping[str, int]:
    """Return, for each kind of command in progress of the crawl, how many partitions still apply it."""
    return {row.kind: row.n for row in connection.execute(_BY_KIND, {"crawl_id": crawl_id})}


def run_chunk(
    connection: Connection,
    fence: Fence,
    command: CommandRun,
    now_ms: int,
    *,
    sent: Sequence[int] = (),
    upto: int | None = None,
    exclusions: Exclusions = NO_EXCLUSIONS,
    changed: ChangedScope | None = None,
    found: Rediscovered | None = None,
) -> int | None:
    """Apply the chunk of a command in progress that begins after `command.after`.

    Return the place after which the next chunk begins, and store this place in the row of the command. Return None if
    this was the last chunk. The place is a number. Its meaning depends on the command: for REPLAY the number is that of
    a dead letter, for RETRY_FAILED it stands for a host and a URL. `Store.run_command` calls this function.

    Some commands need further arguments:

    - REPLAY: `sent` has the numbers of the dead letters whose messages the owner has published again. `upto`: the
      number of the last dead letter of this chunk.
    - EXCLUDE: `exclusions` has all exclusions that are in force.
    - RESCOPE: `changed` is the present scope.
    - REDISCOVER: `found` is what the owner found in the archive.
    """
    kind = check_command(command.kind, command.args)
    pass_fence(connection, fence)
    match kind:
        case CommandKind.RETRY_FAILED | CommandKind.RETRY_UNANSWERED:
            rest = _retry(connection, kind, command, now_ms)
        case CommandKind.DELETE:
            rest = _delete(connection, command)
        case CommandKind.DELETE_SEEDS | CommandKind.DELETE_SEEDS_BETWEEN | CommandKind.SEED_SET:
            rest = delete_seeds(connection, command)
        case CommandKind.RECRAWL:
            rest = schedule(connection, command)
        case CommandKind.EXCLUDE:
            rest = exclude(connection, command, exclusions)
        case CommandKind.RESCOPE:
            rest = None if changed is None else rescope(connection, command, changed, now_ms)
        case CommandKind.REDISCOVER:
            rest = None if found is None else rediscovered(connection, command, found, now_ms)
        case CommandKind.REPLAY:
            rest = letters.replay(connection, command, sent, command.through if upto is None else upto, now_ms)
        case CommandKind.DISCARD:
            rest = letters.discard(connection, command)
        case CommandKind.HOST_POLICY | CommandKind.UNBLOCK_HOST:
            raise ValueError(f"command {kind} is applied when it is accepted")
        case _:
            assert_never(kind)
    keys: dict[str, Any] = {"id": command.id, "partition": fence.partition}
    if rest is not None:
        connection.execute(_GO_ON, keys | {"after": str(rest)})
        return rest
    connection.execute(_END, keys)
    connection.execute(_RECORD, keys | {"crawl_id": command.crawl_id, "kind": command.kind, "now_ms": now_ms})
    return None


def _revision(args: Mapping[str, object]) -> int:
    return int(str(args["revision"]))


def _hosts(connection: Connection, command: CommandRun, first: int) -> Sequence[int]:
    keys = {
        "crawl_id": command.crawl_id,
        "partition": command.partition,
        "first": first,
        "max_count": command_progress.HOSTS_A_CHUNK,
    }
    return [row.host_id for row in connection.execute(HOSTS[connection.dialect.name], keys)]


def _retry(connection: Connection, kind: CommandKind, command: CommandRun, now_ms: int) -> int | None:
    """Queue one chunk of the failed URLs that `kind` selects. Return where the next chunk begins, None at the end.

    In a crawl that fetches stored pages again, a failed URL may be a stored page or sitemap whose later fetch failed.
    Such a URL becomes due at once. Its next request has no validators (ETag, Last-Modified), so that the body comes.
    """
    # A page may have been found at a smaller depth since it failed. Then its links must be read, which needs the body.
    recrawled = used_recrawl(connection, command.crawl_id) is not None
    count, queue = _RETRY[kind, connection.dialect.name, recrawled]
    first, mark = place_of(command.after)
    hosts = _hosts(connection, command, first)
    rest = behind_host(hosts[-1]) if len(hosts) == command_progress.HOSTS_A_CHUNK else None
    chunk = Chunk()
    retried: set[int] = set()
    reasons: dict[str, int] = defaultdict(int)
    requisites = revisits = 0
    # Each iteration is one step of a host. The next host begins at its first URL.
    places = [(host_id, mark if host_id == first else b"") for host_id in reversed(hosts)]
    while places:
        host_id, after = places.pop()
        step = chunk.step
        keys: dict[str, Any] = {"crawl_id": command.crawl_id, "host_id": host_id, "after": after, "step": step}
        keys |= {"number": command.number, "now_ms": now_ms, "others": step - 1}
        rows = connection.execute(count, keys).all()
        counts = {row.reason: row.n for row in rows}
        requisites += sum(row.requisites for row in rows)
        stored = sum(row.revisits for row in rows)
        revisits += stored
        read = sum(counts.values())
        chunk.take(read)
        n = read - counts.pop(None, 0)
        last = connection.execute(_LAST, keys).scalar() if read == step else None
        if stored:
            connection.execute(_UNCONDITIONAL[kind, connection.dialect.name], keys)
        if n:
            connection.execute(queue, keys)
            connection.execute(_RETRY_QUEUE, keys | {"queued": n - stored, "revisits": stored})
            retried.add(host_id)
            for reason, failed in counts.items():
                reasons[reason] += failed
        if last is not None:
            places.append((host_id, bytes(last)))
        if places and chunk.full:
            rest = behind(*places[-1])
            break
    if retried:
        total = sum(reasons.values())
        connection.execute(_FRESH_HOST, {"ids": sorted(retried)})
        add_tallies(
            connection, command.partition, {(command.crawl_id, "failed", reason): -n for reason, n in reasons.items()}
        )
        deltas = {"queued": total, "failed": -total, "requisites": requisites, "retries": revisits}
        add_counters(connection, command.crawl_id, command.partition, deltas)
    return rest


def _delete(connection: Connection, command: CommandRun) -> int | None:
    """Delete one chunk of the crawl's rows in the partition. Return where the next chunk begins, or None at the end.

    - First, the hosts are deleted one after the other: the rows of a host's URLs, then the queue of the same host.
    - After the last host, the crawl's rows that belong to no host are deleted.
    """
    first, mark = place_of(command.after)
    hosts = _hosts(connection, command, first)
    chunk = Chunk()
    places = [(host_id, mark if host_id == first else b"") for host_id in reversed(hosts)]
    while places:
        host_id, after = places.pop()
        step = chunk.step
        keys: dict[str, Any] = {"crawl_id": command.crawl_id, "host_id": host_id, "after": after, "step": step}
        gone = connection.execute(_DELETE_URLS[connection.dialect.name], keys).scalars().all()
        whole = len(gone) < step
        upto = GREATEST if whole else max(map(bytes, gone))
        deleted = [connection.execute(statement, keys | {"upto": upto}).rowcount for statement in _DELETE_FETCHES]
        chunk.take(len(gone) + sum(deleted))
        if whole:
            connection.execute(_DELETE_QUEUE, keys)
        else:
            places.append((host_id, upto))
        if chunk.full:
            return behind(*places[-1]) if places else behind_host(host_id)
    if len(hosts) == command_progress.HOSTS_A_CHUNK:
        return behind_host(hosts[-1])
    rest = behind_host(hosts[-1]) if hosts else command.after
    return None if _delete_rest(connection, command, chunk) else rest


def _delete_rest(connection: Connection, command: CommandRun, chunk: Chunk) -> bool:
    """Delete the crawl's rows that belong to no host, as many as the chunk allows. Return True if none is left."""
    keys = {"crawl_id": command.crawl_id, "partition": command.partition}
    for statement in _DELETE_SOME_REST[connection.dialect.name]:
        while True:
            if chunk.full:
                return False
            step = chunk.step
            n = connection.execute(statement, keys | {"step": step}).rowcount
            chunk.take(n)
            if n < step:
                break
    for statement in _DELETE_REST:
        connection.execute(statement, keys)
    return True
