"""What masters and workers may do in NATS: the accounts and users in the configuration of a server.

The streams are in the masters' account. The workers of each pool have an account of their own. From there they reach
the masters' account only by the subjects of `_exclusive` and `_shared`.

The permissions of users alone would not be enough. JetStream sends its answer to any subject that a request names as
its reply. So a worker could delete a stream by the subject of a reply. An account gets answers on its own subjects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shared.adapters.nats.jetstream import API
from shared.adapters.nats.streams import ROBOTS_STREAM, ROBOTS_SUBJECT, VISITS_CONSUMER
from shared.wire import subjects
from shared.wire.items import EVERY_ITEM

MASTERS: Final = "ORB"
"""The account of the masters, which has all streams."""


@dataclass(frozen=True, slots=True)
class NatsUser:
    """A user of NATS: of masters, or of the workers of `pool`.

    A worker's user receives answers for `worker` alone, the `id` of that worker. If it is empty, all workers of the
    pool may share the user, and read each other's answers. Without a `password`, the server must find the user's name
    in a certificate (`verify_and_map`).
    """

    name: str
    pool: str = ""
    worker: str = ""
    password: str = field(default="", repr=False)


def accounts_of(users: Sequence[NatsUser]) -> dict[str, Any]:
    """Return the `accounts` of a server's configuration with these users. At least one must be of masters."""
    pools = sorted({user.pool for user in users if user.pool})
    exports = [{**each, "accounts": [_account(pool)]} for pool in pools for each in _exclusive(pool)]
    shared = [_account(pool) for pool in pools]
    exports += [{**each, "accounts": shared} for each in _shared() if shared]
    masters = {
        "jetstream": "enabled",
        "users": [_login(user) for user in users if not user.pool],
        "exports": exports,
    }
    return {MASTERS: masters} | {_account(pool): _workers(pool, users) for pool in pools}


def _workers(pool: str, users: Sequence[NatsUser]) -> dict[str, Any]:
    """Return the account of a pool's workers."""
    exports = [*_exclusive(pool), *_shared()]
    imports = [
        {kind: {"account": MASTERS, "subject": export[kind]}}
        for export in exports
        for kind in ("service", "stream")
        if kind in export
    ]
    return {
        "users": [{**_login(user), "permissions": worker_permissions(user)} for user in users if user.pool == pool],
        "imports": imports,
    }


def worker_permissions(user: NatsUser) -> dict[str, Any]:
    """Return what a worker's user may publish, and to what it may subscribe, in the account of its pool."""
    exports = [*_exclusive(user.pool), *_shared()]
    inbox = f"{subjects.inbox(user.worker)}.>" if user.worker else f"{subjects.INBOX}.>"
    return {
        "publish": {"allow": [each["service"] for each in exports if "service" in each]},
        "subscribe": {"allow": [*(each["stream"] for each in exports if "stream" in each), inbox]},
    }


def _exclusive(pool: str) -> list[dict[str, Any]]:
    """Return the exports for the workers of one pool: to pull its URL shards, and to acknowledge them."""
    place = f"{subjects.visits_stream(pool)}.{VISITS_CONSUMER}"
    return [
        {"service": f"{API}CONSUMER.MSG.NEXT.{place}", "response_type": "stream"},
        {"service": f"$JS.ACK.{place}.>"},
    ]


def _shared() -> list[dict[str, Any]]:
    """Return the exports for the workers of every pool."""
    return [
        {"service": subjects.EVERY_OWNER},
        *({"service": subject} for subject in subjects.REPORT_SUBJECTS),
        {"service": EVERY_ITEM},
        {"service": subjects.WORKER_STATUS},
        {"service": f"{ROBOTS_SUBJECT}>"},
        {"service": f"{API}DIRECT.GET.{ROBOTS_STREAM}.{ROBOTS_SUBJECT}>"},
        {"stream": subjects.STATUS_WANTED},
    ]


def _account(pool: str) -> str:
    """Return the name of the account of a pool's workers."""
    return f"WORKERS_{pool}"


def _login(user: NatsUser) -> Mapping[str, Any]:
    return {"user": user.name} | ({"password": user.password} if user.password else {})
