"""The cluster that is struck: real processes, each member with a link of its own to each engine, and what can be seen
of its health."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import asyncpg
import psutil

from shared.adapters.local.suffixes import installed_list
from shared.adapters.sql.engine.postgres import PostgresStore
from shared.adapters.sql.frontier.store import SqliteStore, SqlStore
from shared.domain.errors import Transient
from tests.support.engines.etcd import EtcdServer, coordinator, leader_of
from tests.support.engines.postgres import PostgresServer
from tests.support.faults import audit_triggers, disks, member_controls
from tests.support.faults.link import Links, links
from tests.support.faults.member_controls import MemberControls
from tests.support.faults.message_faults import MessageListener
from tests.support.faults.plan import FaultTarget
from tests.support.processes.cluster import KEYS, PARTITIONS, Cluster, Member
from tests.support.processes.cluster import cluster as opened

MASTERS: Final = ("m1", "m2")
WORKERS: Final = ("w1", "w2", "w3")
TTL_S: Final = "2"
"""Which most holds of a plan are short of, and the others beyond."""
GRANT_S: Final = "3"
"""As short as an answer may take (ANSWER_S), so that grants do expire under faults and are given anew; one that was
answered after its worker stopped waiting counts for nothing."""
VISITS: Final = "8"
"""Of each worker. All of them hold fewer than a crawl that is to have its share of the pool could use."""
ELECTION_MS: Final = 300
"""Of etcd's three servers."""
STORE_MIB: Final = 368
"""What the broker may store; 288 of it are set apart for robots.txt, events and items, and are there to be filled all
the same."""
QUOTA_MIB: Final = 48
"""What each of etcd's servers may store."""
EVENTS_BYTES: Final = str(16 << 20)
ITEMS_BYTES: Final = str(16 << 20)
SMALL_DISK: Final = "w3"
"""The worker whose archive lies on a disk of its own, which can be filled."""
WHOLE_S: Final = 25.0
"""How long a cluster may take to be whole again before a run is over; the figures of a report are far below. Less than
the half minute after which a view is compared with etcd in any case: a watch that is gone shall not pass for a slow
recovery."""
START_S: Final = 90.0
"""How long a process may take to start or to end, on whatever machine."""


@dataclass(frozen=True, slots=True)
class AppliedProgress:
    """Outcomes applied, and the owner term of each partition."""

    done: int
    terms: tuple[int, ...]


@dataclass
class FaultedCluster:
    """`served` is None where the database is a file; `tables` is the disk of what it serves."""

    cluster: Cluster
    links: Links
    post: MessageListener
    served: PostgresServer | None
    tables: Path | None
    no_disk: str | None
    """Why there is no disk to fill."""
    went_on_ns: list[int] = field(default_factory=list)
    quiet: threading.Lock = field(default_factory=threading.Lock)
    """While it is held, clients write nothing."""
    starts: int = 0
    dials: dict[str, MemberControls] = field(default_factory=dict)

    def start(self, name: str) -> Member:
        """A member, anew if it was there before; it has the same name, folder and links."""
        self.starts += 1
        cluster, nats = self.cluster, urlsplit(self.cluster.broker.endpoint.url)
        broker = self.links.between(name, FaultTarget.BROKER, f"127.0.0.1:{nats.port}")
        etcds = (self.links.between(name, FaultTarget.ETCD, endpoint) for endpoint in cluster.endpoints)
        turned = cluster.folder / f"{name}.dials"
        self.dials[name] = MemberControls(turned)
        settings = {
            member_controls.VARIABLE: str(turned),
            "ORB_ETCD": ",".join(f"http://127.0.0.1:{port}" for port in etcds),
            "ORB_NATS_URL": f"nats://127.0.0.1:{broker}",
            "ORB_MEMBER_TTL_S": TTL_S,
            "ORB_GRANT_S": GRANT_S,
            "ORB_ACK_WAIT_S": GRANT_S,
        }
        if name in WORKERS:
            return cluster.worker(name, **settings, ORB_MAX_VISITS=VISITS)
        archives = [str(cluster.folder / worker / "archive") for worker in WORKERS]
        settings |= {
            "ORB_EVENTS_BYTES": EVENTS_BYTES,
            "ORB_ITEMS_BYTES": ITEMS_BYTES,
            "ORB_ARCHIVE": archives[0],
            member_controls.ARCHIVES: os.pathsep.join(archives),
        }
        if self.served is not None:
            settings["ORB_DATABASE"] = self._database(name, self.served)
        return cluster.master(name, **settings)

    def _database(self, name: str, served: PostgresServer) -> str:
        assert self.cluster.url is not None
        port = self.links.between(name, FaultTarget.DATABASE, f"unix:{served.socket}")
        return f"postgresql://orb@127.0.0.1:{port}{urlsplit(self.cluster.url).path}?{audit_triggers.MEMBER}={name}"

    def named(self, who: FaultTarget, draw: int) -> str:
        """Return the member that has this role now; any master while there is no leader."""
        if who is FaultTarget.WORKER:
            return WORKERS[draw % len(WORKERS)]
        try:
            leader = self.cluster.leader() or MASTERS[draw % 2]
        except Transient:  # etcd has not recovered yet
            leader = MASTERS[draw % 2]
        return leader if who is FaultTarget.LEADER else next(name for name in MASTERS if name != leader)

    def pids(self, who: FaultTarget, name: str) -> list[int]:
        """The processes of a member or an engine."""
        match who:
            case FaultTarget.LEADER | FaultTarget.FOLLOWER | FaultTarget.WORKER:
                return [self.cluster.members[name].process.pid]
            case FaultTarget.ETCD:
                found = self.etcd_leader().embedded.pid
            case FaultTarget.BROKER:
                found = self.cluster.broker.embedded.pid
            case FaultTarget.DATABASE:
                assert self.served is not None
                found = self.served.pid
        assert found is not None
        return [found, *(child.pid for child in psutil.Process(found).children(recursive=True))]

    def etcd_leader(self) -> EtcdServer:
        """The one of etcd's servers that leads."""

        async def found() -> EtcdServer:
            async with asyncio.timeout(START_S):
                return await leader_of(self.cluster.etcds)

        return asyncio.run(found())

    # --- health -------------------------------------------------------------------------------------------------------

    def standing(self) -> "AppliedProgress":
        """What has been done so far, and under which terms."""
        [(done,)] = self.cluster.query("SELECT coalesce(sum(fetches), 0) FROM crawl_counters")
        return AppliedProgress(int(done), tuple(self.cluster.terms()))

    def whole(self, since: "AppliedProgress", bereft: frozenset[int], dead: str | None = None) -> bool:
        """One leads, every partition is owned, the bereft ones under a later term than then, all but the dead are
        registered, and owners have applied outcomes since."""
        try:
            now = self.standing()
            return (
                now.done > since.done
                and all(now.terms[partition] > since.terms[partition] for partition in bereft)
                and self.cluster.leader() is not None
                and "" not in self.cluster.owners()
                and asyncio.run(self._registered()) >= {*MASTERS, *WORKERS} - {dead}
            )
        except (OSError, Transient, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False

    def described(self) -> str:
        """Describe the current state, to explain why the cluster is not whole."""
        try:
            leader, owned = self.cluster.leader(), self.cluster.assigned()
            return f"{self.standing()} under {leader}, {asyncio.run(self._registered())} registered, owners {owned}"
        except (OSError, Transient, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            return f"nothing that could be seen: {error!r}"

    def up(self, dead: str | None = None) -> bool:
        """Whether etcd knows all members but the dead one."""
        try:
            return asyncio.run(self._registered()) >= {*MASTERS, *WORKERS} - {dead}
        except Transient:
            return False

    def back(self, name: str) -> bool:
        """Whether a member that was started anew is registered. A worker that finds no broker within 10 s gives up, for
        its supervisor to start it again, which is this cluster."""
        if name in WORKERS and self.cluster.members[name].process.poll() is not None:
            self.start(name)
        return self.registered(name)

    def registered(self, name: str) -> bool:
        """Whether etcd knows the member."""
        try:
            return name in asyncio.run(self._registered())
        except Transient:
            return False

    async def _registered(self) -> set[str]:
        async with coordinator(*self.cluster.endpoints, patient=False) as opened:
            masters, workers = await opened.list(KEYS.masters), await opened.list(KEYS.workers)
        named = [*map(KEYS.master_of, masters.entries), *map(KEYS.worker_of, workers.entries)]
        return {name for name in named if name is not None}

    def owned(self, name: str) -> frozenset[int]:
        """The partitions that the member owns."""
        return frozenset(partition for partition, owner in self.cluster.assigned().items() if owner == name)


@contextmanager
def rig(folder: Path, served: PostgresServer | None) -> Iterator[FaultedCluster]:
    """A started cluster for the block: two masters and three workers."""
    with ExitStack() as stack:
        (folder / SMALL_DISK).mkdir()
        no_disk = disks.mounted(stack, folder / SMALL_DISK, disks.ARCHIVE_MIB)
        tables = None if served is None or no_disk is not None else disks.of_tables(stack, served)
        url = None if served is None else disks.database(stack, served, tables)
        wires = stack.enter_context(links())
        cluster = stack.enter_context(
            opened(folder, url, election_ms=ELECTION_MS, quota_bytes=QUOTA_MIB << 20, max_store=STORE_MIB << 20)
        )
        cluster.entry = member_controls.ENTRY
        post = stack.enter_context(closing(MessageListener(cluster.broker.endpoint)))
        made = FaultedCluster(cluster, wires, post, served, tables, no_disk)
        asyncio.run(prepared(cluster))
        made.start("m1")
        cluster.wait_until(lambda: cluster.leader() == "m1", "the first one leads")
        for name in (*MASTERS[1:], *WORKERS):
            made.start(name)
        cluster.wait_until(
            lambda: cluster.owners().total() == PARTITIONS and "" not in cluster.owners(), "all is owned"
        )
        yield made


async def prepared(cluster: Cluster) -> None:
    """Make the database as the first master would, with the triggers that bear witness."""
    store: SqlStore = await (
        SqliteStore.open(cluster.database) if cluster.url is None else PostgresStore.open(cluster.url)
    )
    try:
        await store.open_cluster(PARTITIONS, installed_list(), 0)
    finally:
        await store.close()
    await (
        audit_triggers.watch(cluster.url) if cluster.url is not None else audit_triggers.watch_file(cluster.database)
    )
