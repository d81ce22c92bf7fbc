"""Operators' verbs on the frontier's rows: what each does and needs."""

from enum import StrEnum
from typing import Any, Final

from shared.domain.ids import CrawlId

SEED_DELETED: Final = "seed_deleted"
"""Why a URL is excluded that an operator took from a crawl's seeds before it was fetched."""


GREATEST: Final = b"\xff" * 16
"""No fingerprint is greater."""


class CommandKind(StrEnum):
    """RETRY_FAILED queues a crawl's failed URLs again, RETRY_UNANSWERED only those that failed without an HTTP status
    (no connection, refused by our own rules, given up with their host); DELETE removes every row of a crawl;
    BLOCK_HOST (`host`, `until_ms`, 0 to unblock) and HOST_DELAY (`host`, `delay_ms`) act on a host over all crawls.

    DELETE_SEEDS takes seeds that were never fetched out of the queue: those at `places`, each (host, fingerprint), or
    with `all` every one but those; what was sent out and nobody has begun is called back first. DELETE_SEEDS_BETWEEN
    does the latter among the fingerprints behind `above` and up to `upto` alone, so that any number may stay: what one
    message cannot name, several do.
    REPLAY undoes the giving up of dead letters and DISCARD forgets them: the one numbered `letter`, with 0 all of the
    crawl.
    """

    RETRY_FAILED = "retry_failed"
    RETRY_UNANSWERED = "retry_unanswered"
    DELETE = "delete"
    BLOCK_HOST = "block_host"
    HOST_DELAY = "host_delay"
    DELETE_SEEDS = "delete_seeds"
    DELETE_SEEDS_BETWEEN = "delete_seeds_between"
    REPLAY = "replay"
    DISCARD = "discard"


_ARGUMENTS: dict[CommandKind, dict[str, type]] = {
    CommandKind.RETRY_FAILED: {},
    CommandKind.RETRY_UNANSWERED: {},
    CommandKind.DELETE: {},
    CommandKind.BLOCK_HOST: {"host": str, "until_ms": int},
    CommandKind.HOST_DELAY: {"host": str, "delay_ms": int},
    CommandKind.DELETE_SEEDS: {"all": bool, "places": list},
    CommandKind.DELETE_SEEDS_BETWEEN: {"places": list, "above": bytes, "upto": bytes},
    CommandKind.REPLAY: {"letter": int},
    CommandKind.DISCARD: {"letter": int},
}


def check_command(kind: str, args: dict[str, Any]) -> CommandKind:
    """The kind, if `args` are its arguments; ValueError says what is wrong."""
    if kind not in CommandKind.__members__.values():
        raise ValueError(f"no command {kind!r}; there are {', '.join(CommandKind)}")
    known = CommandKind(kind)
    for name, expected in _ARGUMENTS[known].items():
        if not isinstance(args.get(name), expected):
            raise ValueError(f"command {kind} needs {name} ({expected.__name__})")
    for place in args["places"] if "places" in _ARGUMENTS[known] else ():
        match place:
            case [str(), bytes()]:
                pass
            case _:
                raise ValueError(f"command {kind} needs places of a host and a fingerprint, not {place!r}")
    return known


def collection_of(crawl_id: CrawlId) -> str:
    """The id of the command that removes a deleted crawl's rows: whoever sends it, it is the same one."""
    return f"delete-{crawl_id}"
