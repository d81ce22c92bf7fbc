"""Deletes seeds, and withdraws URLs of seed sets, for an operator's command, in a transaction that passed the fence.

Both end the fetching of URLs that are only seeds. A queued or waiting URL is excluded, or becomes done if its page is
stored. The rows of the URLs stay.

A deletion ends seeds that an operator chose. There are three exceptions:

- A URL to which a page led does not change.
- A seed that is neither queued nor waiting, such as a failed or leased seed, does not change.
- A seed that is also in a seed set of the crawl stays. The seed only gets the flag OF_SET.

The flag OF_SET says that the URL is a seed because of seed sets alone, and not because of the spec or an upload.

A withdrawal ends URLs that were removed from a seed set. It changes only URLs with the flag OF_SET:

- A URL that is still in another seed set does not change.
- A URL to which a page links stays in the crawl. The URL gets the depth and linking page of the nearest link, and loses
  OF_SET.
- A queued or waiting URL without such a link is excluded, or becomes done if its page is stored.
- A failed URL without such a link and without a stored page is excluded.
- If a URL without such a link is leased, the command waits until the lease ends.
"""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import BindParameter, Connection, TextClause, bindparam, text

from shared.adapters.sql.engine.bulk import AMONG, Bulk, Row
from shared.adapters.sql.engine.chunks import BEHIND, HOSTS, UNMARKED, Chunk, step_end_query
from shared.adapters.sql.frontier.apply import add_counters, add_tallies
from shared.adapters.sql.frontier.extra_hops import nearer_link
from shared.adapters.sql.frontier.revisits import forget_rates
from shared.adapters.sql.frontier.url_flags import NOT_QUEUED_AGAIN, QUEUED_AS
from shared.domain.frontier import command_progress
from shared.domain.frontier.command_progress import behind, behind_host, deletes_by_host, place_of, places_of_chunk
from shared.domain.frontier.commands import GREATEST, SEED_DELETED, SEED_WITHDRAWN, CommandKind
from shared.domain.frontier.states import (
    COUNTED_AS_PAGE,
    EXTRA_BITS,
    OF_SET,
    REVISIT,
    UrlKind,
    UrlState,
    with_extra_hops,
)
from shared.domain.frontier.store_model import CommandRun, DiscoveredLink
from shared.domain.ids import CrawlId, Fingerprint, HostId

_HOST = text("SELECT host_id FROM hosts WHERE host = :host AND partition = :partition")
_HERE = "urls.crawl_id = :crawl_id AND urls.host_id = :host_id"
_SEEDS = f"{_HERE} AND via_host IS NULL"
_FETCHED = f"flags & {COUNTED_AS_PAGE}"
_IN_SETS = (
    "EXISTS (SELECT 1 FROM seed_set_urls m JOIN seed_sets s ON s.set_id = m.set_id"
    " WHERE m.fingerprint = urls.fingerprint AND s.crawl_id = :crawl_id)"
)
_HAS_SETS = text("SELECT 1 FROM seed_sets WHERE crawl_id = :crawl_id LIMIT 1")

# SQLite has no statistics here and prefers the primary key, which would also read URLs that are no seeds.
_BY_SEEDS = {"sqlite": "urls INDEXED BY urls_seeds", "postgresql": "urls"}


_Key = tuple[CrawlId, HostId, Fingerprint]


class _Statements(NamedTuple):
    """SQL statements that together take some queued and waiting URLs out of the queue.

    - `counting`: counts these URLs, so that the crawl's counters can be updated. The counts are grouped by state, by
      the part of the counter `queued` (such as `retries`), and by whether a page is stored.
    - `rated`: reads those of the URLs that may have a rate of change. These are URLs with a stored page, and sitemaps
      that are fetched repeatedly. The caller deletes their rates.
    - `end`: takes the URLs out of the queue. URLs with a stored page become done, the others are excluded.
    - `keep`: for a deletion, marks the seeds that stay because a seed set has them (flag OF_SET). None for a
      withdrawal.
    """

    counting: TextClause
    rated: TextClause
    end: TextClause
    keep: TextClause | None = None


def _ending(which: str, reason: str) -> tuple[TextClause, TextClause, TextClause]:
    of_open = f"{which} AND state IN (0, 1)"
    return (
        text(
            f"SELECT state, {_FETCHED} AS fetched, {QUEUED_AS} AS part, count(*) AS n FROM urls WHERE {of_open}"
            " GROUP BY 1, 2, 3"
        ),
        text(f"SELECT fingerprint, flags FROM urls WHERE {of_open} AND flags & {COUNTED_AS_PAGE | REVISIT} <> 0"),
        text(
            f"UPDATE urls SET state = CASE WHEN {_FETCHED} > 0 THEN 3 ELSE 5 END,"
            f" reason = CASE WHEN {_FETCHED} > 0 THEN NULL ELSE '{reason}' END, rank = 0,"
            f" flags = {NOT_QUEUED_AGAIN} WHERE {of_open}"
        ),
    )


def _deleting(which: str) -> _Statements:
    """Return the statements of a deletion of the seeds that match the SQL condition `which`."""
    seeds = f"{_SEEDS} AND {UNMARKED} AND {which}"
    keep = text(f"UPDATE urls SET flags = flags | {OF_SET} WHERE {seeds} AND {_IN_SETS}")
    return _Statements(*_ending(f"{seeds} AND NOT {_IN_SETS}", SEED_DELETED), keep)


def _others(dialect: str, deleted: str) -> _Statements:
    """Return the statements that delete all seeds of a host except given ones, at most `:step` seeds at a time.

    `deleted`: an SQL condition, which is false for the seeds to keep.
    """
    some = f"SELECT fingerprint FROM {_BY_SEEDS[dialect]} WHERE {_SEEDS} AND {BEHIND} ORDER BY fingerprint LIMIT :step"
    return _deleting(f"{deleted} AND fingerprint <= :upto AND {AMONG[dialect].format(some)}")


_LAST = {dialect: step_end_query(_SEEDS, table) for dialect, table in _BY_SEEDS.items()}
_IN: BindParameter[bytes] = bindparam("places", expanding=True)


def _named(statements: Iterable[TextClause | None]) -> _Statements:
    return _Statements(*(each.bindparams(_IN) for each in statements if each is not None))


_NAMED = _named(_deleting("urls.fingerprint IN :places"))
# Any number of seeds may be kept, so they are one parameter. Each engine has its own form of it.
_NOT_KEPT = {
    "sqlite": "hex(fingerprint) NOT IN (SELECT value FROM json_each(:places))",
    "postgresql": "fingerprint <> ALL(CAST(:places AS BYTEA[]))",
}
_OTHERS = {dialect: _others(dialect, deleted) for dialect, deleted in _NOT_KEPT.items()}

_OF_LINK = "l.crawl_id = urls.crawl_id AND l.host_id = urls.host_id AND l.fingerprint = urls.fingerprint"
# No mark of a command matters here: whether a URL is withdrawn depends on what the sets have when it is applied.
_LEFT = f"{_HERE} AND urls.fingerprint IN :places AND urls.flags & {OF_SET} <> 0 AND NOT {_IN_SETS}"
_LEFT_ALONE = f"{_LEFT} AND NOT EXISTS (SELECT 1 FROM seed_links l WHERE {_OF_LINK})"
_WITHDRAWN = _named(_ending(_LEFT_ALONE, SEED_WITHDRAWN))
_STAY = text(
    "UPDATE urls SET depth = l.depth, hops = l.hops, via_host = l.via_host, via = l.via,"
    f" flags = (urls.flags & {~(OF_SET | EXTRA_BITS)}) | (l.extra * {with_extra_hops(0, 1)})"
    f" FROM seed_links l WHERE {_OF_LINK} AND {_LEFT}"
).bindparams(_IN)
_FORGET_LINKS = text(
    "DELETE FROM seed_links WHERE crawl_id = :crawl_id AND host_id = :host_id AND fingerprint IN :places"
    " AND NOT EXISTS (SELECT 1 FROM urls u WHERE u.crawl_id = :crawl_id AND u.host_id = :host_id"
    f" AND u.fingerprint = seed_links.fingerprint AND u.flags & {OF_SET} <> 0)"
).bindparams(_IN)
_FAILED = f"{_LEFT_ALONE} AND state = 4 AND {_FETCHED} = 0"
_FAILED_COUNT = text(
    f"SELECT coalesce(reason, '') AS reason, count(*) AS n FROM urls WHERE {_FAILED} GROUP BY 1"
).bindparams(_IN)
_FAILED_END = text(
    f"UPDATE urls SET state = 5, reason = '{SEED_WITHDRAWN}', rank = 0, flags = {NOT_QUEUED_AGAIN} WHERE {_FAILED}"
).bindparams(_IN)
_LEASED = text(f"SELECT urls.fingerprint FROM urls WHERE {_LEFT_ALONE} AND state = 2").bindparams(_IN)

_URL = "crawl_id = :crawl_id AND host_id = :host_id AND fingerprint = :fingerprint"
_KEY = ("crawl_id", "host_id", "fingerprint")
_ADD_FLAG = Bulk(f"UPDATE urls SET flags = flags | {OF_SET} WHERE {_URL}", _KEY)
_REMOVE_FLAG = Bulk(f"UPDATE urls SET flags = flags & {~OF_SET} WHERE {_URL}", _KEY)
_LINK = ("depth", "hops", "extra", "via_host", "via")
_NEARER = (
    f"INSERT INTO seed_links ({', '.join((*_KEY, *_LINK))}) {{}} ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _LINK)
    + " WHERE (excluded.extra, excluded.depth) < (seed_links.extra, seed_links.depth)"
)
_ADD_LINK = Bulk(_NEARER.format(f"VALUES ({', '.join(f':{name}' for name in (*_KEY, *_LINK))})"), (*_KEY, *_LINK))
_ADD_PLACE = Bulk(
    _NEARER.format(
        f"SELECT crawl_id, host_id, fingerprint, depth, hops, (flags & {EXTRA_BITS}) / {with_extra_hops(0, 1)},"
        f" via_host, via FROM urls WHERE {_URL}"
    ),
    _KEY,
)
TAKE_FROM_QUEUE: Final = text(
    "UPDATE queues SET queued = queued - :queued, waiting = waiting - :waiting, next_due_ms = coalesce((SELECT"
    " min(rank) FROM urls WHERE crawl_id = :crawl_id AND host_id = :host_id AND state = 1), 0)"
    " WHERE crawl_id = :crawl_id AND host_id = :host_id"
)


def delete_seeds(connection: Connection, command: CommandRun) -> int | None:
    """Apply one chunk of a deletion or withdrawal of seeds. Return where the next chunk begins, None at the end.

    - If the command lists the seeds to take out, the result is a position in this list. For example, 500 means that
      the first 500 seeds of the list are processed.
    - If the command lists the seeds to keep, all hosts are searched. The result then stands for a host and a
      fingerprint (`command_progress.behind`).
    """
    places: Any = command.args["places"]
    if command.kind == CommandKind.SEED_SET:
        return _withdraw(connection, command)
    by_host: dict[str, list[bytes]] = defaultdict(list)
    if deletes_by_host(command):
        for host, key in sorted(places):
            by_host[host].append(key)
        return _delete_others(connection, command, by_host)
    rest = command.after + command_progress.PLACES_A_CHUNK
    for host_id, fingerprints in _places_of_chunk(connection, command):
        _end(connection, command, host_id, _NAMED, {"places": fingerprints})
    return rest if rest < len(places) else None


def leased_seeds(connection: Connection, command: CommandRun) -> set[Fingerprint]:
    """Return the leased URLs that the next chunk of a SEED_SET must withdraw once their leases end."""
    return {
        Fingerprint(bytes(row.fingerprint))
        for host_id, fingerprints in _places_of_chunk(connection, command)
        for row in connection.execute(_LEASED, _keys(command, host_id) | {"places": fingerprints})
    }


def _withdraw(connection: Connection, command: CommandRun) -> int | None:
    """Withdraw one chunk of the URLs that have left a seed set. Return where the next chunk begins, None at the end.

    The command goes through its URLs twice:

    - The first pass withdraws the URLs that are not leased.
    - The second pass withdraws the URLs that were leased in the first pass. If a URL of the chunk is still leased,
      return where this chunk began. The next call then repeats the chunk.
    """
    places: Any = command.args["places"]
    failed: dict[str, int] = defaultdict(int)
    for host_id, fingerprints in _places_of_chunk(connection, command):
        keys = _keys(command, host_id) | {"places": fingerprints}
        connection.execute(_STAY, keys)
        connection.execute(_FORGET_LINKS, keys)
        _end(connection, command, host_id, _WITHDRAWN, {"places": fingerprints}, SEED_WITHDRAWN)
        for row in connection.execute(_FAILED_COUNT, keys).all():
            failed[row.reason] += row.n
        connection.execute(_FAILED_END, keys)
    if total := sum(failed.values()):
        crawl_id = CrawlId(command.crawl_id)
        add_counters(connection, crawl_id, command.partition, {"failed": -total, "excluded": total})
        tallies = {(crawl_id, "failed", reason): -n for reason, n in failed.items()}
        add_tallies(connection, command.partition, tallies | {(crawl_id, "excluded", SEED_WITHDRAWN): total})
    if command.after >= len(places) and leased_seeds(connection, command):
        return command.after
    rest = command_progress.next_place(command)
    return rest if rest < 2 * len(places) else None


def _places_of_chunk(connection: Connection, command: CommandRun) -> list[tuple[int, list[bytes]]]:
    """Return the URLs that the next chunk of a command names, one entry for each host: its id and its fingerprints.

    Leave out URLs of hosts that are not stored.
    """
    by_host: dict[str, list[bytes]] = defaultdict(list)
    for host, key in places_of_chunk(command):
        by_host[host].append(key)
    found: list[tuple[int, list[bytes]]] = []
    for host, fingerprints in sorted(by_host.items()):
        host_id = connection.execute(_HOST, {"host": host, "partition": command.partition}).scalar()
        if host_id is not None:
            found.append((host_id, fingerprints))
    return found


def _delete_others(connection: Connection, command: CommandRun, kept: dict[str, list[bytes]]) -> int | None:
    """Delete one chunk of all seeds except `kept`, host by host. Return where the next chunk begins, None at the end.

    `kept`: the fingerprints to keep, by host name, in ascending order.
    """
    dialect = connection.dialect.name
    above, upto = _between(command)
    first, mark = place_of(command.after)
    which_hosts = {
        "crawl_id": command.crawl_id,
        "partition": command.partition,
        "first": first,
        "max_count": command_progress.HOSTS_A_CHUNK,
    }
    hosts = connection.execute(HOSTS[dialect], which_hosts).all()
    chunk = Chunk()
    places = [(row, max(above, mark) if row.host_id == first else above) for row in reversed(hosts) if row.open]
    while places:
        row, after = places.pop()
        step, stay = chunk.step, kept.get(row.host, [])
        keys = {"crawl_id": command.crawl_id, "host_id": row.host_id, "after": after, "others": step - 1}
        last = connection.execute(_LAST[dialect], keys).scalar()
        until = upto if last is None else min(upto, bytes(last))
        some = stay[bisect_right(stay, after) : bisect_right(stay, until)]
        which = {"after": after, "upto": until, "step": step, "places": _parameter(dialect, some)}
        ended = _end(connection, command, row.host_id, _OTHERS[dialect], which)
        chunk.take(ended if last is None else step)
        if until < upto:
            places.append((row, until))
        if places and chunk.full:
            following, mark = places[-1]
            return behind(following.host_id, mark)
    return behind_host(hosts[-1].host_id) if len(hosts) == command_progress.HOSTS_A_CHUNK else None


def _parameter(dialect: str, kept: Sequence[bytes]) -> Any:
    return list(kept) if dialect == "postgresql" else json.dumps([key.hex().upper() for key in kept])


def _between(command: CommandRun) -> tuple[bytes, bytes]:
    """Return the range of fingerprints that the command deletes: above the first, up to and including the second."""
    above, upto = command.args.get("above", b""), command.args.get("upto", GREATEST)
    assert isinstance(above, bytes)
    assert isinstance(upto, bytes)
    return above, upto


def _keys(command: CommandRun, host_id: int) -> dict[str, Any]:
    return {"crawl_id": command.crawl_id, "host_id": host_id, "number": command.number}


def _end(
    connection: Connection,
    command: CommandRun,
    host_id: int,
    statements: _Statements,
    which: dict[str, Any],
    reason: str = SEED_DELETED,
) -> int:
    keys = _keys(command, host_id)
    count, rated, end, keep = statements
    if keep is not None and connection.execute(_HAS_SETS, keys).first() is not None:
        connection.execute(keep, keys | which)
    states = {0: 0, 1: 0}
    ends = {"done": 0, "excluded": 0}
    parts: dict[str, int] = {}
    for row in connection.execute(count, keys | which):
        states[row.state] += row.n
        if row.part is not None:
            parts[row.part] = parts.get(row.part, 0) - row.n
        ends["done" if row.fetched else "excluded"] += row.n
    total = sum(states.values())
    if not total:
        return 0
    stored = {bytes(row.fingerprint): int(row.flags) for row in connection.execute(rated, keys | which)}
    connection.execute(end, keys | which)
    connection.execute(TAKE_FROM_QUEUE, keys | {"queued": states[0], "waiting": states[1]})
    crawl_id = CrawlId(command.crawl_id)
    add_counters(connection, crawl_id, command.partition, {"queued": -total, **ends, **parts})
    tallies = forget_rates(connection, crawl_id, host_id, stored)
    if ends["excluded"]:
        tallies[crawl_id, "excluded", reason] = ends["excluded"]
    add_tallies(connection, command.partition, tallies)
    return total


class SetSeeds:
    """Maintains the flag OF_SET of URLs, and the links stored for such URLs, in one transaction of discoveries.

    OF_SET marks a URL that is a seed only because a seed set has it. If pages link to such a URL, the nearest link is
    stored. When the URL leaves its seed sets, it stays in the crawl because of this link.

    `only`: the URLs that this transaction adds as seeds of a seed set, but not as seeds of the spec or an upload.
    """

    def __init__(self, links: Sequence[DiscoveredLink], host_ids: Mapping[str, HostId]) -> None:
        self.only: set[_Key] = set()
        self._plain: set[_Key] = set()
        self._linked: dict[_Key, DiscoveredLink] = {}
        self._links: list[Row] = []
        self._places: list[_Key] = []
        self._to_flag: list[_Key] = []
        self._to_clear: list[_Key] = []
        for link in links:
            if not link.via:
                keys = self.only if link.of_set else self._plain
                keys.add((link.crawl_id, host_ids[link.host], link.fingerprint))
        self.only -= self._plain
        if self.only:
            for link in links:
                key = (link.crawl_id, host_ids[link.host], link.fingerprint)
                if link.via and key in self.only and not link.outside and link.kind != UrlKind.REQUISITE:
                    other = self._linked.get(key)
                    self._linked[key] = link if other is None else nearer_link(link, other)

    def flags_of_new(self, key: _Key, flags: int) -> int:
        """Return the flags for the row of a new URL: `flags`, and also OF_SET if the URL is in `only`.

        If the URL is in `only` and pages of the same batch link to it, also remember the nearest of these links.
        `write_links` stores this link later.
        """
        if key not in self.only:
            return flags
        self._keep_link(key, self._linked.get(key))
        return flags | OF_SET

    def merge(
        self,
        key: _Key,
        link: DiscoveredLink,
        state: UrlState,
        reason: str | None,
        flags: int,
        *,
        has_linking_page: bool,
    ) -> int:
        """Return the new flags of a known URL that is found again, and record the changes to write.

        - `link`: the link of the present batch to the URL. The scope admits this link.
        - `state`, `reason`, `flags`: the stored values of the URL.
        - `has_linking_page`: True if the stored row already names a page that led to the URL. False if the row is of a
          seed.
        """
        gone = state is UrlState.EXCLUDED and reason in (SEED_DELETED, SEED_WITHDRAWN)
        if key in self.only:
            if not flags & OF_SET and (has_linking_page or gone):
                if has_linking_page and state is not UrlState.EXCLUDED:  # store the link of that page
                    self._places.append(key)
                self._to_flag.append(key)
                flags |= OF_SET
            if flags & OF_SET:
                self._keep_link(key, self._linked.get(key))
        elif key in self._plain or (gone and reason == SEED_WITHDRAWN):
            self._to_clear.append(key)
            flags &= ~OF_SET
        elif not gone and link.kind != UrlKind.REQUISITE:
            self._keep_link(key, link)
        return flags

    def write_links(self, connection: Connection) -> None:
        """Write the links that calls of `flags_of_new` and `merge` have remembered to the table `seed_links`.

        Each of them is a link from a page to a seed of a seed set. Call this before the rows of known URLs change,
        because some links are read from the present rows of these URLs.
        """
        _ADD_PLACE.run(connection, sorted(self._places))
        _ADD_LINK.run(connection, sorted(self._links))

    def write_flags(self, connection: Connection) -> None:
        """Write the recorded changes of the flag OF_SET. Call it after all other changes of flags."""
        _ADD_FLAG.run(connection, sorted(self._to_flag))
        _REMOVE_FLAG.run(connection, sorted(self._to_clear))

    def _keep_link(self, key: _Key, link: DiscoveredLink | None) -> None:
        if link is not None:
            self._links.append((*key, link.depth, link.hops, link.extra, link.via_host, link.via))
