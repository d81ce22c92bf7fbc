"""Gives stored pages and sitemaps a due time, or takes it away, for a RECRAWL, in a transaction behind the fence.

The command follows a change of a crawl's spec. The crawl then fetches stored pages again, or stops fetching them again.
"""

from operator import itemgetter
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, text

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.bulk import AMONG, updating
from shared.adapters.sql.engine.chunks import BEHIND, HOSTS, UNMARKED, Chunk, step_end_query
from shared.adapters.sql.engine.url_compression import whole
from shared.adapters.sql.frontier.apply import add_counters
from shared.adapters.sql.frontier.url_flags import NOT_QUEUED_AGAIN, QUEUED_AS
from shared.domain.crawl.recrawl_rules import CompiledRecrawl, compiled
from shared.domain.crawl.recrawl_spec import Recrawl, RecrawlPolicy
from shared.domain.crawl.spec import decode_spec
from shared.domain.frontier import command_progress
from shared.domain.frontier.command_progress import behind, behind_host, place_of
from shared.domain.frontier.page_history import FETCHED_ONCE, GONE, QUIET, decoded
from shared.domain.frontier.states import COUNTED_AS_PAGE, KIND_BITS, REVISIT, UrlKind, UrlState, kind_flags
from shared.domain.frontier.store_model import CommandRun
from shared.domain.ids import CrawlId

_OF_HOST: Final = "crawl_id = :crawl_id AND host_id = :host_id"
_SOME: Final = f"SELECT fingerprint FROM urls WHERE {_OF_HOST} AND {BEHIND} ORDER BY fingerprint LIMIT :step"
_SITEMAPS: Final = ", ".join(str(kind_flags(kind)) for kind in UrlKind if kind.listing)
_DONE_PAGE: Final = (
    f"state = 3 AND (flags & {COUNTED_AS_PAGE} <> 0 OR flags & {KIND_BITS} IN ({_SITEMAPS}))"
    f" AND coalesce(reason, '') NOT IN ('{GONE}', '{QUIET}') AND {UNMARKED}"
)
_WAITING_PAGE: Final = f"state = 1 AND flags & {REVISIT} <> 0 AND {UNMARKED}"
_DONE: Final = {
    dialect: text(
        "SELECT u.fingerprint, u.url, u.reason, f.at_ms, f.recrawl"
        " FROM (SELECT crawl_id, host_id, fingerprint, url, reason FROM urls"
        f" WHERE {_OF_HOST} AND {_DONE_PAGE} AND {among.format(_SOME)}) u LEFT JOIN fetches f"
        " ON f.crawl_id = u.crawl_id AND f.host_id = u.host_id AND f.fingerprint = u.fingerprint"
    )
    for dialect, among in AMONG.items()
}
_KEYS: Final = ("crawl_id", "host_id", "fingerprint")
_WAIT: Final = updating(
    schema.urls,
    _KEYS,
    ("rank",),
    f"state = {int(UrlState.WAITING)}, attempts = 0, reason = NULL, flags = {{t}}.flags | {REVISIT}, rank = {{v}}rank",
)
_ONCE: Final = updating(schema.urls, _KEYS, ("reason",), "reason = {v}reason")
_SPEC: Final = text(
    "SELECT spec FROM crawl_revisions WHERE crawl_id = :crawl_id"
    " AND revision = (SELECT revision FROM crawls WHERE crawl_id = :crawl_id)"
)
_COUNT: Final = {
    dialect: text(
        f"SELECT {QUEUED_AS} AS part, count(*) AS n FROM urls WHERE {_OF_HOST} AND {_WAITING_PAGE}"
        f" AND {among.format(_SOME)} GROUP BY 1"
    )
    for dialect, among in AMONG.items()
}
_DONE_NOW: Final = {
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
    hosts = connection.execute(HOSTS[connection.dialect.name], which).all()
    chunk = Chunk()
    counts: dict[str, int] = {}
    rules = _rules(connection, command)
    rest = behind_host(hosts[-1].host_id) if len(hosts) == command_progress.HOSTS_A_CHUNK else None
    places = [(host, mark if host.host_id == first else b"") for host in reversed(hosts)]
    while places:
        host, after = places.pop()
        step = chunk.step
        keys: dict[str, Any] = {"crawl_id": command.crawl_id, "host_id": host.host_id, "after": after, "step": step}
        last = connection.execute(_LAST, keys | {"others": step - 1}).scalar()
        chunk.take(step)
        keys |= {"number": command.number}
        n, parts = _end(connection, keys) if rules is None else _begin(connection, keys, host.host, rules)
        if n:
            connection.execute(_QUEUE, keys | {"n": n})
            for name, delta in ({"queued": n, "done": -n} | parts).items():
                counts[name] = counts.get(name, 0) + delta
        if last is not None:
            places.append((host, bytes(last)))
        if places and chunk.full:
            following, after = places[-1]
            rest = behind(following.host_id, after)
            break
    if any(counts.values()):
        add_counters(connection, command.crawl_id, command.partition, counts)
    return rest


def _rules(connection: Connection, command: CommandRun) -> CompiledRecrawl | None:
    """Return the rules by which done pages get due times. Return None if no page is to be fetched again.

    - The command's argument `every_ms` is 0: return None. Pages that wait for their next fetch then become done.
    - Otherwise: return the rules of the crawl's present spec. If the present spec fetches each page once, or this
      version of orb cannot read the spec, return one rule for all pages: the next fetch is due after `every_ms`.
    """
    every_ms = int(str(command.args["every_ms"]))
    if not every_ms:
        return None
    recrawl = used_recrawl(connection, command.crawl_id)
    return compiled(recrawl or Recrawl(policy=RecrawlPolicy.FIXED, min_s=every_ms / 1000))


def used_recrawl(connection: Connection, crawl_id: CrawlId) -> Recrawl | None:
    """Return the section `recrawl` of the crawl's present spec.

    Return None if the crawl fetches each page once, or if this version cannot read the spec.
    """
    stored = connection.execute(_SPEC, {"crawl_id": crawl_id}).scalar()
    try:
        recrawl = None if stored is None else decode_spec(stored).recrawl
    except msgspec.MsgspecError:
        return None
    return recrawl if recrawl is not None and recrawl.used else None


def _begin(
    connection: Connection, keys: dict[str, Any], host: str, rules: CompiledRecrawl
) -> tuple[int, dict[str, int]]:
    """Make done pages and sitemaps of `host` wait for their next fetch. `keys` selects a range of the host's URLs.

    A page becomes due when the least interval of its rule has passed since the page was last compared with its stored
    version. Without a comparison, the interval begins at the fetch that stored the page. A page whose rule has the
    policy `never` stays done. A page that was fetched once by an earlier spec is judged by the present rules, too.

    Return the number of URLs that wait now, and what to add to counters of the crawl other than `queued` and `done`.
    """
    place = (keys["crawl_id"], keys["host_id"])
    due: list[tuple[Any, ...]] = []
    once: list[tuple[Any, ...]] = []
    for row in connection.execute(_DONE[connection.dialect.name], keys):
        interval, key = rules.of(whole(row.url, host)), (*place, bytes(row.fingerprint))
        if interval.policy is RecrawlPolicy.NEVER:
            if row.reason != FETCHED_ONCE:
                once.append((FETCHED_ONCE, *key))
            continue
        history = decoded(None if row.recrawl is None else bytes(row.recrawl), row.at_ms or 0)
        due.append((history.checked_ms + interval.min_ms, *key))
    _WAIT.run(connection, sorted(due, key=itemgetter(-1)))
    _ONCE.run(connection, sorted(once, key=itemgetter(-1)))
    return len(due), {"revisits": len(due)}


def _end(connection: Connection, keys: dict[str, Any]) -> tuple[int, dict[str, int]]:
    """Make the pages and sitemaps done that wait for their next fetch, in one step: a range of URLs of a host.

    Return how many more wait, which is a negative number, and what to add to the crawl's other counters.
    """
    dialect = connection.dialect.name
    parts = {row.part: -row.n for row in connection.execute(_COUNT[dialect], keys)}
    n = sum(parts.values())
    if n:
        connection.execute(_DONE_NOW[dialect], keys)
    return n, parts
