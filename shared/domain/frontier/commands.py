"""The commands that operators send to the frontier: their kinds and arguments."""

from enum import StrEnum
from typing import Any, Final

from shared.domain.ids import CrawlId, Revision

SEED_DELETED: Final = "seed_deleted"
"""The exclusion reason of a URL that an operator removed from a crawl's seeds before it was fetched."""

SEED_WITHDRAWN: Final = "seed_withdrawn"
"""The exclusion reason of a URL that left the seed sets of its crawl before it was fetched. A link to it queues it
again.
"""

GREATEST: Final = b"\xff" * 16
"""The greatest fingerprint."""


class CommandKind(StrEnum):
    """The kinds of command that operators and the leader send to the owners of partitions.

    HOST_POLICY, UNBLOCK_HOST and EXCLUDE are for all crawls. Every other command is for one crawl.

    - RETRY_FAILED queues a crawl's failed URLs again.
    - RETRY_UNANSWERED queues only those failed URLs again that got no HTTP status, such as those of a host that was
      given up.
    - DELETE removes every row of a crawl.
    - HOST_POLICY applies the present policy of `host`.
    - UNBLOCK_HOST ends the back-off of `host` after its own 429s, 503s and failures. It ends no block of a policy.
    - DELETE_SEEDS removes seeds from the queue. A seed that was fetched before is kept. Without `all`, the command
      removes the seeds at `places`, each (host, fingerprint). With `all`, it removes all seeds except those at
      `places`. Seeds in shards that no worker has begun are recalled first.
    - DELETE_SEEDS_BETWEEN removes every seed whose fingerprint is greater than `above` and at most `upto`, except those
      at `places`. It replaces DELETE_SEEDS with `all` if `places` is too long for one message. The fingerprints are
      then divided into ranges, with one command for each range.
    - SEED_SET withdraws each URL at `places`, unless a seed set of the crawl still contains the URL. If one change of a
      seed set adds some seeds and removes others, an owner first stores the added seeds and then applies SEED_SET.
    - RECRAWL makes stored pages wait for their next fetch, by the rules of the crawl's present spec. If there are no
      such rules, each page waits until `every_ms` after its last fetch. With `every_ms` 0 the command does the
      opposite: a stored page that waits for its next fetch gets the state DONE.
    - EXCLUDE excludes the queued URLs that the exclusion `target` covers. `revision` is the first revision of the
      exclusions that contains `target`. With `withdraw` it also removes the stored data of such URLs from pages,
      exports and items.
    - RESCOPE applies a crawl's scope, changed at `revision`, to the URLs found before. It excludes queued URLs that the
      new scope does not admit. It queues again URLs that the earlier scope excluded and the new scope admits. It also
      queues again URLs that the page limit of their host excluded, if the host may now give more pages.
    - REDISCOVER reads the links of stored pages again, and queues those that the scope, widened at `revision`, admits.
    - REPLAY queues a dead letter again, DISCARD deletes it. `letter` is its number, or 0 for all dead letters of the
      crawl.
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
    """Return `kind` as a CommandKind. Raise ValueError with the reason if it is unknown, or if `args` do not fit it."""
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
    """Return the id of the command that collects the garbage of a deleted crawl: `delete-7` for crawl 7.

    This is the command DELETE, which removes all rows of the crawl. If the command is sent again, it has the same id.
    """
    return f"delete-{crawl_id}"


def recrawl_of(crawl_id: CrawlId, revision: Revision) -> str:
    """Return the id of the RECRAWL command that the leader sends for a revision of a crawl."""
    return f"recrawl-{crawl_id}-{revision}"


def retry_of(crawl_id: CrawlId, revision: Revision) -> str:
    """Return the id of the RETRY_UNANSWERED command that the leader sends for a revision of a crawl."""
    return f"revision-{crawl_id}-{revision}"
