"""Contract tests of the store run a story on every engine there is."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from shared.adapters.sql.frontier.store import SqlStore
from shared.ports.coordinator import Coordinator
from tests.support.database.schedule_stage import TERM, ScheduleStage
from tests.support.database.store_tables import Tables, books, sqlite_tables
from tests.support.engines.coordinators import COORDINATORS
from tests.support.engines.postgres import PostgresLook, PostgresServer, postgres_tables

Story = Callable[[Tables], Awaitable[None]]
ScheduleStory = Callable[[ScheduleStage], Awaitable[None]]

PATIENCE_S = 60.0
ENGINES = ("sqlite", "postgresql")


@pytest.fixture(params=ENGINES)
def new_tables(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], AbstractAsyncContextManager[Tables]]:
    """`async with new_tables() as tables`: a new store on each engine."""
    if request.param == "sqlite":
        return lambda: sqlite_tables(tmp_path)
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return lambda: postgres_tables(server)


@pytest.fixture
def on_store(new_tables: Callable[[], AbstractAsyncContextManager[Tables]]) -> Callable[..., None]:
    """`on_store(story)` runs the story on a new store; afterwards all counts must fit, but for `wrong`."""

    def run(story: Story, *, wrong: Sequence[str] = ()) -> None:
        async def whole() -> None:
            async with new_tables() as tables:
                await story(tables)
                assert books(tables.at) == list(wrong)

        asyncio.run(whole())

    return run


@pytest.fixture
def on_postgres(postgres_server: PostgresServer) -> Callable[..., None]:
    """`on_postgres(story)` runs it on a new database; the story is also given the database's URL."""

    def run(story: Callable[[Tables, str], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with postgres_tables(postgres_server) as tables:
                assert isinstance(tables.at, PostgresLook)
                await story(tables, tables.at.url)
                assert books(tables.at) == []

        asyncio.run(whole())

    return run


@pytest.fixture(params=COORDINATORS)
def on_coordinator(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[Callable[[Coordinator], Awaitable[None]]], None]:
    """`on_coordinator(story)` runs the story on a new coordinator of each kind."""

    def run(story: Callable[[Coordinator], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with asyncio.timeout(PATIENCE_S), COORDINATORS[request.param](tmp_path) as opened:
                await story(opened)

        asyncio.run(whole())

    return run


@pytest.fixture
def on_schedules(new_tables: Callable[[], AbstractAsyncContextManager[Tables]]) -> Callable[[ScheduleStory], None]:
    """`on_schedules(story)` runs the story on a new database, whose leader has the term TERM."""

    def run(story: ScheduleStory) -> None:
        async def whole() -> None:
            async with new_tables() as t:
                assert isinstance(t.store, SqlStore)
                stage = ScheduleStage(t.store)
                await stage.schedules.claim(TERM)
                await story(stage)

        asyncio.run(whole())

    return run
