"""A cluster of real processes: etcd, a broker, masters and workers, each of which a test can stop and kill."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from shared.adapters.local.suffixes import installed_list
from shared.adapters.sql.engine.postgres import PostgresStore
from shared.adapters.sql.frontier.store import SqliteStore, SqlStore
from shared.domain.crawl.spec import encode_spec
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.frontier.crawl_rows import CrawlRow
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId
from shared.runtime.supervise import dying_with
from shared.wire.keys import CrawlRecord, Keys, LeaderRecord, PartitionRecord, decode_record
from tests.support.database.url_rows import URLS
from tests.support.engines.etcd import QUOTA_BYTES, EtcdServer, coordinator, peers, start_all
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.postgres import PostgresLook
from tests.support.processes.forked_member import MemberProcess, fork_member
from tests.support.processes.orb_command import ENTRY, ROOT, command_line

TTL_S: Final = 3.0
"""So long that a leader survives a machine that stops for a second and an engine that stops for another."""
PARTITIONS: Final = 8
OPEN: Final = {"ORB_ALLOW_NET": "127.0.0.0/8"}
"""Sites of tests are on loopback, which workers open on purpose only."""

KEYS: Final = Keys("test")
LOOK_S: Final = 0.05


@dataclass(slots=True)
class Member:
    """A master or a worker. It is forked, or executed if an entry of the test's own runs first."""

    name: str
    process: subprocess.Popen[bytes] | MemberProcess
    log: Path

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        """SIGKILL, also when it is stopped."""
        self.signal(signal.SIGKILL)
        self.process.wait(30)


class Cluster:
    """Members over etcd, a broker and a database: a SQLite file, or the PostgreSQL at `url`.

    `entry` is the module that members run, `orb` itself or one that does something before it.
    """

    def __init__(self, folder: Path, etcds: Sequence[EtcdServer], broker: BrokerServer, url: str | None = None) -> None:
        self.folder = folder
        self.etcds = tuple(etcds)
        self.entry = ENTRY
        self.broker = broker
        self.url = url
        self.database = folder / "cluster.db"
        self.members: dict[str, Member] = {}

    @property
    def etcd(self) -> EtcdServer:
        """The only server, or the first of them."""
        return self.etcds[0]

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Every etcd's."""
        return tuple(server.endpoint for server in self.etcds)

    def master(self, name: str, **settings: str) -> Member:
        """Start one; `settings` are environment variables besides the usual ones."""
        return self._start(
            "master",
            name,
            {
                "ORB_DATABASE": self.url or str(self.database),
                "ORB_PARTITIONS": str(PARTITIONS),
                "ORB_HTTP": "127.0.0.1:0",
                **settings,
            },
        )

    def worker(self, name: str, **settings: str) -> Member:
        """Start one; `settings` as for a master."""
        home = self.folder / name
        home.mkdir(exist_ok=True)
        return self._start("worker", name, {**OPEN, "ORB_DIR": str(home), "ORB_REPORT_S": "0.2", **settings})

    def _start(self, role: str, name: str, settings: Mapping[str, str]) -> Member:
        log = self.folder / f"{name}.log"
        shared = {
            "ORB_ID": name,
            "ORB_CLUSTER": KEYS.cluster,
            "ORB_ETCD": ",".join(self.endpoints),
            "ORB_NATS_URL": self.broker.endpoint.url,
            **self.broker.login(role).environment,
            "ORB_MEMBER_TTL_S": str(TTL_S),
            "ORB_GRANT_S": "3",
            "ORB_ACK_WAIT_S": "3",
        }
        environment = {**os.environ, **shared, **settings}
        process = fork_member(role, environment, log) if self.entry == ENTRY else self._executed(role, environment, log)
        member = self.members[name] = Member(name, process, log)
        return member

    def _executed(self, role: str, environment: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
        with log.open("ab") as out:
            return subprocess.Popen(
                [*dying_with(os.getpid()), *command_line(role, entry=self.entry)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    # --- what operators do --------------------------------------------------------------------------------------------

    def declare(self, spec: Mapping[str, Any]) -> CrawlId:
        """Store a crawl, with loopback opened; the masters find it."""
        parsed = parse_spec({"egress": {"allow": ["127.0.0.0/8"]}, **spec})

        async def put() -> CrawlId:
            store = await self._opened()
            try:
                await store.open_cluster(PARTITIONS, installed_list(), 0)
                row, _ = await store.put_crawl(parsed.name, encode_spec(parsed).decode(), 0)
                return row.crawl_id
            finally:
                await store.close()

        return asyncio.run(put())

    # --- what can be seen ---------------------------------------------------------------------------------------------

    def row(self, crawl_id: CrawlId) -> CrawlRow:
        """The crawl as stored."""

        async def read() -> CrawlRow | None:
            store = await self._opened()
            try:
                return await store.crawl(crawl_id)
            finally:
                await store.close()

        row = asyncio.run(read())
        assert row is not None
        return row

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Rows of the database."""
        if self.url is not None:
            look = PostgresLook(self.url)
            try:
                return look(statement)
            finally:
                look.close()
        with sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=10) as connection:
            return connection.execute(statement).fetchall()

    async def _opened(self) -> SqlStore:
        return await (SqliteStore.open(self.database) if self.url is None else PostgresStore.open(self.url))

    def turn(self, crawl_id: CrawlId, state: CrawlState) -> None:
        """Put the crawl into a state, as an operator's verb does."""

        async def put() -> None:
            store = await self._opened()
            try:
                await store.set_state(crawl_id, state, None, 0)
            finally:
                await store.close()

        asyncio.run(put())

    def pages(self) -> list[str]:
        """The URLs of the stored pages."""
        return [
            url
            for (url,) in self.query(
                f"SELECT u.url FROM {URLS} u JOIN fetches f USING (crawl_id, host_id, fingerprint)"
                " WHERE f.page AND f.status = 200"
            )
        ]

    def leased(self, crawl_id: CrawlId) -> int:
        """URLs of the crawl that are out."""
        return int(self.query(f"SELECT coalesce(sum(leased), 0) FROM crawl_counters WHERE crawl_id = {crawl_id}")[0][0])

    def record(self, crawl_id: CrawlId) -> CrawlRecord:
        """Return what the workers read of the crawl."""
        found = self._get(KEYS.crawl(crawl_id))
        assert found is not None
        return decode_record(CrawlRecord, found)

    def terms(self) -> list[int]:
        """The owner terms of the partitions."""
        return [term for (term,) in self.query("SELECT owner_term FROM partitions ORDER BY partition")]

    def epoch(self) -> int:
        """The cluster's epoch."""
        return int(self.query("SELECT epoch FROM cluster")[0][0])

    def leader(self) -> str | None:
        """Who leads, by etcd."""
        entry = self._get(KEYS.leader)
        return None if entry is None else decode_record(LeaderRecord, entry).id

    def owners(self) -> Counter[str]:
        """How many partitions each master owns, by etcd; those without an owner count under ""."""

        owned = Counter(self.assigned().values())
        return +(owned + Counter({"": PARTITIONS - owned.total()}))

    def assigned(self) -> dict[int, str]:
        """The owner of each partition that has one, by etcd."""

        async def read() -> dict[int, str]:
            async with coordinator(*self.endpoints, patient=False) as opened:
                found = (await opened.list(KEYS.partitions)).entries
            named = {
                KEYS.partition_of(key): decode_record(PartitionRecord, entry.value) for key, entry in found.items()
            }
            return {partition: record.owner for partition, record in named.items() if partition is not None}

        return asyncio.run(read())

    def _get(self, key: str) -> bytes | None:
        async def read() -> bytes | None:
            async with coordinator(*self.endpoints, patient=False) as opened:
                entry = await opened.get(key)
                return None if entry is None else entry.value

        return asyncio.run(read())

    def wait_until(self, true: Callable[[], bool], what: str, timeout_s: float = 60.0) -> float:
        """Wait for it; how long it took. AssertionError with the members' last words when it does not come."""
        begun = time.monotonic()
        while not true():
            if time.monotonic() - begun > timeout_s:
                raise AssertionError(f"waited {timeout_s} s until {what}:\n{self.last_words()}")
            time.sleep(LOOK_S)
        return time.monotonic() - begun

    def finish(self, crawl_id: CrawlId, timeout_s: float = 90.0) -> CrawlRow:
        """The crawl as soon as it is finished."""
        state = f"SELECT state FROM crawls WHERE crawl_id = {crawl_id}"
        self.wait_until(lambda: self.query(state) == [("finished",)], "the crawl is finished", timeout_s)
        return self.row(crawl_id)

    def last_words(self) -> str:
        """The end of what each member said."""
        return "\n".join(
            f"--- {member.name}\n{member.log.read_bytes()[-4000:].decode(errors='replace')}"
            for member in self.members.values()
        )

    def said(self, name: str, event: str) -> list[dict[str, Any]]:
        """The events of that name in a member's log; a line that is still being written is none yet."""
        whole, _, _ = self.members[name].log.read_bytes().rpartition(b"\n")
        lines = [line for line in whole.splitlines() if line.startswith(b"{")]
        return [found for line in lines if (found := msgspec.json.decode(line)).get("event") == event]

    def wait_working(self, *names: str) -> None:
        """Wait until these workers pull: one that starts later than others may find nothing left to do."""
        for name in names:
            self.wait_until(lambda name=name: bool(self.said(name, "worker.started")), f"{name} pulls")  # type: ignore[misc]  # bound now

    # --- what happens to etcd -----------------------------------------------------------------------------------------

    def kill_etcd(self) -> None:
        self.etcd.kill()

    def restart_etcd(self) -> None:
        asyncio.run(self.etcd.restart())

    def replace_etcd(self) -> None:
        """SIGKILL, and an empty one in its place."""
        self.etcd.kill()
        shutil.rmtree(self.etcd.embedded.folder / "data")
        asyncio.run(self.etcd.restart())


@contextmanager
def cluster(
    folder: Path,
    url: str | None = None,
    *,
    election_ms: int | None = None,
    quota_bytes: int = QUOTA_BYTES,
    **of_broker: Any,
) -> Iterator[Cluster]:
    """etcd and a broker, and whatever members the test starts. With `election_ms` etcd is a cluster of three, each of
    which stores at most `quota_bytes`; `of_broker` are ServerSettings fields."""
    etcds = (
        [EtcdServer(folder / "etcd")]
        if election_ms is None
        else peers(folder / "etcd", election_ms=election_ms, quota_bytes=quota_bytes)
    )
    broker = BrokerServer(folder / "broker", **of_broker)
    made = Cluster(folder, etcds, broker, url)
    try:
        asyncio.run(start_all(etcds))
        yield made
    finally:
        for member in made.members.values():
            member.signal(signal.SIGKILL)
            member.end()
        for server in etcds:
            asyncio.run(server.embedded.stop())
        asyncio.run(broker.embedded.stop())
