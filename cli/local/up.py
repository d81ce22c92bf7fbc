"""`orb up`: run a whole cluster on this machine, with etcd and NATS, until Ctrl-C. The same command starts it again."""

import argparse
import asyncio
import json
import os
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cli.admin.key_issue import database_errors, first_key
from cli.local.addresses import FIRST_METRICS_PORT, FIRST_PORT, HOST, Address, chosen, is_free, parsed
from cli.local.cluster_folder import DEFAULT, ClusterFolder, Remembered, database_of, shown
from cli.local.crawl_args import program
from cli.local.fork_server import ForkServer, forking
from cli.terminal.exits import Exit, Usage, failure
from cli.terminal.progress import Silent, say
from shared.domain.ops.egress import network_problem

if TYPE_CHECKING:
    from cli.local.local_cluster import ClusterPlan, Engines

_EPILOG: Final = f"""\
DIR is by default {DEFAULT} in the current directory; it keeps everything, also the ports. The first admin key is shown
once, at the first start; `orb key create` makes another at any time. Ctrl-C ends everything in order (exit code 0), a
second Ctrl-C at once (3). Other ORB_* variables reach masters and workers. Exit codes: 2 wrong command, 4 the machine
lacks something or a process dies again and again; the message gives the cause."""

MAX_MEMBERS: Final = 64

IMPORTED: Final = (
    *("cli.local.member", "api.cluster_main", "workers.main", "workers.membership"),
    *("anyio._backends._asyncio", "httpcore", "prometheus_client.core", "uvicorn.lifespan.off"),  # at their first use
)
"""Modules of masters and workers. The fork server imports them while this command starts the engines."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("--masters", type=_count, default=2, metavar="N", help="masters (default: 2)")
    parser.add_argument("--workers", type=_count, default=2, metavar="N", help="workers (default: 2)")
    parser.add_argument("--dir", type=Path, default=DEFAULT, metavar="DIR", help="the cluster's folder")
    parser.add_argument(
        "--database",
        metavar="URL",
        help="a postgresql:// URL; a password is best left to PGPASSWORD or ~/.pgpass (default: SQLite in DIR)",
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="address of the first master; the others use the next ports "
        f"(default: 127.0.0.1:{FIRST_PORT} or the next free port)",
    )
    parser.add_argument(
        "--allow-net",
        action="append",
        type=_network,
        metavar="CIDR",
        help="private networks that specs may open, as for `orb worker`; repeatable (default: none)",
    )
    parser.add_argument(
        "--json", action="store_true", help="when ready, one JSON object on stdout with addresses, paths and the key"
    )


def run(arguments: argparse.Namespace) -> int:
    folder = ClusterFolder(arguments.dir)
    if arguments.masters < 1:
        raise Usage("--masters must be at least 1.")
    wanted = None if arguments.http is None else parsed(arguments.http)
    database = database_of(folder, arguments.database)
    folder.make()
    with folder.held() as lock, forking(IMPORTED) as forks:
        with folder.begun():
            up = _begun(folder, database, wanted, arguments)
        return up.run(lock, forks)


def _begun(folder: ClusterFolder, database: str, wanted: Address | None, arguments: argparse.Namespace) -> "_Up":
    """Prepare a start: choose the ports and store them, and create the first admin key if none was shown yet.

    No child process is started yet. `wanted` is the address for the API of the first master. None: choose a free port.
    Raise Environment if a port or the database cannot be used.
    """
    before = folder.remembered()
    if before is None or before.database != shown(folder, database):
        before = Remembered(database=shown(folder, database))
    with ExitStack() as holding:
        masters = chosen(holding, wanted, before.http, arguments.masters)
        beside = Address(HOST, 0) if wanted is not None and wanted.port == 0 else None
        workers = chosen(holding, beside, before.metrics, arguments.workers, first=FIRST_METRICS_PORT)
        nats_port = before.nats if before.nats and is_free(before.nats) else -1
    _tell_moved(before.http, masters)
    remembered = msgspec.structs.replace(
        before, http=_ports(masters, before.http), metrics=_ports(workers, before.metrics)
    )
    folder.remember(remembered)
    from cli.local.local_cluster import ClusterPlan
    from cli.local.logs import log_to

    plan = ClusterPlan(
        masters={f"master-{number}": place for number, place in enumerate(masters, 1)},
        workers={f"worker-{number}": place for number, place in enumerate(workers, 1)},
        database=database,
        nats_port=nats_port,
        allow_net=tuple(arguments.allow_net or ()),
    )
    log_to(folder.logs)
    up = _Up(folder, plan, remembered, as_json=arguments.json)
    up.prepare()
    return up


class _Up:
    """One start of `orb up`: runs the cluster, prints its addresses and key, and stores settings for the next start."""

    def __init__(self, folder: ClusterFolder, plan: "ClusterPlan", remembered: Remembered, *, as_json: bool) -> None:
        self._folder = folder
        self._plan = plan
        self._remembered = remembered
        self._as_json = as_json
        self._key: str | None = None
        self._was_ready = False

    def prepare(self) -> None:
        """Complete WARC files that workers did not finish, and create the first admin key if none was shown yet.

        Raise Environment if the database cannot be used.
        """
        from cli.local.finalize import repair

        say(f"starting {self._members()} in {self._folder.path}")
        repair(self._folder.archive)
        if self._remembered.key_shown_at is not None:
            return
        with database_errors(self._plan.database):
            self._key = asyncio.run(first_key(self._plan.database))

    def run(self, lock: int, forks: ForkServer | None) -> int:
        from cli.local.local_cluster import LocalCluster
        from cli.local.process_group import RunEnd

        try:
            cluster = LocalCluster(self._folder, self._plan, lock=lock, watch=Silent(), ready=self._ready, forks=forks)
            ending = asyncio.run(cluster.run())
        finally:
            if self._key is not None:  # it is not shown yet, and is stored nowhere else
                say(f"the first admin key, shown this once: {self._key}")
                self._remember_shown()
        if ending.end is RunEnd.FAILED:
            say(ending.message)
            if self._as_json and not self._was_ready:
                print(json.dumps(failure(Exit.ENVIRONMENT, ending.message)))
            say(f"the logs are in {_near(self._folder.logs)}; the same command goes on")
            return Exit.ENVIRONMENT
        say(f"stopped{' at once' if ending.at_once else ''}; the same command goes on")
        return Exit.RESUMABLE if ending.at_once else Exit.OK

    def _ready(self, engines: "Engines") -> None:
        self._remembered = msgspec.structs.replace(self._remembered, nats=engines.nats.port)
        self._folder.remember(self._remembered)
        facts = self._facts(engines)
        self._was_ready = True
        say(f"ready: {self._members()}, etcd and NATS, all on this machine")
        say("Ctrl-C ends them in order; the same command resumes the cluster")
        try:
            print(json.dumps(facts) if self._as_json else f"\n{self._text(facts)}\n", flush=True)
        except OSError:  # stdout is closed; the API serves all the same
            return
        if self._key is not None:
            self._key = None
            self._remember_shown()

    def _remember_shown(self) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._remembered = msgspec.structs.replace(self._remembered, key_shown_at=now)
        self._folder.remember(self._remembered)

    def _members(self) -> str:
        masters, workers = len(self._plan.masters), len(self._plan.workers)
        return f"{masters} master{'s' if masters > 1 else ''} and {workers} worker{'s' if workers != 1 else ''}"

    def _facts(self, engines: "Engines") -> dict[str, Any]:
        """Return the fields of `--json`: the addresses, paths, members and admin key of the cluster that is ready."""
        origins = [f"http://{place.reached_at}" for place in self._plan.masters.values()]
        own = self._remembered.database == self._folder.database.name
        return {
            "ready": True,
            "pid": os.getpid(),
            "api": origins,
            "docs": f"{origins[0]}/docs",
            "redoc": f"{origins[0]}/redoc",
            "openapi": f"{origins[0]}/openapi.json",
            "metrics": [
                *(f"{origin}/metrics" for origin in origins),
                *(f"http://{place}/metrics" for place in self._plan.workers.values()),
            ],
            "admin_key": self._key,
            "key_shown_at": self._remembered.key_shown_at,
            "etcd": engines.etcd,
            "nats": engines.nats.url,
            "nats_passwords_in": os.fspath(self._folder.nats / "nats.conf"),
            "database": os.fspath(self._folder.database) if own else self._remembered.database,
            "dir": os.fspath(self._folder.path),
            "archive": os.fspath(self._folder.archive),
            "logs": os.fspath(self._folder.logs),
            "masters": list(self._plan.masters),
            "workers": list(self._plan.workers),
        }

    def _text(self, facts: dict[str, Any]) -> str:
        """Return the fields of `_facts` as text for the terminal, one label and value per line."""
        another = shlex.join([program(), "key", "create", "--dir", _near(self._folder.path)])
        if facts["admin_key"] is not None:
            key = [facts["admin_key"], "is shown this once: keep it"]
        elif facts["key_shown_at"] is not None:
            key = [f"was shown at the first start ({facts['key_shown_at']})"]
        else:
            key = ["is older than this folder: the database has its keys already"]
        lines = {
            "API": [f"{origin}/v1" for origin in facts["api"]],
            "Swagger UI": [facts["docs"]],
            "ReDoc": [facts["redoc"]],
            "Metrics": facts["metrics"],
            "Admin key": [*key, f"another: {another}"],
            "Database": [facts["database"]],
            "Logs": [facts["logs"]],
        }
        return "\n".join(
            f"  {label if number == 0 else '':<12}{fact}"
            for label, values in lines.items()
            for number, fact in enumerate(values)
        )


def _tell_moved(before: Sequence[int], places: Sequence[Address]) -> None:
    for number, (old, place) in enumerate(zip(before, places, strict=False), 1):
        if old != place.port:
            say(f"master-{number} was at port {old} before and listens at {place.port} from now on")


def _ports(places: Sequence[Address], before: Sequence[int]) -> tuple[int, ...]:
    """Return the ports to store for the next start, in the order of the members.

    `places` are the addresses of the members of this start. `before` are the ports that the last start stored. If the
    last start had more members, keep the ports of the additional members, so that they get the same ports again.
    """
    # Example: places with the ports 1 and 2, and before (7, 8, 9), give (1, 2, 9).
    return (*(place.port for place in places), *before[len(places) :])


def _near(path: Path) -> str:
    """Return a path inside the current directory as a relative path. Return any other path unchanged."""
    relative = os.path.relpath(path)
    return os.fspath(path) if relative.startswith("..") else relative


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) <= MAX_MEMBERS:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number up to {MAX_MEMBERS}, got {text!r}")


def _network(text: str) -> str:
    if problem := network_problem(text):
        raise argparse.ArgumentTypeError("{} ({})".format(*problem))
    return text
