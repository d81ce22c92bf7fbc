"""The real store on a database in memory, each of its transactions a step of a simulated world."""

import sqlite3
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.pool import StaticPool

from api.frontier.capacity import Spent, spent_in
from shared.adapters.sql.engine.access_schema import metadata
from shared.adapters.sql.engine.sqlite import SqliteThreads, _transact
from shared.adapters.sql.frontier import crawl_rows as crawls
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.errors import ResourceFull
from shared.domain.ids import CrawlId, Partition, Term
from tests.support.simulation.command_order import CommandOrder
from tests.support.simulation.host_rules import HostRules
from tests.support.simulation.world import EPOCH_MS, Fault, Process, World

T = TypeVar("T")

PARTITIONS: Final = 1


class Database:
    """One database in memory, used again after `reset`. `full`: it refuses what owners write, for want of room;
    `refused`: how often it did. `rules`: the blocks and delays of its hosts over time. `order`: judges commands."""

    def __init__(self) -> None:
        self.engine: Engine = create_engine(
            "sqlite://",
            poolclass=StaticPool,
            connect_args={"isolation_level": None, "check_same_thread": False, "cached_statements": 512},
        )

        @event.listens_for(self.engine, "connect")
        def _connected(connection: sqlite3.Connection, _: object) -> None:
            self._connection = connection

        @event.listens_for(self.engine, "begin")
        def _begin(_: Connection) -> None:
            self._connection.execute("BEGIN IMMEDIATE")

        self.version = 0
        self.full = False
        self.refused = 0
        with self.engine.begin() as connection:
            metadata.create_all(connection)
        self.reset()

    def reset(self) -> None:
        """An empty cluster of one partition, on a disk with room."""
        self.full = False
        self.refused = 0
        self.rules = HostRules()
        self.order = CommandOrder()
        with self.engine.begin() as connection:
            for table in metadata.tables.values():
                connection.execute(table.delete())
            connection.execute(text("DELETE FROM sqlite_sequence"))
            crawls.open_cluster(connection, PARTITIONS, "", EPOCH_MS)
        self.version += 1

    def rows(self, query: str, **keys: object) -> list[Any]:
        """Return what a query finds now, as tuples. Judges read after every write, so it goes past SQLAlchemy, whose
        calls took a third of a walk's time."""
        return self._connection.execute(query, keys).fetchall()

    def write(self, work: Callable[[Connection], T]) -> T:
        """A transaction outside of the world's steps."""
        self.version += 1
        with self.engine.begin() as connection:
            return work(connection)

    def spent(self, crawl_id: CrawlId) -> dict[Partition, Spent]:
        """Return what a crawl has used of its budget, by partition."""
        counters = _transact(self.engine, lambda connection: crawls.counters_by_partition(connection, [crawl_id]))
        return {partition: spent_in(part) for partition, part in counters[crawl_id].items()}


class SimThreads:
    """Stands where `SqliteThreads` stands: runs transactions as steps of the world.

    A transaction that changes rows under a term that was deposed is a violation.
    """

    def __init__(self, world: World, process: Process, database: Database, term: Term | None = None) -> None:
        self._world = world
        self._process = process
        self._database = database
        self._term = term

    async def write(self, transaction: Callable[[Connection], T]) -> T:
        return await self._world.io(self._process, "sql.write", lambda: self._write(transaction))

    async def read(self, query: Callable[[Connection], T]) -> T:
        return await self._world.io(self._process, "sql.read", lambda: _transact(self._database.engine, query))

    async def close(self) -> None:
        """The database stays for the others."""

    def _write(self, transaction: Callable[[Connection], T]) -> T:
        database = self._database
        refused = self._process.fault is Fault.FULL
        if refused:
            self._process.fault = None
        if refused or (database.full and self._term is not None):
            database.refused += 1
            raise ResourceFull("the disk is full")
        owner = database.rows("SELECT max(owner_term) FROM partitions")[0][0]
        before = _changes(database)
        result = _transact(database.engine, transaction)
        database.version += 1
        if self._term is not None:
            database.rules.written(database.rows, self._world.now, self._term)
            database.order.written(database.rows, self._world.blame)
        if self._term is not None and self._term < owner and _changes(database) != before:
            self._world.blame(f"{self._process.name} changed rows under term {self._term}, deposed by {owner}")
        return result


def store_of(world: World, process: Process, database: Database, term: Term | None = None) -> SqliteStore:
    """The store as a process sees it. `term`: the process is an owner under it."""
    return SqliteStore(cast(SqliteThreads, SimThreads(world, process, database, term)))


def _changes(database: Database) -> int:
    return int(database.rows("SELECT total_changes()")[0][0])
