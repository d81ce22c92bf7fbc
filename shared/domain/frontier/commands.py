"""The commands that operators send to the frontier: their kinds and arguments."""

from enum import StrEnum
from typing import Any, Final

from shared.domain.ids import CrawlId

SEED_DELETED: Final = "seed_deleted"
"""The exclusion reason of a URL that an operator removed from a crawl's seeds before it was fetched."""

SEED_WITHDRAWN: Final = "seed_withdrawn"
"""The exclusion reason of a URL that has left the seed sets of its crawl before it was fetched. A link queues it again.
"""

GREATEST: Final = b"\xff" * 16
"""The greatest fingerprint."""


class CommandKind(StrEnum):
    """The kinds of command.

    RETRY_FAILED queues a crawl's failed URLs again. RETRY_UNANSWERED queues only those that failed without an HTTP
    status: no connection, refused by the egress rules, or given up with their host. DELETE removes every row of a
    crawl. HOST_POLICY applies the present policy of `host`. UNBLOCK_HOST ends the back-off of `host` after its own
    429s, 503s and failures, but no block of a policy. Both act for all crawls.

    DELETE_SEEDS removes seeds that were never fetched from the queue: those at `places`, each (host, fingerprint). With
    `all` it removes every seed except those. Seeds that were sent out, but that no worker has begun, are recalled
    first. DELETE_SEEDS_BETWEEN removes every seed except `places` among the fingerprints greater than `above` and up to
    `upto`. Several such commands can keep more seeds than one message can name.

    SEED_SET withdraws those of the URLs at `places` that no seed set of the crawl has any more: URLs that have left a
    set. It is sent behind the seeds that a set has got, so once it is applied they are, too.

    RECRAWL makes stored pages wait for their next fetch, `every_ms` after their last one. With 0 it makes those that
    wait done.
    EXCLUDE excludes the queued URLs that `target`, an exclusion, covers, for all crawls. `revision` is that of the
    exclusions with it. With `withdraw` it also takes what is stored of such URLs from pages, exports and items.
    RESCOPE applies a crawl's scope, changed at `revision`, to the URLs found before. Those that it does not admit leave
    the queue. Those that only an earlier scope excluded are queued again. So are those that a lower page limit of their
    host excluded.
    REDISCOVER finds what the scope of a crawl, widened at `revision`, admits of the links of stored pages.

    REPLAY queues dead letters again, DISCARD deletes them: the one numbered `letter`, or all of the crawl if it is 0.
    """

    RETRY_FAILED = "retry_failed"
    RETRY_UNANSWERED = "retry_unanswered"
    DELETE = "delete"
    HOST_POLICY = "host_policy"
    UNBLOCK_HOST = "unblock_host"
    DELETE_SEEDS = "delete_seeds"
    DELETE_SEEDS_BETWEEN = "delete_seeds_between"
    SEED_SET = "seed_set"
    RECRAWL = "recrawl"
    EXCLUDE = "exclude"
    RESCOPE = "rescope"
    REDISCOVER = "rediscover"
    REPLAY = "replay"
    DISCARD = "discard"


_ARGUMENTS: dict[CommandKind, dict[str, type]] = {
    CommandKind.RETRY_FAILED: {},
    CommandKind.RETRY_UNANSWERED: {},
    CommandKind.DELETE: {},
    CommandKind.HOST_POLICY: {"host": str},
    CommandKind.UNBLOCK_HOST: {"host": str},
    CommandKind.DELETE_SEEDS: {"all": bool, "places": list},
    CommandKind.DELETE_SEEDS_BETWEEN: {"places": list, "above": bytes, "upto": bytes},
    CommandKind.SEED_SET: {"places": list},
    CommandKind.RECRAWL: {"every_ms": int},
    CommandKind.EXCLUDE: {"target": str, "revision": int, "withdraw": bool},
    CommandKind.RESCOPE: {"revision": int},
    CommandKind.REDISCOVER: {"revision": int},
    CommandKind.REPLAY: {"letter": int},
    CommandKind.DISCARD: {"letter": int},
}


def check_command(kind: str, args: dict[str, Any]) -> CommandKind:
    """Return `kind` as a CommandKind if `args` are its arguments. Raise ValueError with the reason if they are not."""
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
    """Return the id of the command that removes a deleted crawl's rows. It is the same for every sender."""
    return f"delete-{crawl_id}"
