"""The transactions of the command REDISCOVER, which finds links of stored pages that a wider scope admits.

Each chunk of the command has three steps:

1. `readable_pages` selects stored pages whose excluded links may now be in scope.
2. The owner reads these pages in the archive, and publishes the links that are now in scope.
3. `rediscovered` queues pages that must be fetched again, and counts pages and links.

The chunks go through the crawl's hosts in the partition, and on each host through all stored fetches.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, bindparam, select, text

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.bulk import updating
from shared.adapters.sql.engine.chunks import HOSTS, Chunk
from shared.adapters.sql.engine.url_compression import whole
from shared.adapters.sql.frontier.apply import add_counters, add_tallies
from shared.adapters.sql.frontier.rescope import host_names
from shared.adapters.sql.frontier.revisits import make_due
from shared.adapters.sql.frontier.seed_contexts import contexts_at
from shared.domain.archive.model import RecordLocation
from shared.domain.crawl.spec import CrawlSpec, decode_spec
from shared.domain.crawl.wider_scope import PAGES_A_CHUNK, ReadablePage, ReadablePages, Rediscovered, may_admit_more
from shared.domain.explain.excluded_links import (
    REDISCOVERED,
    decoded,
    earliest_judging_revision,
    is_unlisted,
    may_be_admitted,
)
from shared.domain.frontier import command_progress
from shared.domain.frontier.command_progress import behind, behind_host, place_of
from shared.domain.frontier.states import (
    IS_REQUISITE,
    RETRY,
    REVISIT,
    UrlState,
    queued_as,
    rank_of,
    requisite_rank,
)
from shared.domain.frontier.store_model import CommandRun
from shared.domain.ids import CrawlId, Fingerprint, HostId, Revision

_OF_HOST: Final = "crawl_id = :crawl_id AND host_id = :host_id"
_FETCHED: Final = text(
    'SELECT f.fingerprint, f.segment, f."offset", f.length, f.left_out, u.url, u.state, u.depth, u.hops, u.flags,'
    " u.via_host FROM fetches f JOIN urls u ON u.crawl_id = f.crawl_id AND u.host_id = f.host_id"
    " AND u.fingerprint = f.fingerprint WHERE f.crawl_id = :crawl_id AND f.host_id = :host_id"
    " AND f.fingerprint > :after ORDER BY f.fingerprint LIMIT :step"
)
_STATES: Final = text(
    "SELECT fingerprint, state, depth, priority, attempts, flags FROM urls"
    f" WHERE {_OF_HOST} AND fingerprint IN :fingerprints"
).bindparams(bindparam("fingerprints", expanding=True))
_AGAIN: Final = updating(
    schema.urls,
    ("crawl_id", "host_id", "fingerprint"),
    ("rank", "flags"),
    "state = 0, rank = {v}rank, flags = {v}flags, attempts = 0, reason = NULL",
)
_QUEUE: Final = text(
    "UPDATE queues SET queued = queued + :queued, next_due_ms = coalesce((SELECT"
    f" min(rank) FROM urls WHERE {_OF_HOST} AND state = 1), 0) WHERE {_OF_HOST}"
)
_BEGIN: Final = text(
    f"UPDATE crawl_tallies SET n = 0 WHERE crawl_id = :crawl_id AND partition = :partition AND kind = '{REDISCOVERED}'"
)


def readable_pages(connection: Connection, command: CommandRun) -> ReadablePages:
    """Return the stored pages whose links the owner must read for one chunk, at most PAGES_A_CHUNK.

    The result also says where the next chunk begins.
    """
    first, mark = place_of(command.after)
    which = {
        "crawl_id": command.crawl_id,
        "partition": command.partition,
        "first": first,
        "max_count": command_progress.HOSTS_A_CHUNK,
    }
    hosts = connection.execute(HOSTS[connection.dialect.name], which).all()
    rest = behind_host(hosts[-1].host_id) if len(hosts) == command_progress.HOSTS_A_CHUNK else None
    chunk = Chunk()
    found: list[tuple[Any, Any]] = []
    revision = int(str(command.args["revision"]))
    places = [(host, mark if host.host_id == first else b"") for host in reversed(hosts)]
    while places:
        host, after = places.pop()
        step = chunk.step
        keys = {"crawl_id": command.crawl_id, "host_id": host.host_id, "after": after, "step": step}
        rows = connection.execute(_FETCHED, keys).all()
        chunk.take(len(rows))
        for row in rows:
            if row.state == UrlState.EXCLUDED or not may_be_admitted(row.left_out):
                continue
            if earliest_judging_revision(row.left_out) >= revision:
                continue  # It was fetched under the wider scope, which a worker has applied to all of its links.
            found.append((host, row))
            if len(found) == PAGES_A_CHUNK:
                return ReadablePages(_pages(connection, command, found), behind(host.host_id, bytes(row.fingerprint)))
        if len(rows) == step:
            places.append((host, bytes(rows[-1].fingerprint)))
        if places and chunk.full:
            following, last = places[-1]
            rest = behind(following.host_id, last)
            break
    return ReadablePages(_pages(connection, command, found), rest)


def _pages(connection: Connection, command: CommandRun, found: Sequence[tuple[Any, Any]]) -> list[ReadablePage]:
    urls = [(HostId(host.host_id), Fingerprint(bytes(row.fingerprint))) for host, row in found]
    contexts = contexts_at(connection, command.crawl_id, urls)
    names = host_names(connection, {row.via_host for _, row in found if row.via_host is not None})
    return [
        ReadablePage(
            HostId(host.host_id),
            host.host,
            Fingerprint(bytes(row.fingerprint)),
            whole(row.url, host.host),
            row.depth,
            row.hops,
            row.flags,
            None if row.via_host is None else names.get(row.via_host, host.host),
            None if row.segment is None else RecordLocation(row.segment, row.offset, row.length),
            is_unlisted(decoded(row.left_out, every=True)),
            contexts.get((HostId(host.host_id), Fingerprint(bytes(row.fingerprint)))),
        )
        for host, row in found
    ]


def rediscovered(connection: Connection, command: CommandRun, done: Rediscovered, now_ms: int) -> int | None:
    """Write the result of one chunk of a REDISCOVER. Return where the next chunk begins, None at the end.

    Queue the pages in `done.again`. Count the pages that were read, the links that were published, and the pages that
    were queued.
    """
    crawl_id, partition = command.crawl_id, command.partition
    if not command.after:
        connection.execute(_BEGIN, {"crawl_id": crawl_id, "partition": partition})
    by_host: dict[HostId, list[Fingerprint]] = defaultdict(list)
    for host_id, fingerprint in done.again:
        by_host[host_id].append(fingerprint)
    deltas: dict[str, int] = defaultdict(int)
    again = sum(
        _queue_again(connection, crawl_id, host_id, keys, deltas, now_ms) for host_id, keys in sorted(by_host.items())
    )
    # This raises the version of the counters even if `deltas` is empty. The greater version keeps the leader from
    # finishing the crawl by counters that it read before this call.
    add_counters(connection, crawl_id, partition, deltas)
    counts = {"pages": done.pages, "links": done.links, "queued_again": again}
    add_tallies(connection, partition, {(crawl_id, REDISCOVERED, key): n for key, n in counts.items() if n})
    return done.rest


def _queue_again(
    connection: Connection,
    crawl_id: CrawlId,
    host_id: HostId,
    fingerprints: Sequence[Fingerprint],
    deltas: dict[str, int],
    now_ms: int,
) -> int:
    """Queue stored pages of a host, so that they are fetched once more now. Return how many were queued.

    The state of each page decides:

    - A done page is queued.
    - A page that waits for the due time of its next fetch is due at once (`make_due`).
    - A page in any other state is skipped. For example, it is in a worker's shard, or was queued by an earlier command.

    The worker will fetch the queued pages without a conditional request (ETag, Last-Modified), to get the whole page.
    The changes of counters are added to `deltas`.
    """
    keys = {"crawl_id": crawl_id, "host_id": host_id}
    values: list[tuple[Any, ...]] = []
    due: list[tuple[CrawlId, HostId, Fingerprint]] = []
    for row in connection.execute(_STATES, keys | {"fingerprints": list(fingerprints)}).all():
        if row.state == UrlState.WAITING and row.flags & REVISIT:
            if row.flags & RETRY and not row.attempts:
                continue  # It is due at once already.
            deltas[queued_as(row.flags) or "revisits"] -= 1
            deltas["retries"] += 1
            due.append((crawl_id, host_id, Fingerprint(bytes(row.fingerprint))))
            continue
        if row.state != UrlState.DONE:
            continue
        deltas["done"] -= 1
        deltas["queued"] += 1
        deltas["requisites"] += bool(row.flags & IS_REQUISITE)
        requisite = row.flags & IS_REQUISITE
        rank = requisite_rank(now_ms) if requisite else rank_of(now_ms, row.depth, row.priority)
        values.append((rank, row.flags & ~(RETRY | REVISIT), crawl_id, host_id, bytes(row.fingerprint)))
    _AGAIN.run(connection, sorted(values, key=lambda each: each[-1]))
    make_due(connection, due, now_ms)
    if values or due:
        connection.execute(_QUEUE, keys | {"queued": len(values)})
    return len(values) + len(due)


def widened_revision(connection: Connection, crawl_id: CrawlId) -> Revision | None:
    """Return the newest revision that may have widened the scope. Return None if there is none.

    A revision widens the scope if it may admit more links than the previous revision does. It also counts as wider if
    the previous revision cannot be read (Store.widened_revision).
    """
    table = schema.crawl_revisions
    current = select(schema.crawls.c.revision).where(schema.crawls.c.crawl_id == crawl_id).scalar_subquery()
    here = (table.c.crawl_id == crawl_id) & (table.c.revision <= current)
    newest = select(table.c.revision, table.c.spec).where(here).order_by(table.c.revision.desc())
    later: tuple[int, CrawlSpec] | None = None
    before = 2**31 - 1
    while (row := connection.execute(newest.where(table.c.revision < before).limit(1)).first()) is not None:
        try:
            spec = decode_spec(row.spec)
        except msgspec.MsgspecError:
            return None if later is None else Revision(later[0])
        if later is not None and may_admit_more(spec, later[1]):
            return Revision(later[0])
        later, before = (row.revision, spec), row.revision
    return None
