"""Applies a changed scope to the URLs that a crawl has found, for a command, in a transaction behind the fence.

The command goes through the crawl's hosts in the partition, and through all URLs of each. It excludes queued and
waiting URLs that the scope does not admit. It queues URLs again that only an earlier scope excluded. It also queues
URLs that the page limit of their host excluded, if the host may give more pages now. The owner begins the command only
when no leased URL is outside the scope.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, bindparam, select, text

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.bulk import updating
from shared.adapters.sql.engine.chunks import BEHIND, HOSTS, Chunk
from shared.adapters.sql.engine.url_compression import whole
from shared.adapters.sql.frontier.apply import add_counters, add_tallies
from shared.adapters.sql.frontier.exclude import IN_QUEUE, end_queued
from shared.domain.crawl.scope_change import BY_SCOPE, ChangedScope, found_beyond, same_admission
from shared.domain.crawl.spec import CrawlSpec, decode_spec
from shared.domain.errors import Unusable
from shared.domain.frontier import command_progress
from shared.domain.frontier.command_progress import behind, behind_host, place_of
from shared.domain.frontier.states import (
    COUNTED_AS_PAGE,
    HOST_BUDGET,
    IS_REQUISITE,
    RETRY,
    REVISIT,
    UrlState,
    extra_hops_of,
    rank_of,
    requisite_rank,
    with_extra_hops,
)
from shared.domain.frontier.store_model import CommandRun
from shared.domain.ids import CrawlId, Fingerprint, HostId, Revision

_OF_HOST: Final = "crawl_id = :crawl_id AND host_id = :host_id"
_URLS: Final = text(
    "SELECT fingerprint, url, state, depth, hops, priority, flags, reason, via_host FROM urls"
    f" WHERE {_OF_HOST} AND {BEHIND} ORDER BY fingerprint LIMIT :step"
)
_KEYS: Final = ("crawl_id", "host_id", "fingerprint")
_BACK: Final = updating(
    schema.urls,
    _KEYS,
    ("state", "rank", "flags"),
    "state = {v}state, rank = {v}rank, flags = {v}flags, attempts = 0, reason = NULL",
)
_FLAGS: Final = updating(schema.urls, _KEYS, ("flags",), "flags = {v}flags")
_ADD_TO_QUEUE: Final = text(
    "UPDATE queues SET queued = queued + :queued, waiting = waiting + :waiting, next_due_ms = coalesce((SELECT"
    f" min(rank) FROM urls WHERE {_OF_HOST} AND state = 1), 0) WHERE {_OF_HOST}"
)
_PAGES: Final = text(f"SELECT pages FROM queues WHERE {_OF_HOST}")
_NAMES: Final = text("SELECT host_id, host FROM hosts WHERE host_id IN :ids").bindparams(
    bindparam("ids", expanding=True)
)
_VIA: Final = text(
    f"SELECT fingerprint, via_host FROM urls WHERE {_OF_HOST} AND fingerprint IN :fingerprints"
).bindparams(bindparam("fingerprints", expanding=True))
_IDS_A_QUERY: Final = 500
_OPEN_STATES: Final = frozenset(IN_QUEUE)


def rescope(connection: Connection, command: CommandRun, changed: ChangedScope, now_ms: int) -> int | None:
    """Apply one chunk of a RESCOPE. Return where the next chunk begins, None at the end."""
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
    names: dict[int, str] = {}
    places = [(host, mark if host.host_id == first else b"") for host in reversed(hosts)]
    while places:
        host, after = places.pop()
        last = _step(connection, command, host, after, chunk, changed, names, now_ms)
        if last is not None:
            places.append((host, last))
        if places and chunk.full:
            following, after = places[-1]
            return behind(following.host_id, after)
    return rest


def _step(
    connection: Connection,
    command: CommandRun,
    host: Any,
    after: bytes,
    chunk: Chunk,
    changed: ChangedScope,
    names: dict[int, str],
    now_ms: int,
) -> bytes | None:
    """Apply the changed scope to the next URLs of a host. Return the last fingerprint that was read, None at the end.

    `names`: a cache of host names by id, which the call fills.
    """
    step, crawl_id = chunk.step, command.crawl_id
    keys = {"crawl_id": crawl_id, "host_id": host.host_id, "after": after, "step": step}
    rows = connection.execute(_URLS, keys).all()
    chunk.take(len(rows))
    judged = [row for row in rows if row.state in _OPEN_STATES or _by_scope(row)]
    spent = [row for row in rows if row.state == UrlState.EXCLUDED and row.reason == HOST_BUDGET]
    if spent and changed.gives_more(host.host, connection.execute(_PAGES, keys).scalar_one()):
        judged += spent
    _read_names(connection, names, (row.via_host for row in judged))
    ended: list[tuple[Any, str]] = []
    back: list[tuple[Any, int]] = []
    new_flags: list[tuple[Any, ...]] = []
    for row in judged:
        via_host = None if row.via_host is None else names.get(row.via_host, host.host)
        found = found_beyond(
            changed.scope,
            whole(row.url, host.host),
            host.host,
            depth=row.depth,
            hops=row.hops,
            flags=row.flags,
            via_host=via_host,
        )
        if not isinstance(found, int):
            if row.state != UrlState.EXCLUDED:
                ended.append((row, found.name.value))
            continue
        flags = row.flags if found == extra_hops_of(row.flags) else with_extra_hops(row.flags, found)
        if row.state == UrlState.EXCLUDED:
            back.append((row, flags))
        elif flags != row.flags:
            new_flags.append((flags, crawl_id, host.host_id, bytes(row.fingerprint)))
    _FLAGS.run(connection, new_flags)
    end_queued(connection, command.partition, crawl_id, host.host_id, ended)
    _queue_again(connection, command, HostId(host.host_id), back, changed, now_ms)
    return bytes(rows[-1].fingerprint) if len(rows) == step else None


def _by_scope(row: Any) -> bool:
    return row.state == UrlState.EXCLUDED and row.reason in BY_SCOPE


def _queue_again(
    connection: Connection,
    command: CommandRun,
    host_id: HostId,
    back: Sequence[tuple[Any, int]],
    changed: ChangedScope,
    now_ms: int,
) -> None:
    """Queue excluded URLs again. `back` has each URL with its new flags.

    If the crawl fetches pages again, a stored page gets the state WAITING instead, and is due at once.
    """
    if not back:
        return
    crawl_id = command.crawl_id
    values: list[tuple[Any, ...]] = []
    waiting = requisites = 0
    for row, of_scope in back:
        place, flags = (crawl_id, host_id, bytes(row.fingerprint)), of_scope & ~(RETRY | REVISIT)
        if changed.revisits and row.flags & COUNTED_AS_PAGE:
            waiting += 1
            values.append((int(UrlState.WAITING), now_ms, flags | REVISIT, *place))
        else:
            requisite = bool(flags & IS_REQUISITE)
            requisites += requisite
            rank = requisite_rank(now_ms) if requisite else rank_of(now_ms, row.depth, row.priority)
            values.append((int(UrlState.QUEUED), rank, flags, *place))
    _BACK.run(connection, values)
    n = len(back)
    counts = {"queued": n - waiting, "waiting": waiting}
    connection.execute(_ADD_TO_QUEUE, {"crawl_id": crawl_id, "host_id": host_id} | counts)
    deltas = {"queued": n, "excluded": -n, "revisits": waiting, "requisites": requisites}
    add_counters(connection, crawl_id, command.partition, deltas)
    reasons = Counter(str(row.reason) for row, _ in back)
    tallies = {(crawl_id, "excluded", reason): -count for reason, count in reasons.items()}
    add_tallies(connection, command.partition, tallies)


def _read_names(connection: Connection, names: dict[int, str], ids: Iterable[int | None]) -> None:
    """Add the names of the hosts `ids` to `names`, by id. Hosts that are no longer stored are left out."""
    names.update(host_names(connection, {host_id for host_id in ids if host_id is not None} - names.keys()))


def host_names(connection: Connection, ids: Iterable[int]) -> Mapping[int, str]:
    """Return the names of hosts by id. Hosts that are no longer stored are left out (Store.host_names)."""
    ordered = sorted(ids)
    return {
        row.host_id: row.host
        for start in range(0, len(ordered), _IDS_A_QUERY)
        for row in connection.execute(_NAMES, {"ids": ordered[start : start + _IDS_A_QUERY]})
    }


def via_hosts(
    connection: Connection, places: Sequence[tuple[CrawlId, HostId, Sequence[Fingerprint]]]
) -> Sequence[Mapping[Fingerprint, str | None]]:
    """Return for each place (crawl, host, URLs) the host of the page that led to each URL. None: the URL is a seed.

    If that host is no longer stored, return the URL's own host instead (Store.via_hosts).
    """
    found = [
        {
            Fingerprint(bytes(row.fingerprint)): row.via_host
            for row in connection.execute(
                _VIA, {"crawl_id": crawl_id, "host_id": host_id, "fingerprints": list(fingerprints)}
            )
        }
        for crawl_id, host_id, fingerprints in places
    ]
    every = {host_id for one in found for host_id in one.values() if host_id is not None}
    own = {host_id for _, host_id, _ in places}
    names = host_names(connection, every | own)
    return [
        {key: None if via is None else names.get(via, names.get(host_id, "")) for key, via in one.items()}
        for one, (_, host_id, _) in zip(found, places, strict=True)
    ]


def scope_revision(connection: Connection, crawl_id: CrawlId) -> Revision:
    """Return the revision since which the crawl has had its present scope (Store.scope_revision).

    For example, if revision 3 changed the scope, and revisions 4 and 5 did not, the result is 3. A higher limit of
    pages for a host counts as a change, because it admits more URLs. A lower limit does not count.

    If an earlier revision cannot be read, only the revisions after it are considered. Raise Unusable if the present
    revision cannot be read.
    """
    table = schema.crawl_revisions
    current = select(schema.crawls.c.revision).where(schema.crawls.c.crawl_id == crawl_id).scalar_subquery()
    here = (table.c.crawl_id == crawl_id) & (table.c.revision <= current)
    newest = select(table.c.revision, table.c.spec).where(here).order_by(table.c.revision.desc())
    since: int | None = None
    spec: CrawlSpec | None = None
    before = 2**31 - 1
    while (row := connection.execute(newest.where(table.c.revision < before).limit(1)).first()) is not None:
        try:
            earlier = decode_spec(row.spec)
        except msgspec.MsgspecError:
            break
        if spec is not None and not same_admission(earlier, spec):
            break
        since, before = row.revision, row.revision
        spec = earlier if spec is None else spec
    if since is None:
        raise Unusable(f"the spec of crawl {crawl_id} cannot be read")
    return Revision(since)
