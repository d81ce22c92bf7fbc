"""What a store under test executes: its executor, and the statements that it sends."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event

from shared.adapters.sql.engine.executor import Executor
from shared.adapters.sql.frontier.store import SqlStore
from tests.support.database.store_tables import Tables


def executor_of(t: Tables) -> Executor:
    """Return what runs the store's transactions."""
    assert isinstance(t.store, SqlStore)
    return t.store.executor


@contextmanager
def statements() -> Iterator[list[str]]:
    """Collect the statements that are executed in the block."""
    taken: list[str] = []

    def listen(*arguments: Any) -> None:
        taken.append(arguments[2].lstrip())

    event.listen(Engine, "before_cursor_execute", listen)
    try:
        yield taken
    finally:
        event.remove(Engine, "before_cursor_execute", listen)


@contextmanager
def steps() -> Iterator[list[None]]:
    """One entry for every step that SQLite takes meanwhile, for whatever statement."""
    taken: list[None] = []

    def listen(_connection: Any, cursor: Any, *_: object) -> None:
        cursor.connection.set_progress_handler(lambda: taken.append(None), 1)

    event.listen(Engine, "before_cursor_execute", listen)
    try:
        yield taken
    finally:
        event.remove(Engine, "before_cursor_execute", listen)
