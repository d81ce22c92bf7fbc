"""Gives stored pages and sitemaps a due time, or takes it away, for a RECRAWL, in a transaction behind the fence.

The command follows a change of a crawl's spec. The crawl then fetches stored pages again, or stops fetching them again.
"""

from typing import Any, Final

from sqlalchemy import Connection, text

from shared.adapters.sql.engine.bulk import AMONG
from shared.adapters.sql.engine.chunks import BEHIND, HOSTS, UNMARKED, Chunk, step_end_query
from shared.adapters.sql.frontier.apply import add_counters
from shared.adapters.sql.frontier.url_flags import NOT_QUEUED_AGAIN, QUEUED_AS
from shared.domain.frontier import command_progress
from shared.domain.frontier.command_progress import behind, behind_host, place_of
from shared.domain.frontier.page_history import FETCHED_ONCE, GONE, QUIET
from shared.domain.frontier.states import COUNTED_AS_PAGE, KIND_BITS, REVISIT, UrlKind, kind_flags
from shared.domain.frontier.store_model import CommandRun

_OF_HOST: Final = "crawl_id = :crawl_id AND host_id = :host_id"
_SOME: Final = f"SELECT fingerprint FROM urls WHERE {_OF_HOST} AND {BEHIND} ORDER BY fingerprint LIMIT :step"
_FETCHED: Final = (
    "(SELECT f.at_ms FROM fetches f WHERE f.crawl_id = urls.crawl_id AND f.host_id = urls.host_id"
    " AND f.fingerprint = urls.fingerprint)"
)
_SITEMAPS: Final = ", ".join(str(kind_flags(kind)) for kind in UrlKind if kind.listing)
_DONE_PAGE: Final = (
    f"state = 3 AND (flags & {COUNTED_AS_PAGE} <> 0 OR flags & {KIND_BITS} IN ({_SITEMAPS}))"
    f" AND coalesce(reason, '') NOT IN ('{GONE}', '{FETCHED_ONCE}', '{QUIET}') AND {UNMARKED}"
)
_WAITING_PAGE: Final = f"state = 1 AND flags & {REVISIT} <> 0 AND {UNMARKED}"
_WAIT: Final = {
    dialect: text(
        f"UPDATE urls SET state = 1, attempts = 0, reason = NULL, flags = flags | {REVISIT},"
        f" rank = coalesce({_FETCHED}, 0) + :every_ms WHERE {_OF_HOST} AND {_DONE_PAGE} AND {among.format(_SOME)}"
    )
    for dialect, among in AMONG.items()
}
_COUNT: Final = {
    dialect: text(
        f"SELECT {QUEUED_AS} AS part, count(*) AS n FROM urls WHERE {_OF_HOST} AND {_WAITING_PAGE}"
        f" AND {among.format(_SOME)} GROUP BY 1"
    )
    for dialect, among in AMONG.items()
}
_END: Final = {
    dialect: text(
        f"UPDATE urls SET state = 3, attempts = 0, reason = NULL, rank = 0, flags = {NOT_QUEUED_AGAIN}"
        f" WHERE {_OF_HOST} AND {_WAITING_PAGE} AND {among.format(_SOME)}"
    )
    for dialect, among in AMONG.items()
}
_QUEUE: Final = text(
    "UPDATE queues SET waiting = waiting + :n, next_due_ms = coalesce((SELECT min(rank) FROM urls"
    f" WHERE {_OF_HOST} AND state = 1), 0) WHERE {_OF_HOST}"
)
_LAST: Final = step_end_query(_OF_HOST)


def schedule(connection: Connection, command: CommandRun) -> int | None:
    """Apply one chunk of a command RECRAWL. Return where the next chunk begins, None at the end."""
    first, mark = place_of(command.after)
    which = {
        "crawl_id": command.crawl_id,
        "partition": command.partition,
        "first": first,
        "max_count": command_progress.HOSTS_A_CHUNK,
    }
    hosts = [row.host_id for row in connection.execute(HOSTS[connection.dialect.name], which)]
    chunk = Chunk()
    counts: dict[str, int] = {}
    rest = behind_host(hosts[-1]) if len(hosts) == command_progress.HOSTS_A_CHUNK else None
    places = [(host_id, mark if host_id == first else b"") for host_id in reversed(hosts)]
    while places:
        host_id, after = places.pop()
        step = chunk.step
        keys: dict[str, Any] = {"crawl_id": command.crawl_id, "host_id": host_id, "after": after, "step": step}
        last = connection.execute(_LAST, keys | {"others": step - 1}).scalar()
        chunk.take(step)
        _step(connection, command, keys, counts)
        if last is not None:
            places.append((host_id, bytes(last)))
        if places and chunk.full:
            rest = behind(*places[-1])
            break
    if any(counts.values()):
        add_counters(connection, command.crawl_id, command.partition, counts)
    return rest


def _step(connection: Connection, command: CommandRun, keys: dict[str, Any], counts: dict[str, int]) -> None:
    """Change the due times of pages and sitemaps in one step: a range of URLs of one host. Add to `counts`.

    If `every_ms` of the command is above 0, done pages become due `every_ms` after their last fetch. If it is 0, pages
    that wait for their next fetch become done. `keys`: the crawl, the host, and the bounds of the range.
    `counts`: changes of the crawl's counters.
    """
    every_ms, dialect = int(str(command.args["every_ms"])), connection.dialect.name
    keys = keys | {"number": command.number}
    if every_ms:
        n = connection.execute(_WAIT[dialect], keys | {"every_ms": every_ms}).rowcount
        parts = {"revisits": n}
    else:
        parts = {row.part: -row.n for row in connection.execute(_COUNT[dialect], keys)}
        n = sum(parts.values())
        if n:
            connection.execute(_END[dialect], keys)
    if n:
        connection.execute(_QUEUE, keys | {"n": n})
        for name, delta in ({"queued": n, "done": -n} | parts).items():
            counts[name] = counts.get(name, 0) + delta
