"""The transaction that applies discoveries: it inserts new URLs, merges known ones and updates the counters."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, bindparam, text

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.bulk import Arrays, Bulk, New, Row, inserting
from shared.adapters.sql.engine.fence import pass_fence
from shared.adapters.sql.engine.host_limits import apply_to_new
from shared.adapters.sql.engine.url_compression import shortened
from shared.adapters.sql.frontier.apply import MARK, add_counters, add_tallies, bury
from shared.adapters.sql.frontier.extra_hops import HopChanges, KnownRow, nearer_link
from shared.adapters.sql.frontier.requisites import Relinked, relink, relinked, remaining
from shared.adapters.sql.frontier.revisits import PagesAgain
from shared.adapters.sql.frontier.seed_contexts import GivenContexts
from shared.adapters.sql.frontier.seed_deletion import SetSeeds
from shared.adapters.sql.frontier.signs import apply_signs, write_found
from shared.adapters.sql.frontier.url_flags import NOT_QUEUED_AGAIN
from shared.domain.crawl.exclusions import OWNER
from shared.domain.crawl.requisites_spec import MAX_REQUISITES
from shared.domain.crawl.scope_change import BY_SCOPE
from shared.domain.frontier.commands import SEED_DELETED, SEED_WITHDRAWN
from shared.domain.frontier.page_signs import PageSigns
from shared.domain.frontier.states import (
    ALSO_PAGE,
    FOUND_NEARER,
    IS_REQUISITE,
    OF_SET,
    REVISIT,
    Fence,
    Merge,
    Position,
    UrlKind,
    UrlState,
    extra_hops_of,
    kind_flags,
    merge_link,
    rank_of,
    requisite_rank,
    with_extra_hops,
)
from shared.domain.frontier.store_model import DiscoveredLink, DiscoveryResult, DiscoveryTransaction, ProducerMark
from shared.domain.ids import CrawlId, Fingerprint, HostId, Partition, numbered
from shared.ports.store import NO_MARKS, NO_SIGNS

_NAMES_A_QUERY = 500

_HOSTS = "SELECT host_id, host FROM hosts WHERE host"
_HOSTS_SQLITE = text(f"{_HOSTS} IN :names").bindparams(bindparam("names", expanding=True))
_HOSTS_POSTGRESQL = text(f"{_HOSTS} = ANY(:names)")
INSERT_HOST: Final = inserting(schema.hosts, ("host_id", "partition", "host"))
_NEXT_HOST = text(
    "UPDATE partitions SET next_host = :next_host WHERE partition = :partition"
    " RETURNING EXISTS (SELECT 1 FROM host_policies WHERE host > '')"
)
_PRODUCER = text(
    "SELECT n, total, gaps FROM producers"
    " WHERE partition = :partition AND crawl_id = :crawl_id AND producer = :producer"
)
_MARK = inserting(
    schema.producers,
    ("partition", "crawl_id", "producer", "n", "total", "gaps"),
    "ON CONFLICT (partition, crawl_id, producer) DO UPDATE SET n = excluded.n, total = excluded.total,"
    " gaps = excluded.gaps",
)
_MAKE_KEYS = text(
    "CREATE TEMPORARY TABLE IF NOT EXISTS found_keys"
    " (i INTEGER NOT NULL, crawl_id BIGINT NOT NULL, host_id BIGINT NOT NULL, fingerprint BLOB NOT NULL)"
)
_CLEAR_KEYS = text("DELETE FROM found_keys")
_ADD_KEY = Bulk(
    "INSERT INTO found_keys (i, crawl_id, host_id, fingerprint) VALUES (:i, :crawl_id, :host_id, :fingerprint)",
    ("i", "crawl_id", "host_id", "fingerprint"),
)
KNOWN_SQLITE: Final = text(
    "SELECT k.i, u.state, u.depth, u.lease_id, u.reason, u.flags, u.via_host FROM found_keys k"
    " CROSS JOIN urls u ON u.crawl_id = k.crawl_id AND u.host_id = k.host_id AND u.fingerprint = k.fingerprint"
)
KNOWN_POSTGRESQL: Final = Arrays(
    "SELECT v.i - 1, u.state, u.depth, u.lease_id, u.reason, u.flags, u.via_host FROM {rows}"
    " JOIN urls u ON u.crawl_id = v.crawl_id AND u.host_id = v.host_id AND u.fingerprint = v.fingerprint",
    schema.urls,
    ("crawl_id", "host_id", "fingerprint"),
)
_URL_COLUMNS = (
    "crawl_id", "host_id", "fingerprint", "url", "depth", "hops", "priority", "rank", "via_host", "via", "state",
    "attempts", "flags",
)  # fmt: skip
INSERT_URL: Final = New(schema.urls, _URL_COLUMNS)
_FRESH = (int(UrlState.QUEUED), 0)
_NEARER = ("depth", "hops", "via_host", "via", "crawl_id", "host_id", "fingerprint")
_LOWER = Bulk(
    "UPDATE urls SET depth = :depth, hops = :hops, via_host = :via_host, via = :via,"
    f" flags = CASE WHEN state = 2 THEN flags | {FOUND_NEARER} ELSE flags END"
    " WHERE crawl_id = :crawl_id AND host_id = :host_id AND fingerprint = :fingerprint",
    _NEARER,
)
_AGAIN = Bulk(
    "UPDATE urls SET depth = :depth, hops = :hops, via_host = :via_host, via = :via, state = 0, rank = :rank,"
    f" priority = :priority, attempts = 0, reason = 'depth', flags = {NOT_QUEUED_AGAIN}"
    " WHERE crawl_id = :crawl_id AND host_id = :host_id AND fingerprint = :fingerprint",
    ("rank", "priority", *_NEARER),
)
_BACK = Bulk(
    f"UPDATE urls SET state = 0, flags = {NOT_QUEUED_AGAIN}, rank = :rank, attempts = 0, reason = NULL,"
    " priority = :priority WHERE crawl_id = :crawl_id AND host_id = :host_id AND fingerprint = :fingerprint",
    ("rank", "priority", "crawl_id", "host_id", "fingerprint"),
)
_EXCLUDE = Bulk(
    f"UPDATE urls SET state = {int(UrlState.EXCLUDED)}, rank = 0, reason = :reason"
    " WHERE crawl_id = :crawl_id AND host_id = :host_id AND fingerprint = :fingerprint",
    ("reason", "crawl_id", "host_id", "fingerprint"),
)
QUEUE: Final = inserting(
    schema.queues,
    ("crawl_id", "host_id", "partition", "queued", "active_at_ms"),
    "ON CONFLICT (crawl_id, host_id) DO UPDATE SET queued = queues.queued + excluded.queued",
)
_CRAWL = text("SELECT state FROM crawls WHERE crawl_id = :crawl_id")

_Key = tuple[CrawlId, HostId, Fingerprint]


def apply_found(
    connection: Connection,
    fence: Fence,
    position: Position,
    batch: DiscoveryTransaction,
    *,
    next_host: int,
    max_depth: dict[CrawlId, int | None],
    now_ms: int,
    marks: Mapping[CrawlId, int] = NO_MARKS,
    max_requisites: Mapping[CrawlId, int] = NO_MARKS,
    signs: Mapping[CrawlId, PageSigns | None] = NO_SIGNS,
) -> DiscoveryResult:
    """Insert a batch's new URLs, and merge its links into known ones. Return what changed (Store.apply_found).

    - `position`: up to where the owner has applied the reports. It is stored. `next_host`: the next new host's number.
    - `max_depth`: each crawl's limit of depth, None without one. `max_requisites`: each crawl's budget of requisites.
    - `marks`: for each crawl with commands in progress, the newest command's number. It is written to the URLs that the
      batch inserts or changes. These commands then skip the URLs, because the URLs are newer than the commands.
    - `signs`: for each crawl, the rules by which a date in a sitemap or feed makes a page due sooner, if it has any.
    """
    pass_fence(connection, fence, position)
    result = DiscoveryResult(next_host=next_host)
    counters: dict[CrawlId, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    links = list(_unrepeated(connection, fence.partition, batch, result, counters))
    host_ids = _host_ids(connection, fence.partition, {link.host for link in links}, result)

    least: dict[_Key, DiscoveredLink] = {}
    required: dict[_Key, DiscoveredLink] = {}
    for link in links:
        key = (link.crawl_id, host_ids[link.host], link.fingerprint)
        requisite = link.kind == UrlKind.REQUISITE
        other = required.get(key) if requisite else least.get(key)
        if requisite:
            counters[link.crawl_id]["known"] += other is not None or key in least
            if other is None or (other.outside and not link.outside):
                required[key] = link
        elif other is None:
            counters[link.crawl_id]["known"] += key in required
            least[key] = link
        else:
            counters[link.crawl_id]["known"] += 1
            least[key] = nearer_link(link, other)
    dated = [link for link in links if link.lastmod and not link.outside] if signs else ()
    signed = {(link.crawl_id, host_ids[link.host], link.fingerprint): link for link in dated}
    room = remaining(connection, max_requisites, required)
    given = GivenContexts(links, host_ids) if batch.with_contexts else None
    sets = SetSeeds(links, host_ids)
    unchanged = _merge(
        connection,
        fence.partition,
        least,
        required,
        room,
        batch.excluded,
        result,
        counters,
        max_depth,
        now_ms,
        signs,
        given,
        sets,
    )
    if signed:
        apply_signs(connection, fence.partition, signed, signs, result, now_ms)
    if result.listing:
        write_found(connection, fence.partition, result, now_ms)
    if marks:
        written = (least.keys() | required.keys()) - unchanged
        MARK.run(connection, [(marks[key[0]], *key) for key in sorted(written) if key[0] in marks])

    for crawl_id, deltas in counters.items():
        result.new += deltas["new"]
        result.known += deltas["known"]
        result.refused += deltas["refused"]
        add_counters(connection, crawl_id, fence.partition, deltas)
    for letter in batch.dead_letters:
        bury(connection, fence.partition, letter)
    return result


def _unrepeated(
    connection: Connection,
    partition: Partition,
    batch: DiscoveryTransaction,
    result: DiscoveryResult,
    counters: dict[CrawlId, dict[str, int]],
) -> Iterable[DiscoveredLink]:
    """Yield the links of new messages. Skip messages that were applied before, and messages of deleted crawls."""
    marks: dict[tuple[CrawlId, str], tuple[int, int, int]] = {}
    gone: dict[CrawlId, bool] = {}
    for mark, links, refused in batch.messages:
        if mark.crawl_id not in gone:
            state = connection.execute(_CRAWL, {"crawl_id": mark.crawl_id}).scalar()
            gone[mark.crawl_id] = state is None or state == "deleted"
        if gone[mark.crawl_id]:
            continue
        key = (mark.crawl_id, mark.producer)
        n, total, gaps = marks.get(key) or _producer(connection, partition, mark)
        if mark.n <= n:
            result.repeats += 1
            continue
        if mark.n != n + 1:
            result.gaps += 1
            gaps += 1
        marks[key] = (mark.n, mark.total, gaps)
        counters[mark.crawl_id]["accepted"] += mark.total - total
        counters[mark.crawl_id]["refused"] += refused
        yield from links
    # This line runs when the caller has taken all links.
    _MARK.run(connection, [(partition, *key, *mark) for key, mark in marks.items()])


def _producer(connection: Connection, partition: Partition, mark: ProducerMark) -> tuple[int, int, int]:
    key = {"partition": partition, "crawl_id": mark.crawl_id, "producer": mark.producer}
    row = connection.execute(_PRODUCER, key).first()
    return (0, 0, 0) if row is None else (row.n, row.total, row.gaps)


def _host_ids(
    connection: Connection, partition: Partition, names: set[str], result: DiscoveryResult
) -> dict[str, HostId]:
    """Return the ids of the hosts `names`. Insert hosts that are new, with numbers from `result.next_host` on."""
    ordered = sorted(names)
    ids: dict[str, HostId] = {}
    query = _HOSTS_POSTGRESQL if connection.dialect.name == "postgresql" else _HOSTS_SQLITE
    for start in range(0, len(ordered), _NAMES_A_QUERY):
        for row in connection.execute(query, {"names": ordered[start : start + _NAMES_A_QUERY]}):
            ids[row.host] = HostId(row.host_id)
    unseen = [name for name in ordered if name not in ids]
    if unseen:
        for name in unseen:
            ids[name] = HostId(numbered(result.next_host, partition))
            result.next_host += 1
        INSERT_HOST.run(connection, [(ids[name], partition, name) for name in unseen])
        next_host = {"next_host": result.next_host, "partition": partition}
        if connection.execute(_NEXT_HOST, next_host).scalar():
            apply_to_new(connection, partition, unseen)
    result.host_names.update((host_id, name) for name, host_id in ids.items())
    return ids


def _merge(
    connection: Connection,
    partition: Partition,
    least: dict[_Key, DiscoveredLink],
    required: dict[_Key, DiscoveredLink],
    room: dict[CrawlId, int],
    excluded: frozenset[Fingerprint],
    result: DiscoveryResult,
    counters: dict[CrawlId, dict[str, int]],
    max_depth: dict[CrawlId, int | None],
    now_ms: int,
    signs: Mapping[CrawlId, PageSigns | None],
    given: GivenContexts | None,
    sets: SetSeeds,
) -> set[_Key]:
    """Insert new URLs, and merge links into known URLs. Return the URLs that commands in progress may still change.

    The caller marks all other URLs, so that the commands skip those. The result has three kinds of known URLs:

    - failed URLs: a command may retry them,
    - URLs that were found on pages: a command may delete them as seeds,
    - fetched URLs that this call did not queue: a command may set when they are fetched again. A page that waits for
      its next fetch is missing if it became a seed, because an earlier deletion of seeds must not take it.

    - `least`: for each URL that was found as a page, the link by which it is nearest to a seed (`nearer_link`).
    - `required`: a link to each URL that was found as a requisite.
    - `room`: how many more requisites each crawl may queue. Crawls without a budget of requisites are missing.
    - `excluded`: URLs that an exclusion covers. `given`: seed contexts to store, or None. `sets`: seeds of seed sets.
    """
    keys = sorted(least.keys() | required.keys())
    unchanged: set[_Key] = set()
    known = _known(connection, keys)
    new: list[Row] = []
    lower: list[Row] = []
    again: list[Row] = []
    back: list[Row] = []
    refused: list[Row] = []
    relinks: list[Relinked] = []
    hops = HopChanges()
    tallies: dict[tuple[CrawlId, str, str], int] = defaultdict(int)
    queued: dict[tuple[CrawlId, HostId], int] = defaultdict(int)
    pages_again = PagesAgain(signs)
    for i, key in enumerate(keys):
        (crawl_id, host_id, fingerprint), page, need = key, least.get(key), required.get(key)
        if page is not None and page.outside and need is not None and not need.outside:
            page = None  # The scope admits it as a requisite only.
        requisite = need is not None and not need.outside and room.get(crawl_id, 1) > 0
        link = page or required[key]
        deltas = counters[crawl_id]
        via = (link.via_host or None, link.via or None)
        rank = requisite_rank(now_ms) if requisite else rank_of(now_ms, link.depth, link.priority)
        before = known.get(i)
        if before is None:
            deltas["new"] += 1
            deltas["discovered"] += 1
            flags = sets.flags_of_new(key, with_extra_hops(kind_flags(link.kind), link.extra))
            beyond = "" if page or requisite else MAX_REQUISITES
            if kept_out := OWNER if fingerprint in excluded else link.outside or beyond:
                deltas["excluded"] += 1
                tallies[crawl_id, "excluded", kept_out] += 1
                queued[crawl_id, host_id] += 0
                refused.append((kept_out, *key))
            else:
                deltas["queued"] += 1
                queued[crawl_id, host_id] += 1
                if requisite:
                    flags |= IS_REQUISITE | (ALSO_PAGE if page else 0)
                    deltas["requisites"] += 1
                    result.requisites.add((crawl_id, host_id))
                    tallies[crawl_id, "discover", "requisites"] += 1
                    if crawl_id in room:
                        room[crawl_id] -= 1
            new.append(
                (
                    *key,
                    shortened(link.url, link.host),
                    link.depth,
                    link.hops,
                    link.priority,
                    rank,
                    *via,
                    *_FRESH,
                    flags,
                )
            )
            if link.kind == UrlKind.LISTED and kept_out != MAX_REQUISITES:
                tallies[crawl_id, "discover", "listed"] += 1
            if link.kind and link.kind != UrlKind.REQUISITE and crawl_id in signs:
                result.listing.add((crawl_id, HostId(link.via_host)))
            continue
        deltas["known"] += 1
        state, depth, lease_id, reason, flags, via_host = before
        stored = state is UrlState.WAITING and bool(flags & REVISIT)
        if link.via or state in (UrlState.FAILED, UrlState.DONE):
            # A retry may still queue a failed URL, RECRAWL a done one, and a deletion may take a seed that a page has.
            unchanged.add(key)
        if fingerprint in excluded or link.outside:
            continue
        if flags & OF_SET or key in sets.only:
            flags = sets.merge(key, link, state, reason, flags, has_linking_page=via_host is not None)
        if requisite or flags & IS_REQUISITE:
            change = relinked(key, state, depth, reason, flags, page, requisite=requisite, now_ms=now_ms)
            if change is not None:
                relinks.append(change)
                unchanged.discard(key)
                change.count(deltas, tallies, queued, room)
                result.requisites.add((crawl_id, host_id))
                if change.leased:
                    result.also_pages.append((lease_id, fingerprint))
                    if change.link is not None and change.link.extra != extra_hops_of(flags):
                        result.hops.append((lease_id, fingerprint, change.link.extra))
            if page is None or flags & IS_REQUISITE or change is not None:
                continue
        replaced, extra = reason in BY_SCOPE or reason == SEED_WITHDRAWN, extra_hops_of(flags)
        if state is UrlState.EXCLUDED and (replaced or reason == OWNER or (reason == SEED_DELETED and not link.via)):
            deltas["excluded"] -= 1
            deltas["queued"] += 1
            tallies[crawl_id, "excluded", str(reason)] -= 1
            queued[crawl_id, host_id] += 1
            unchanged.discard(key)
            back.append((rank, link.priority, *key))
            if link.extra != extra and (replaced or link.extra < extra):
                hops.place(key, link, link.depth if replaced else min(depth, link.depth), flags)
            elif replaced or link.depth < depth:  # The crawl has this way to the URL, and not the one before.
                lower.append((link.depth, link.hops, *via, *key))
            continue
        if link.extra != extra:
            if hops.merge(key, link, before, max_depth.get(crawl_id), result):
                if not link.via:
                    unchanged.discard(key)
                pages_again.add(key, flags, deltas, queued, stored=stored)
                back.append((rank, link.priority, *key))
            continue
        nearer = (link.depth, link.hops, *via, *key)
        match merge_link(UrlState.DONE if stored else state, depth, link.depth, max_depth.get(crawl_id)):
            case Merge.NOTHING:
                if stored:
                    unchanged.add(key)
            case Merge.LOWER_DEPTH:
                lower.append(nearer)
                if state is UrlState.LEASED:
                    result.lowered.append((lease_id, fingerprint, link.depth))
            case Merge.QUEUE_AGAIN:
                if not link.via:
                    unchanged.discard(key)
                pages_again.add(key, flags, deltas, queued, stored=stored)
                again.append((rank, link.priority, *nearer))
    sets.write_links(connection)
    INSERT_URL.run(connection, new)
    _LOWER.run(connection, lower)
    hops.write(connection)
    _AGAIN.run(connection, again)
    _BACK.run(connection, back)
    _EXCLUDE.run(connection, refused)
    relink(connection, relinks)
    sets.write_flags(connection)
    add_tallies(connection, partition, tallies)
    QUEUE.run(connection, [(*key, partition, n, now_ms) for key, n in sorted(queued.items())])
    pages_again.write(connection, result, now_ms)
    result.queues.update({key: n for key, n in queued.items() if n})
    if given is not None:
        result.with_contexts = given.write(connection, partition, [(row[0], row[1], row[2]) for row in new])
    return unchanged


def _known(connection: Connection, keys: Sequence[_Key]) -> dict[int, KnownRow]:
    """Return the stored values (KnownRow) of each URL in `keys` that exists, by its index. Sorted keys are faster."""
    if not keys:
        return {}
    if connection.dialect.name == "postgresql":
        rows: Iterable[Any] = KNOWN_POSTGRESQL.run(connection, keys)
    else:
        connection.execute(_MAKE_KEYS)
        connection.execute(_CLEAR_KEYS)
        _ADD_KEY.run(connection, [(i, *key) for i, key in enumerate(keys)])
        rows = connection.execute(KNOWN_SQLITE)
    return {i: (UrlState(state), *rest) for i, state, *rest in rows}
