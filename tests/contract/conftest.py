"""Contract tests of the store run a story on every engine there is."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from tests.support.tables import Tables, books, sqlite_tables

Story = Callable[[Tables], Awaitable[None]]

ENGINES = {"sqlite": sqlite_tables}


@pytest.fixture(params=ENGINES)
def on_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """`on_store(story)` runs the story on a new store; afterwards all counts must fit, but for `wrong`."""

    def run(story: Story, *, wrong: Sequence[str] = ()) -> None:
        async def whole() -> None:
            async with ENGINES[request.param](tmp_path) as tables:
                await story(tables)
                assert books(tables.path) == list(wrong)

        asyncio.run(whole())

    return run
