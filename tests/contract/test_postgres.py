"""What happens on PostgreSQL alone: owners that stop inside a transaction or write at once, a server that dies."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from shared.adapters.sql.apply import bury
from shared.adapters.sql.fence import pass_fence, take_over
from shared.adapters.sql.postgres import PostgresPool, PostgresSettings
from shared.adapters.sql.store import PostgresStore
from shared.domain.errors import OwnershipLost, Permanent, Transient, Unusable
from shared.domain.ids import Term
from shared.domain.ledger import Changes, DeadLetter
from tests.support.cut_wire import cut_wire
from tests.support.postgres import PostgresLook, PostgresServer, postgres, postgres_tables
from tests.support.tables import NOW_MS, OTHER, PARTITION, Tables, books, links

LETTER = DeadLetter(None, "url", NOW_MS, "kept by whoever owns the partition")
QUICK = PostgresSettings(idle_in_transaction_s=0.5, lock_s=20, statement_s=20)


class Stopped:
    """A process that stops in the middle of a transaction: a loop on a thread, blocked until `go_on`."""

    def __init__(
        self,
        url: str,
        before: Callable[[Connection], object],
        after: Callable[[Connection], object],
        settings: PostgresSettings | None,
    ) -> None:
        self._pool = PostgresPool(url, settings)
        self._before, self._after = before, after
        self._there, self._on = threading.Event(), threading.Event()
        self.outcome: BaseException | str = "under way"
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    async def there(self) -> None:
        """Wait until it has done what it does before it stops."""
        assert await asyncio.to_thread(self._there.wait, 60)

    async def go_on(self) -> BaseException | str:
        """Let it go on; how its transaction ended."""
        self._on.set()
        await asyncio.to_thread(self._thread.join)
        return self.outcome

    def close(self) -> None:
        self._on.set()
        self._thread.join()

    async def _run(self) -> None:
        try:
            await self._pool.write(self._transaction)
            self.outcome = "committed"
        except Exception as error:
            self.outcome = error
        finally:
            await self._pool.close()

    def _transaction(self, connection: Connection) -> None:
        self._before(connection)
        self._there.set()
        assert self._on.wait(60)
        self._after(connection)


@contextmanager
def stopped(
    url: str,
    before: Callable[[Connection], object],
    after: Callable[[Connection], object],
    settings: PostgresSettings | None = None,
) -> Iterator[Stopped]:
    process = Stopped(url, before, after, settings)
    try:
        yield process
    finally:
        process.close()


@pytest.fixture
def on_postgres(postgres_server: PostgresServer) -> Callable[..., None]:
    """`on_postgres(story)` runs it on a new database; the story is also given the database's URL."""

    def run(story: Callable[[Tables, str], Awaitable[None]], settings: PostgresSettings | None = None) -> None:
        async def whole() -> None:
            async with postgres_tables(postgres_server, settings=settings) as tables:
                assert isinstance(tables.at, PostgresLook)
                await story(tables, tables.at.url)
                assert books(tables.at) == []

        asyncio.run(whole())

    return run


def letters(t: Tables) -> int:
    count = t.value("SELECT count(*) FROM dead_letters")
    assert isinstance(count, int)
    return count


def buries(connection: Connection) -> None:
    bury(connection, PARTITION, LETTER)


# Owners ---------------------------------------------------------------------------------------------------------------


def test_an_owner_stopped_inside_a_transaction_holds_no_takeover_up_and_writes_nothing(
    on_postgres: Callable[..., None],
) -> None:
    async def story(t: Tables, url: str) -> None:
        await t.found(*links("a.example.com", range(3)))
        old = t.fence

        def begin(connection: Connection) -> None:
            pass_fence(connection, old)
            buries(connection)

        with stopped(url, begin, buries, QUICK) as owner:
            await owner.there()
            claimed = await t.claim(2)
            assert owner.outcome == "under way", "the takeover did not wait for it"
            assert claimed.fence.version == old.version + 1, "its transaction left nothing"
            await t.bury(LETTER)
            assert isinstance(await owner.go_on(), Transient)
        assert letters(t) == 1
        with pytest.raises(OwnershipLost):
            await t.store.apply(old, t.position, Changes(dead_letters=[LETTER]))
        with pytest.raises(OwnershipLost):
            await t.store.reload(PARTITION, Term(1))
        assert letters(t) == 1

    on_postgres(story, QUICK)


def test_a_write_that_waits_behind_a_claim_is_refused_when_the_claim_commits(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        with stopped(url, lambda c: take_over(c, PARTITION, Term(2)), lambda c: None) as heir:
            await heir.there()
            late = asyncio.create_task(t.bury(LETTER))
            await waiting_for_a_lock(t)
            assert await heir.go_on() == "committed"
            with pytest.raises(OwnershipLost):
                await late
        assert letters(t) == 0

    on_postgres(story)


def test_a_claim_waits_for_a_write_that_passed_the_fence_before_and_loads_it(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        with stopped(url, lambda c: pass_fence(c, t.fence), buries) as owner:
            await owner.there()
            claim = asyncio.create_task(t.claim(2))
            await waiting_for_a_lock(t)
            assert await owner.go_on() == "committed"
            assert (await claim).fence.version == 3
        assert letters(t) == 1

    on_postgres(story)


async def waiting_for_a_lock(t: Tables) -> None:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    while not t.rows(waiting):  # noqa: ASYNC110  the server has no event for it
        await asyncio.sleep(0)


def test_owners_of_different_partitions_write_at_once(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        there = await t.store.claim(OTHER, Term(1))
        other = Tables(t.store, t.at, t.crawl_id, there.fence)
        with stopped(url, lambda c: pass_fence(c, t.fence), buries) as owner:
            await owner.there()
            await other.found(*links("b.example.org", range(4)), producer="w2")
            row = await other.lease("b.example.org")
            assert row is not None
            assert len(row.order) == 4
            assert await owner.go_on() == "committed"
        assert letters(t) == 1
        assert (await t.store.counters(t.crawl_id)).leased == 4

    on_postgres(story)


# What the server does -------------------------------------------------------------------------------------------------


def test_a_server_killed_inside_a_transaction_is_transient_and_the_owner_goes_on_when_it_is_back(
    postgres_programs: Path,
) -> None:
    with postgres(postgres_programs) as server:

        async def story() -> None:
            url = await server.database()
            store = await PostgresStore.open(url)
            await store.open_cluster(8, "", NOW_MS)
            crawl, _ = await store.put_crawl("docs", "{}", NOW_MS)
            fence = (await store.claim(PARTITION, Term(1))).fence
            with stopped(url, lambda c: pass_fence(c, fence), buries) as owner:
                await owner.there()
                server.kill()
                assert isinstance(await owner.go_on(), Transient)
            with pytest.raises(Transient):
                await store.reload(PARTITION, Term(1))
            with pytest.raises(Transient):
                await store.counters(crawl.crawl_id)
            server.start()
            again = await store.reload(PARTITION, Term(1))
            assert again.fence == fence.next()
            look = PostgresLook(url)
            t = Tables(store, look, crawl.crawl_id, again.fence)
            assert letters(t) == 0
            await t.bury(LETTER)
            assert letters(t) == 1
            look.close()
            await store.close()

        asyncio.run(story())


def test_a_commit_whose_answer_is_lost_is_transient_and_not_done_twice(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """The transaction is committed, its owner cannot know: it loads again and finds it."""

    async def story() -> None:
        async with (
            postgres_tables(postgres_server) as t,
            cut_wire(tmp_path, f"unix:{postgres_server.socket}") as wire,
        ):
            (tmp_path / postgres_server.socket.name).symlink_to("wire")
            assert isinstance(t.at, PostgresLook)
            behind = PostgresStore(PostgresPool(t.at.url.replace(str(postgres_server.folder), str(tmp_path))))
            runs = 0

            def transaction(connection: Connection) -> None:
                nonlocal runs
                runs += 1
                pass_fence(connection, t.fence)
                buries(connection)
                wire.withhold()

            writing = asyncio.create_task(behind.executor.write(transaction))
            while not letters(t):  # noqa: ASYNC110  only the server knows
                await asyncio.sleep(0)
            wire.cut()
            with pytest.raises(Transient):
                await writing
            assert runs == 1
            again = await behind.reload(PARTITION, Term(1))
            assert again.fence.version == t.fence.version + 2
            assert letters(t) == 1
            await behind.close()

    asyncio.run(story())


def test_a_server_that_falls_silent_is_transient(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """Nothing is cut, nothing answers: neither the statement, nor the rollback, nor the end of the session."""

    async def story() -> None:
        async with (
            postgres_tables(postgres_server) as t,
            cut_wire(tmp_path, f"unix:{postgres_server.socket}") as wire,
        ):
            (tmp_path / postgres_server.socket.name).symlink_to("wire")
            assert isinstance(t.at, PostgresLook)
            settings = PostgresSettings(
                idle_in_transaction_s=0.2, lock_s=0.3, statement_s=0.4, answer_s=0.1, connect_s=0.5
            )
            pool = PostgresPool(t.at.url.replace(str(postgres_server.folder), str(tmp_path)), settings)

            def transaction(connection: Connection) -> None:
                pass_fence(connection, t.fence)
                wire.withhold()
                buries(connection)

            with pytest.raises(Transient):
                await pool.write(transaction)
            with pytest.raises(Transient):
                await pool.read(lambda c: c.execute(text("SELECT 1")).close())
            wire.cut()
            await pool.read(lambda c: c.execute(text("SELECT 1")).close())
            await pool.close()
            assert letters(t) == 0
            await t.store.reload(PARTITION, Term(1))

    asyncio.run(story())


def raises(code: str) -> str:
    return f"DO $$ BEGIN RAISE EXCEPTION 'planted' USING ERRCODE = '{code}'; END $$"


@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_a_transaction_that_met_another_runs_again_as_a_whole(on_postgres: Callable[..., None], code: str) -> None:
    async def story(t: Tables, url: str) -> None:
        runs = 0

        def meets(times: int) -> Callable[[Connection], None]:
            def transaction(connection: Connection) -> None:
                nonlocal runs
                runs += 1
                pass_fence(connection, t.fence)
                buries(connection)
                if runs <= times:
                    connection.execute(text(raises(code)))

            return transaction

        pool = PostgresPool(url, PostgresSettings(tries=3))
        await pool.write(meets(2))
        assert (runs, letters(t)) == (3, 1)
        t.fence, runs = t.fence.next(), 0
        with pytest.raises(Transient, match="planted"):
            await pool.write(meets(9))
        assert (runs, letters(t)) == (3, 1)
        await pool.close()

    on_postgres(story)


def test_two_who_lock_rows_crosswise_both_commit(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        row = text("UPDATE partitions SET next_lease = next_lease + 1 WHERE partition = :p")
        pool = PostgresPool(url, PostgresSettings(lock_s=20, statement_s=20))
        with stopped(url, lambda c: c.execute(row, {"p": 0}), lambda c: c.execute(row, {"p": 1}), QUICK) as one:
            await one.there()

            def crosswise(connection: Connection) -> None:
                connection.execute(row, {"p": 1})
                connection.execute(row, {"p": 0})

            other = asyncio.create_task(pool.write(crosswise))
            await waiting_for_a_lock(t)
            assert await one.go_on() == "committed"
            await other
        assert t.rows("SELECT next_lease FROM partitions WHERE partition < 2") == [(3,), (3,)]
        await pool.close()

    on_postgres(story)


def test_crawls_declared_at_once_are_one_crawl_with_every_revision(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        declared = await asyncio.gather(*(t.store.put_crawl("new", f'{{"n":{n}}}', NOW_MS) for n in range(4)))
        assert len({crawl.crawl_id for crawl, _ in declared}) == 1
        assert sorted(crawl.revision for crawl, _ in declared) == [1, 2, 3, 4]
        opened = await asyncio.gather(*(t.store.open_cluster(n, "", NOW_MS) for n in (2, 4)))
        assert {partitions for partitions, _ in opened} == {8}

    on_postgres(story)


# Errors by what the caller must do ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("SELECT pg_sleep(60)", Transient),
        (raises("57P01"), Transient),
        (raises("25006"), Transient),
        (raises("53300"), Transient),
        (raises("40003"), Transient),
        ("INSERT INTO partitions (partition) VALUES (0)", Permanent),
        ("INSERT INTO partitions (partition) VALUES (NULL)", Permanent),
        ("INSERT INTO partitions (partition) VALUES (99999999999)", Permanent),
        ("SELEKT", Permanent),
        (raises("53100"), Unusable),
        (raises("XX001"), Unusable),
        ("SELECT * FROM no_such_table", Unusable),
    ],
)
def test_what_the_server_says_becomes_what_to_do(
    on_postgres: Callable[..., None], statement: str, error: type[Exception]
) -> None:
    settings = PostgresSettings(idle_in_transaction_s=0.3, lock_s=0.4, statement_s=0.4, tries=2)

    async def story(t: Tables, url: str) -> None:
        pool = PostgresPool(url, settings)
        with pytest.raises(error) as caught:
            await pool.write(lambda c: c.execute(text(statement)).close())
        assert type(caught.value) is error
        await pool.write(buries)
        assert letters(t) == 1
        await pool.close()

    on_postgres(story)


def test_a_lock_that_is_held_too_long_is_transient(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        with stopped(url, lambda c: pass_fence(c, t.fence), lambda c: None) as owner:
            await owner.there()
            with pytest.raises(Transient, match="55P03"):
                await t.bury(LETTER)
            assert await owner.go_on() == "committed"
        assert letters(t) == 0

    on_postgres(story, PostgresSettings(idle_in_transaction_s=0.1, lock_s=0.2, statement_s=20))


def test_a_server_that_is_not_there_is_transient_and_an_address_that_is_wrong_unusable(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    async def story() -> None:
        for url, error in (
            (f"postgresql://orb@/orb?host={tmp_path}", Transient),
            (postgres_server.url("no_such_database"), Unusable),
            (postgres_server.url().replace("orb@", "nobody_known@"), Unusable),
            ("mysql://orb@localhost/orb", Unusable),
        ):
            with pytest.raises(error):
                await PostgresStore.open(url)

    asyncio.run(story())


def test_a_pool_that_is_exhausted_is_transient(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        settings = PostgresSettings(writers=1, idle_in_transaction_s=0.1, lock_s=0.2, statement_s=0.3)
        pool = PostgresPool(url, settings)
        entered, leave = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with pool._writer.connect():
                entered.set()
                await leave.wait()

        holding = asyncio.create_task(hold())
        await entered.wait()
        with pytest.raises(Transient):
            await pool.write(lambda c: None)
        leave.set()
        await holding
        await pool.write(lambda c: None)
        await pool.close()

    on_postgres(story)


def test_limits_under_which_no_takeover_could_succeed_are_refused() -> None:
    with pytest.raises(ValueError, match="takeover"):
        PostgresSettings(idle_in_transaction_s=6, lock_s=5)


def test_nul_characters_are_stored_as_the_replacement_character(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        await t.bury(DeadLetter(None, "url", NOW_MS, "a\0b", url="http://a/\0"))
        assert t.rows("SELECT evidence, url FROM dead_letters") == [("a\ufffdb", "http://a/\ufffd")]

    on_postgres(story)
