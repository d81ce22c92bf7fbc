"""Excludes the URLs that an exclusion covers, for an operator's command, in a transaction that has passed the fence.

The command goes through the partition's hosts in the order of their numbers, and through all URLs of each host that the
exclusion may cover. It excludes queued and waiting URLs, and does not change leased ones. If the exclusion withdraws
pages, their records and items are deleted from the tables. The archive keeps the bytes.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import Connection, bindparam, text

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.bulk import Bulk, updating
from shared.adapters.sql.engine.chunks import BEHIND, Chunk
from shared.adapters.sql.engine.url_compression import whole
from shared.adapters.sql.frontier.apply import add_counters, add_tallies
from shared.adapters.sql.frontier.revisits import forget_rates
from shared.adapters.sql.frontier.seed_deletion import TAKE_FROM_QUEUE
from shared.adapters.sql.frontier.url_flags import NOT_QUEUED_AGAIN
from shared.domain.crawl.exclusions import OWNER, Exclusions
from shared.domain.frontier.command_progress import HOSTS_A_CHUNK
from shared.domain.frontier.states import CrawlState, UrlState, queued_as
from shared.domain.frontier.store_model import CommandRun
from shared.domain.ids import MAX_PARTITIONS, CrawlId, Partition, numbered
from shared.domain.web.addresses import parse_address

IN_QUEUE: Final = (UrlState.QUEUED, UrlState.WAITING)
"""The states of URLs that an exclusion takes from their queue."""

Judge = Callable[[str], bool]
"""A function that takes a URL and returns True if an exclusion covers it."""

_CRAWL_BITS: Final = 64
_FINGERPRINT_BITS: Final = 128

_NEXT_HOST = text("SELECT next_host FROM partitions WHERE partition = :partition")
_HOSTS = text("SELECT host_id, host, ip FROM hosts WHERE host_id IN :ids ORDER BY host_id").bindparams(
    bindparam("ids", expanding=True)
)
_QUEUES = text(
    "SELECT c.crawl_id, q.queued + q.waiting AS open FROM crawls c"
    " JOIN queues q ON q.crawl_id = c.crawl_id AND q.host_id = :host_id"
    f" WHERE c.crawl_id >= :first AND c.state <> '{CrawlState.DELETED}' ORDER BY c.crawl_id"
)
_URLS = text(
    "SELECT fingerprint, url, state, flags FROM urls WHERE crawl_id = :crawl_id AND host_id = :host_id"
    f" AND {BEHIND} ORDER BY fingerprint LIMIT :step"
)
_KEYS = ("crawl_id", "host_id", "fingerprint")
_EXCLUDE = updating(
    schema.urls, _KEYS, ("reason",), f"state = 5, rank = 0, flags = {NOT_QUEUED_AGAIN}, reason = {{v}}reason"
)
_HERE = " AND ".join(f"{key} = :{key}" for key in _KEYS)
_RECORD = ("segment", "offset", "length", "digest", "title", "etag", "last_modified")
_NO_RECORD = ", ".join(f'"{name}" = NULL' for name in _RECORD)
_WITHDRAW = (
    Bulk(f"UPDATE fetches SET page = false, {_NO_RECORD} WHERE {_HERE}", _KEYS),
    *(
        Bulk(f"DELETE FROM {table} WHERE {_HERE}", _KEYS)
        for table in ("page_versions", "items", "item_drafts", "item_pages")
    ),
)


def exclude(connection: Connection, command: CommandRun, exclusions: Exclusions) -> int | None:
    """Apply one chunk of an EXCLUDE. Return where the next chunk begins, None at the end.

    Check only hosts that the exclusion of the command may cover. On these hosts, exclude each URL that any exclusion
    covers. `exclusions`: all exclusions that are in force now.
    """
    # A target that this version cannot read covers no host. The follower of the exclusions has logged it.
    of_command, withdraw = Exclusions(0, [str(command.args["target"])]), bool(command.args["withdraw"])
    at_host, at_crawl, mark = _place_of(command.after)
    first = at_host // MAX_PARTITIONS
    end = int(connection.execute(_NEXT_HOST, {"partition": command.partition}).scalar_one())
    ids = [numbered(number, command.partition) for number in range(first, min(first + HOSTS_A_CHUNK, end))]
    chunk = Chunk()
    for host in connection.execute(_HOSTS, {"ids": ids}).all() if ids else ():
        judge = _judge_for_host(host.host, host.ip, of_command, exclusions)
        if judge is None:
            continue
        begun = host.host_id == at_host
        keys: dict[str, Any] = {"host_id": host.host_id, "first": at_crawl if begun else 0}
        for queue in connection.execute(_QUEUES, keys).all():
            after: bytes | None = mark if begun and queue.crawl_id == at_crawl else b""
            while after is not None and (queue.open or withdraw):
                after = _some(connection, command, host, queue.crawl_id, after, judge, chunk)
                if chunk.full and after is not None:
                    return _behind(host.host_id, queue.crawl_id, after)
            if chunk.full:
                return _behind(host.host_id, queue.crawl_id + 1, b"")
    following = first + HOSTS_A_CHUNK
    return _behind(numbered(following, command.partition), 0, b"") if following < end else None


def end_queued(
    connection: Connection, partition: Partition, crawl_id: CrawlId, host_id: int, ended: Sequence[tuple[Any, str]]
) -> None:
    """Exclude queued and waiting URLs of one queue, and update its numbers, counters and counts by reason.

    `ended` has each URL with its exclusion reason. Its row has the columns `fingerprint`, `state` and `flags`.
    """
    if not ended:
        return
    _EXCLUDE.run(connection, [(reason, crawl_id, host_id, bytes(row.fingerprint)) for row, reason in ended])
    states = Counter(row.state for row, _ in ended)
    taken = {"queued": states[UrlState.QUEUED], "waiting": states[UrlState.WAITING]}
    connection.execute(TAKE_FROM_QUEUE, {"crawl_id": crawl_id, "host_id": host_id} | taken)
    parts = Counter(part for row, _ in ended if (part := queued_as(row.flags)) is not None)
    n = len(ended)
    deltas = {"queued": -n, "excluded": n, **{part: -count for part, count in parts.items()}}
    add_counters(connection, crawl_id, partition, deltas)
    reasons = Counter(reason for _, reason in ended)
    tallies = {(crawl_id, "excluded", reason): n for reason, n in reasons.items()}
    stored = {bytes(row.fingerprint): int(row.flags) for row, _ in ended}
    add_tallies(connection, partition, tallies | forget_rates(connection, crawl_id, host_id, stored))


def _judge_for_host(host: str, ip: str | None, of_command: Exclusions, exclusions: Exclusions) -> Judge | None:
    """Return a function that decides which URLs of `host` to exclude, or None if the command skips the host.

    The command applies one exclusion. This exclusion selects the hosts. On a selected host, all exclusions that are in
    force now select the URLs. So if the exclusion of the command is no longer in force, it excludes nothing.

    - `of_command`: the exclusion of the command. The host is skipped if this exclusion can cover neither a URL of the
      host nor the host's address.
    - `exclusions`: all exclusions in force. The function returns True for a URL that at least one of them covers.
    - `ip`: the address of the host at its last visit, None if it is unknown.
    """
    address = None if ip is None else parse_address(ip)
    if address is not None and of_command.of_address(address) is not None:
        if exclusions.of_address(address) is not None:
            return lambda url: True
    elif not of_command.touches(host):
        return None
    return lambda url: exclusions.first(url, host) is not None


def _some(
    connection: Connection, command: CommandRun, host: Any, crawl: int, after: bytes, judge: Judge, chunk: Chunk
) -> bytes | None:
    """Exclude the covered URLs among the next URLs of a queue. If the command withdraws pages, delete their records.

    Read the URLs after the fingerprint `after`, at most `chunk.step`. Return the last fingerprint read, None at the
    end.
    """
    step = chunk.step
    keys: dict[str, Any] = {"crawl_id": crawl, "host_id": host.host_id}
    rows = connection.execute(_URLS, keys | {"after": after, "step": step}).all()
    chunk.take(len(rows))
    covered = [row for row in rows if judge(whole(row.url, host.host))]
    ended = [(row, OWNER) for row in covered if row.state in IN_QUEUE]
    end_queued(connection, command.partition, CrawlId(crawl), host.host_id, ended)
    if command.args["withdraw"] and covered:
        for statement in _WITHDRAW:
            statement.run(connection, [(crawl, host.host_id, bytes(row.fingerprint)) for row in covered])
    return bytes(rows[-1].fingerprint) if len(rows) == step else None


def _behind(host_id: int, crawl_id: int, fingerprint: bytes) -> int:
    """Return the progress number for a command that has done all URLs up to this host, crawl and fingerprint."""
    place = host_id << _CRAWL_BITS | crawl_id
    return place << _FINGERPRINT_BITS | int.from_bytes(fingerprint, "big")


def _place_of(after: int) -> tuple[int, int, bytes]:
    """Return the three parts of a progress number: a host id, a crawl id and a fingerprint.

    The command continues in the queue of this host and crawl, with the URLs after the fingerprint. An empty fingerprint
    means that the command begins with the first URL of the queue.

    `after`: a progress number from `_behind`, or 0 at first. The lowest 128 bits are the fingerprint. The next 64 bits
    are the crawl id. The bits above are the host id.
    """
    place, fingerprint = divmod(after, 1 << _FINGERPRINT_BITS)
    host_id, crawl_id = divmod(place, 1 << _CRAWL_BITS)
    return host_id, crawl_id, fingerprint.to_bytes(_FINGERPRINT_BITS // 8, "big") if fingerprint else b""
