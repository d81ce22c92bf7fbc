"""The transaction that writes an owner's decisions on outcomes (shared.domain.frontier.store_model.Changes)."""

from collections.abc import Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final

from sqlalchemy import Connection, text

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.bulk import AMONG, Each, inserting, updating
from shared.adapters.sql.engine.fence import FENCE_VERSION, pass_fence
from shared.adapters.sql.frontier.excluded_links import keep, recounted
from shared.adapters.sql.frontier.revisits import forget_rates, keep_versions
from shared.adapters.sql.frontier.revisits import write as write_revisits
from shared.domain.frontier.states import (
    COUNTED_AS_PAGE,
    HOST_BUDGET,
    IS_REQUISITE,
    OF_SET,
    REVISIT,
    Fence,
    Position,
    UrlState,
    queued_as,
)
from shared.domain.frontier.store_model import Changes, DeadLetterRow, QueueEnd
from shared.domain.ids import CrawlId, Partition
from shared.domain.web.robots import BY_DIRECTIVE

URL: Final = updating(
    schema.urls,
    ("crawl_id", "host_id", "fingerprint"),
    ("state", "rank", "attempts", "flags", "reason"),
    "state = {v}state, rank = {v}rank, attempts = {v}attempts, reason = {v}reason, lease_id = NULL,"
    f" flags = ({{v}}flags & {~OF_SET}) | ({{t}}.flags & {OF_SET})",
)
"""Writes the new values of URLs, and ends their leases. The stored flag OF_SET is kept. It marks a URL that is a seed
only because of seed sets."""

_FETCH_COLUMNS = tuple(
    column.name for column in schema.fetches.columns if column.name not in ("history", "items_at_ms")
)
_FETCH_KEYS = ("crawl_id", "host_id", "fingerprint")
_NOT_INDEXED = ", ".join(f"'{reason}'" for reason in BY_DIRECTIVE)
_STORES_PAGE = f"({{0}}.page OR coalesce({{0}}.reason, '') IN ({_NOT_INDEXED}))"
_BRINGS_PAGE = f"{_STORES_PAGE.format('excluded')} OR NOT {_STORES_PAGE.format('fetches')}"
_SUMMARY = "{0}.at_ms || ' ' || {0}.status || ' ' || coalesce({0}.reason, '-')"
_HISTORY = (
    f"substr(CASE WHEN {_BRINGS_PAGE} THEN {_SUMMARY.format('fetches')} ELSE {_SUMMARY.format('excluded')} END"
    " || coalesce(';' || fetches.history, ''), 1, 512)"
)
# A stored page keeps its whole row if a later fetch has no page, so that the index never loses a record. The history
# then records the later fetch. If the row is replaced, the history records the earlier one. A page with a directive
# that forbids to index it is stored, too, although no list shows it.
FETCH: Final = inserting(
    schema.fetches,
    _FETCH_COLUMNS,
    f"ON CONFLICT ({', '.join(_FETCH_KEYS)}) DO UPDATE SET history = {_HISTORY}, "
    + ", ".join(
        f'"{name}" = CASE WHEN {_BRINGS_PAGE} THEN excluded."{name}" ELSE fetches."{name}" END'
        for name in _FETCH_COLUMNS
        if name not in _FETCH_KEYS
    ),
)
_fetch_values = attrgetter(*_FETCH_COLUMNS)
_QUEUE_DELTA = ("queued", "waiting", "leased", "pages", "shard_cap", "active_at_ms", "next_due_ms")
QUEUE: Final = updating(
    schema.queues,
    ("crawl_id", "host_id"),
    _QUEUE_DELTA,
    "queued = {t}.queued + {v}queued, waiting = {t}.waiting + {v}waiting, leased = {t}.leased + {v}leased,"
    " pages = {t}.pages + {v}pages, shard_cap = coalesce({v}shard_cap, {t}.shard_cap),"
    " active_at_ms = coalesce({v}active_at_ms, {t}.active_at_ms),"
    " next_due_ms = CASE WHEN {v}next_due_ms IS NULL THEN {t}.next_due_ms"
    " WHEN {t}.next_due_ms = 0 OR {t}.next_due_ms > {v}next_due_ms THEN {v}next_due_ms ELSE {t}.next_due_ms END",
)
_HOST_FACTS = (
    "crawl_delay_ms", "latency_ms", "failures", "unreachable", "last_failure_ms", "last_failure", "blocked_until_ms",
    "recent", "slowed_ms", "asked_ms", "silent_since_ms", "visited_at_ms",
)  # fmt: skip
HOST: Final = updating(
    schema.hosts,
    ("host_id",),
    (*_HOST_FACTS, "ip"),
    ", ".join(f"{name} = {{v}}{name}" for name in _HOST_FACTS) + ", ip = coalesce({v}ip, {t}.ip)",
)
FREE: Final = Each(
    schema.leases,
    ("lease_id",),
    sqlite="DELETE FROM leases WHERE lease_id = :lease_id",
    postgresql="DELETE FROM leases WHERE lease_id = ANY(ARRAY(SELECT v.lease_id FROM {rows}))",
)
_EXPIRED = text("UPDATE leases SET expired = :expired WHERE lease_id = :lease_id")
_TALLY = text(
    "INSERT INTO crawl_tallies (crawl_id, partition, kind, key, n) VALUES (:crawl_id, :partition, :kind, :key, :n)"
    " ON CONFLICT (crawl_id, partition, kind, key) DO UPDATE SET n = crawl_tallies.n + excluded.n"
)
_DEAD_LETTER = text(
    "INSERT INTO dead_letters (partition, crawl_id, kind, at_ms, url, evidence, payload)"
    " VALUES (:partition, :crawl_id, :kind, :at_ms, :url, :evidence, :payload)"
)
MARK: Final = updating(
    schema.urls,
    ("crawl_id", "host_id", "fingerprint"),
    ("after_command",),
    "after_command = {v}after_command",
)
"""Sets the column `after_command` of rows of `urls` to the number of the crawl's newest command in progress. Commands
up to this number then skip these rows. The statement runs only for crawls with a command in progress."""

_COMMAND_GIVEN_UP = text("DELETE FROM commands_in_progress WHERE id = :id AND partition = :partition")
_BEFORE_ALL_REPORTS = text("UPDATE commands_in_progress SET sequence = 0 WHERE partition = :partition")
_LETTERS_SENT = text("DELETE FROM dead_letters WHERE id = :id")
_GIVEN_UP_AT_ONCE = 5_000
"""One transaction gives up at most this many URLs, so that it ends soon."""

_OF_HOST = "crawl_id = :crawl_id AND host_id = :host_id"
# These use the indexes of queued and of waiting URLs.
_BEST = (
    f"SELECT fingerprint FROM urls WHERE {_OF_HOST} AND state = 0 AND flags & :spared = 0 ORDER BY rank"
    " LIMIT :max_count",
    f"SELECT fingerprint FROM urls WHERE {_OF_HOST} AND state = 1 AND flags & :spared = 0 ORDER BY rank"
    " LIMIT :max_count",
)
_GIVE_UP = {
    dialect: [
        text(
            "UPDATE urls SET state = :state, reason = :reason, after_command = CAST(:mark AS BIGINT)"
            f" WHERE {_OF_HOST} AND {among.format(best)} RETURNING fingerprint, flags"
        )
        for best in _BEST
    ]
    for dialect, among in AMONG.items()
}
_GIVE_UP_QUEUE = text(
    "UPDATE queues SET queued = queued - :queued, waiting = waiting - :waiting,"
    f" next_due_ms = CASE WHEN waiting <= :waiting THEN 0 ELSE next_due_ms END WHERE {_OF_HOST}"
)

_place = attrgetter("crawl_id", "host_id", "fingerprint")
_key = itemgetter(0)
_queue_values = attrgetter(*_QUEUE_DELTA)
_host_id = attrgetter("host_id")
_host_values = attrgetter(*_HOST_FACTS, "ip", "host_id")


def storable(value: Any) -> Any:
    """Return a text with NUL characters replaced by U+FFFD, and any other value unchanged.

    PostgreSQL cannot store NUL, and pages, headers and evidence may contain it.
    """
    return value.replace("\0", "\ufffd") if isinstance(value, str) and "\0" in value else value


def apply(connection: Connection, fence: Fence, position: Position, changes: Changes) -> Sequence[QueueEnd]:
    """Write an owner's changes, and the position up to which the owner has applied the reports (Store.apply).

    The URLs of the queues in `changes.give_up` get a final state, so that they are not fetched. One transaction does
    this for a limited number of URLs. Return the queues that may have more URLs: pass them again with the next changes.
    Raise OwnershipLost if the partition has another owner.
    """
    pass_fence(connection, fence, position)
    return write(connection, fence.partition, changes)


def write(connection: Connection, partition: Partition, changes: Changes) -> Sequence[QueueEnd]:
    """Write an owner's changes inside a transaction that has passed the fence.

    The URLs of the queues in `changes.give_up` get a final state, so that they are not fetched. One transaction does
    this for a limited number of URLs. Return the queues that may have more URLs: pass them again with the next changes.
    """
    URL.run(
        connection,
        [
            (c.state.value, c.rank, c.attempts, c.flags, c.reason, c.crawl_id, c.host_id, c.fingerprint)
            for c in sorted(changes.urls, key=_place)
        ],
    )
    if changes.marks:
        marked = [(changes.marks[c.crawl_id], *_place(c)) for c in changes.urls if c.crawl_id in changes.marks]
        MARK.run(connection, marked)
    again = recounted(connection, changes.losses_to_replace)
    if changes.superseded:
        keep_versions(connection, changes)
    FETCH.run(connection, [tuple(map(storable, _fetch_values(row))) for row in sorted(changes.fetches, key=_place)])
    if changes.revisited or changes.page_changes or changes.signals:
        write_revisits(connection, partition, changes)
    QUEUE.run(connection, [(*_queue_values(delta), *key) for key, delta in sorted(changes.queues.items(), key=_key)])
    counters = {crawl_id: dict(deltas) for crawl_id, deltas in changes.counters.items()}
    tallies = dict(changes.tallies)
    for place, delta in again.items():
        tallies[place] = tallies.get(place, 0) + delta
    if changes.left_out:
        keep(connection, partition, changes.left_out)
    max_count, unfinished = _GIVEN_UP_AT_ONCE, []
    for end in changes.give_up:
        ended = _give_up(connection, end, max_count, changes.marks.get(end[0]))
        n = len(ended)
        max_count -= n
        if max_count == 0:
            unfinished.append(end)
        crawl_id, host_id, state, reason = end
        for place, delta in forget_rates(connection, crawl_id, host_id, ended).items():
            tallies[place] = tallies.get(place, 0) + delta
        column = state.name.lower()
        deltas = counters.setdefault(crawl_id, {})
        for part in filter(None, map(queued_as, ended.values())):
            deltas[part] = deltas.get(part, 0) - 1
        deltas["queued"] = deltas.get("queued", 0) - n
        deltas[column] = deltas.get(column, 0) + n
        tallies[crawl_id, column, reason] = tallies.get((crawl_id, column, reason), 0) + n
    hosts = sorted(changes.hosts.values(), key=_host_id)
    HOST.run(connection, [tuple(map(storable, _host_values(host))) for host in hosts])
    FREE.run(connection, [(lease_id,) for lease_id in sorted(changes.freed)])
    if changes.expired:
        connection.execute(_EXPIRED, [{"lease_id": k, "expired": n} for k, n in changes.expired.items()])
    for crawl_id, deltas in counters.items():
        add_counters(connection, crawl_id, partition, deltas)
    add_tallies(connection, partition, tallies)
    for letter in changes.dead_letters:
        bury(connection, partition, letter)
    if changes.letters_sent:
        connection.execute(_LETTERS_SENT, [{"id": letter} for letter in changes.letters_sent])
    if changes.commands_given_up:
        connection.execute(_COMMAND_GIVEN_UP, [{"id": i, "partition": partition} for i in changes.commands_given_up])
    if changes.stream_replaced:
        connection.execute(_BEFORE_ALL_REPORTS, {"partition": partition})
    return unfinished


def add_tallies(connection: Connection, partition: Partition, tallies: Mapping[tuple[CrawlId, str, str], int]) -> None:
    """Add to a partition's counts by reason. `tallies` has the number to add for each (crawl, kind, key).

    For example, kind `failed` and key `dns` count the URLs that failed because the name of their host did not resolve.
    """
    if tallies:
        connection.execute(
            _TALLY,
            [
                {"crawl_id": crawl_id, "partition": partition, "kind": kind, "key": storable(key)[:64], "n": n}
                for (crawl_id, kind, key), n in tallies.items()
            ],
        )


def add_counters(connection: Connection, crawl_id: CrawlId, partition: Partition, deltas: dict[str, int]) -> None:
    """Add `deltas`, by counter name, to a crawl's counters in this partition. Insert the row if there is none yet."""
    names = [name for name in schema.COUNTERS if deltas.get(name)]
    values: dict[str, Any] = {name: deltas[name] for name in names}
    columns = "".join(f", {name}" for name in names)
    places = "".join(f", :{name}" for name in names)
    sums = "".join(f", {name} = crawl_counters.{name} + excluded.{name}" for name in names)
    connection.execute(
        text(
            f"INSERT INTO crawl_counters (crawl_id, partition, version, changed{columns})"
            f" VALUES (:crawl_id, :partition, 1, {FENCE_VERSION}{places}) ON CONFLICT (crawl_id, partition)"
            f" DO UPDATE SET version = crawl_counters.version + 1, changed = excluded.changed{sums}"
        ),
        values | {"crawl_id": crawl_id, "partition": partition},
    )


def bury(connection: Connection, partition: Partition, letter: DeadLetterRow) -> None:
    """Store a dead letter: a URL or message that was given up, with the evidence."""
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


def _give_up(connection: Connection, end: QueueEnd, max_count: int, mark: int | None) -> dict[bytes, int]:
    """Take at most `max_count` URLs out of a queue, by giving them the state and reason of `end`.

    Return the fingerprints of the ended URLs, each with the value of the column `urls.flags`.

    - `end`: the queue, and the state (such as EXCLUDED) and the reason that its URLs get.
    - `mark`: the number of the crawl's newest command in progress, None if there is none. Commands up to this number
      then skip the ended URLs.

    Some URLs of the queue are not ended:

    - If the state is EXCLUDED: stored pages that wait for their next fetch.
    - If the reason is the page limit of the host: requisites, and stored pages that are queued again.
    """
    crawl_id, host_id, state, reason = end
    keys: dict[str, Any] = {"crawl_id": crawl_id, "host_id": host_id}
    spared = REVISIT if state is UrlState.EXCLUDED else 0
    spared |= IS_REQUISITE | COUNTED_AS_PAGE if reason == HOST_BUDGET else 0
    ended: dict[bytes, int] = {}
    counts: list[int] = []
    for statement in _GIVE_UP[connection.dialect.name]:
        some = keys | {"reason": reason, "state": int(state), "max_count": max_count - len(ended)}
        some |= {"mark": mark, "spared": spared}
        rows = connection.execute(statement, some).all()
        ended |= {bytes(fingerprint): int(flags) for fingerprint, flags in rows}
        counts.append(len(rows))
    queued, waiting = counts
    if queued or waiting:
        connection.execute(_GIVE_UP_QUEUE, keys | {"queued": queued, "waiting": waiting})
    return ended
