"""Operators' verbs on the frontier's rows: what each does and needs."""

from enum import StrEnum
from typing import Any


class CommandKind(StrEnum):
    """RETRY_FAILED queues a crawl's failed URLs again, RETRY_UNANSWERED only those that failed without an HTTP status
    (no connection, refused by our own rules, given up with their host); DELETE removes every row of a crawl;
    BLOCK_HOST (`host`, `until_ms`, 0 to unblock) and HOST_DELAY (`host`, `delay_ms`) act on a host over all crawls.
    """

    RETRY_FAILED = "retry_failed"
    RETRY_UNANSWERED = "retry_unanswered"
    DELETE = "delete"
    BLOCK_HOST = "block_host"
    HOST_DELAY = "host_delay"


_ARGUMENTS: dict[CommandKind, dict[str, type]] = {
    CommandKind.RETRY_FAILED: {},
    CommandKind.RETRY_UNANSWERED: {},
    CommandKind.DELETE: {},
    CommandKind.BLOCK_HOST: {"host": str, "until_ms": int},
    CommandKind.HOST_DELAY: {"host": str, "delay_ms": int},
}


def check_command(kind: str, args: dict[str, Any]) -> CommandKind:
    """The kind, if `args` are its arguments; ValueError says what is wrong."""
    if kind not in CommandKind.__members__.values():
        raise ValueError(f"no command {kind!r}; there are {', '.join(CommandKind)}")
    known = CommandKind(kind)
    for name, expected in _ARGUMENTS[known].items():
        if not isinstance(args.get(name), expected):
            raise ValueError(f"command {kind} needs {name} ({expected.__name__})")
    return known
