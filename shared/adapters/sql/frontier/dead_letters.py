"""Replays and discards dead letters in transactions that have passed the fence, and reads them for their owner.

A letter of kind `url` is a URL that was given up. Any other letter is a whole message, which its owner publishes again.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, text

from shared.adapters.sql.engine.chunks import UNMARKED
from shared.adapters.sql.frontier.apply import add_counters, add_tallies
from shared.adapters.sql.frontier.url_flags import NOT_QUEUED_AGAIN, RANK_NOW
from shared.domain.frontier.states import queued_as
from shared.domain.frontier.store_model import CommandRun, MessageDeadLetter
from shared.domain.ids import CrawlId
from shared.domain.web.url import locate

_LETTERS_A_CHUNK = 500

_WHICH = "partition = :partition AND id > :after AND id <= :upto"
_ONE = f"{_WHICH} AND id = :letter"
_ALL = f"{_WHICH} AND crawl_id = :crawl_id"
_URL = "kind = 'url'"
_FOUND = {
    (one, urls): text(
        f"SELECT id, kind, crawl_id, url FROM dead_letters WHERE {_ONE if one else _ALL}"
        f"{f' AND {_URL}' if urls else ''} ORDER BY id LIMIT :max_count"
    )
    for one in (True, False)
    for urls in (True, False)
}
_MESSAGES = {
    one: text(
        f"SELECT id, kind, payload FROM dead_letters WHERE {_ONE if one else _ALL} AND NOT {_URL}"
        " AND payload IS NOT NULL ORDER BY id LIMIT :max_count"
    )
    for one in (True, False)
}
_NEWEST = text("SELECT coalesce(max(id), 0) FROM dead_letters")
_FORGET = text("DELETE FROM dead_letters WHERE id IN :ids").bindparams(bindparam("ids", expanding=True))

_HOST = text("SELECT host_id FROM hosts WHERE host = :host AND partition = :partition")
_PLACE = f"crawl_id = :crawl_id AND host_id = :host_id AND fingerprint = :fingerprint AND state = 4 AND {UNMARKED}"
_FAILED = text(f"SELECT coalesce(reason, '') AS reason, {NOT_QUEUED_AGAIN} AS flags FROM urls WHERE {_PLACE}")
_QUEUE_AGAIN = text(
    f"UPDATE urls SET state = 0, attempts = 0, reason = NULL, flags = {NOT_QUEUED_AGAIN},"
    f" rank = {RANK_NOW} WHERE {_PLACE}"
)
_QUEUE = text("UPDATE queues SET queued = queued + 1 WHERE crawl_id = :crawl_id AND host_id = :host_id")
_FRESH_HOST = text("UPDATE hosts SET failures = 0, unreachable = 0, silent_since_ms = 0 WHERE host_id = :host_id")


def replay(connection: Connection, command: CommandRun, sent: Sequence[int], upto: int, now_ms: int) -> int | None:
    """Apply one chunk of a replay of dead letters. Return the number of the letter after which the next chunk begins.

    The result is None after the last chunk. The caller has already published the messages of this chunk again.

    - `sent`: the numbers of the letters of these messages. This call deletes the letters.
    - `upto`: the greatest number that a letter of this chunk may have. Later letters stay for the next chunks.

    For each letter of a URL, this call queues the URL again with fresh attempts, and deletes the letter. If the crawl
    has no such failed URL, or an owner changed the URL after it accepted the command, only the letter is deleted.

    One call takes at most 500 letters of URLs, in the order of their numbers. If it takes 500, the next chunk begins
    after the last of them, and otherwise after `upto`. For example, `upto` is 900. If the 500th letter of a URL has the
    number 700, the result is 700. With only 20 letters of URLs up to 900, the result is 900.
    """
    # Without `upto`, the URLs of this chunk could lie beyond messages that are not published yet. The next chunk, which
    # begins after the last URL, would skip these messages.
    rows = _rows(connection, command, upto, urls=True)
    tallies: dict[tuple[CrawlId, str, str], int] = defaultdict(int)
    queued: dict[CrawlId, Counter[str]] = defaultdict(Counter)
    for row in rows:
        location = None if row.url is None or row.crawl_id is None else locate(row.url)
        if location is None:
            continue
        crawl_id = CrawlId(row.crawl_id)
        host_id = connection.execute(_HOST, {"host": location.host, "partition": command.partition}).scalar()
        place = {"crawl_id": crawl_id, "host_id": host_id, "fingerprint": location.fingerprint}
        place["number"] = command.number
        failed = connection.execute(_FAILED, place).first()
        if failed is None:
            continue
        connection.execute(_QUEUE_AGAIN, place | {"now_ms": now_ms})
        connection.execute(_QUEUE, {"crawl_id": crawl_id, "host_id": host_id})
        connection.execute(_FRESH_HOST, {"host_id": host_id})
        tallies[crawl_id, "failed", failed.reason] -= 1
        queued[crawl_id].update(filter(None, ("queued", queued_as(failed.flags))))
    add_tallies(connection, command.partition, tallies)
    for crawl_id, counts in queued.items():
        add_counters(connection, crawl_id, command.partition, {**counts, "failed": -counts["queued"]})
    _forget(connection, [*sent, *(row.id for row in rows)])
    last = rows[-1].id if len(rows) == _LETTERS_A_CHUNK else upto
    return last if last < command.through else None


def discard(connection: Connection, command: CommandRun) -> int | None:
    """Delete one chunk of the dead letters that the command selects. Return where the next chunk begins, or None.

    The URLs of the letters stay failed.
    """
    ids = [row.id for row in _rows(connection, command, command.through, urls=False)]
    _forget(connection, ids)
    return ids[-1] if len(ids) == _LETTERS_A_CHUNK else None


def newest_letter(connection: Connection) -> int:
    """Return the greatest number of a dead letter in all partitions, or 0. Later letters get greater numbers."""
    return int(connection.execute(_NEWEST).scalar_one())


def message_letters(connection: Connection, command: CommandRun, max_count: int) -> Sequence[MessageDeadLetter]:
    """Return up to `max_count` dead letters of messages that a REPLAY selects, with numbers above `command.after`.

    The owner publishes the messages again (Store.message_letters).
    """
    which = _keys(command, command.through) | {"max_count": max_count}
    rows = connection.execute(_MESSAGES[bool(command.args["letter"])], which)
    return [MessageDeadLetter(row.id, row.kind, bytes(row.payload)) for row in rows]


def _rows(connection: Connection, command: CommandRun, upto: int, *, urls: bool) -> Sequence[Row[Any]]:
    query = _FOUND[bool(command.args["letter"]), urls]
    return connection.execute(query, _keys(command, upto) | {"max_count": _LETTERS_A_CHUNK}).all()


def _keys(command: CommandRun, upto: int) -> dict[str, object]:
    keys: dict[str, object] = {"partition": command.partition, "after": command.after, "upto": upto}
    letter = command.args["letter"]
    return keys | ({"letter": letter} if letter else {"crawl_id": command.crawl_id})


def _forget(connection: Connection, ids: Sequence[int]) -> None:
    if ids:
        connection.execute(_FORGET, {"ids": list(ids)})
