"""The permissions of masters and workers in NATS: accounts and users for the configuration of a server.

The streams are in the masters' account. Each pool has an account for its workers. Workers can use only those subjects
of the masters' account that the masters' account exports to the pool's account.

The separate accounts prevent an attack. The client that sends a request to JetStream chooses the subject of the answer.
In a common account, a worker could choose a subject that only masters may use. JetStream would then send its answer
to this subject.
"""

# For example, the subject could belong to JetStream's own API. The answer would then act as a request to delete a
# stream.

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
    """A user of NATS for masters (empty `pool`), or for workers of `pool`.

    - `worker`: the id of the worker that uses this login. Empty: all workers of the pool use the login, and can read
      each other's answers.
    - `password`: if it is empty, the server must take the user's name from a client certificate (`verify_and_map`).
    """

    name: str
    pool: str = ""
    worker: str = ""
    password: str = field(default="", repr=False)


def accounts_of(users: Sequence[NatsUser]) -> dict[str, Any]:
    """Return the `accounts` section of a NATS server's configuration for these users.

    One of them must be a master's.
    """
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
    """Return the configuration of the account for a pool's workers: its users, and what it imports from the masters."""
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
    """Return the subjects on which a worker's user may publish, and those to which it may subscribe.

    The result has the form of `permissions` in a server's configuration.
    """
    exports = [*_exclusive(user.pool), *_shared()]
    inbox = f"{subjects.inbox(user.worker)}.>" if user.worker else f"{subjects.INBOX}.>"
    return {
        "publish": {"allow": [each["service"] for each in exports if "service" in each]},
        "subscribe": {"allow": [*(each["stream"] for each in exports if "stream" in each), inbox]},
    }


def _exclusive(pool: str) -> list[dict[str, Any]]:
    """Return the subjects that masters export only to workers of `pool`: to pull and acknowledge its URL shards."""
    place = f"{subjects.visits_stream(pool)}.{VISITS_CONSUMER}"
    return [
        {"service": f"{API}CONSUMER.MSG.NEXT.{place}", "response_type": "stream"},
        {"service": f"$JS.ACK.{place}.>"},
    ]


def _shared() -> list[dict[str, Any]]:
    """Return the subjects that the masters export to the workers of every pool, such as those of reports."""
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
    """Return the name of the account for a pool's workers."""
    return f"WORKERS_{pool}"


def _login(user: NatsUser) -> Mapping[str, Any]:
    return {"user": user.name} | ({"password": user.password} if user.password else {})
