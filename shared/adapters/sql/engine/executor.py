"""Binds functions of a connection to an executor, as the methods of an adapter: one call is one transaction."""

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection

from shared.adapters.sql.engine.point_query import PointQuery

P = ParamSpec("P")
T = TypeVar("T")


class Executor(Protocol):
    """Runs transactions atomically: committed if it returns, nothing written if it raises.

    It raises the errors that `mapped` of its engine makes. After Transient the transaction may have been committed.
    """

    async def write(self, transaction: Callable[[Connection], T]) -> T:
        """Run and commit a transaction. It may run more than once, so it must change only the database."""
        ...

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run a query on a snapshot taken after this call."""
        ...

    async def glance(self, query: PointQuery, **keys: Any) -> Sequence[Any]:
        """Find rows by their keys, on a snapshot taken after this call."""
        ...

    def disk_full(self) -> bool:
        """Return True if the database recently refused a transaction because its disk is full."""
        ...

    def silent_s(self) -> float:
        """Return the seconds since the database last answered a transaction or query."""
        ...

    async def close(self) -> None: ...


class SqlAdapter:
    """A port on a SQL database. Its methods are made by `read` and `write`."""

    def __init__(self, executor: Executor) -> None:
        self._run = executor

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._run!r}>"


_Method = Callable[Concatenate[SqlAdapter, P], Coroutine[Any, Any, T]]


def read(query: Callable[Concatenate[Connection, P], T]) -> _Method[P, T]:
    """Make the method that runs `query` on a snapshot taken after its call."""

    @wraps(query)
    async def method(self: SqlAdapter, /, *args: P.args, **keywords: P.kwargs) -> T:
        return await self._run.read(bound(query, *args, **keywords))

    return method


def write(transaction: Callable[Concatenate[Connection, P], T]) -> _Method[P, T]:
    """Make the method that runs and commits `transaction`."""

    @wraps(transaction)
    async def method(self: SqlAdapter, /, *args: P.args, **keywords: P.kwargs) -> T:
        return await self._run.write(bound(transaction, *args, **keywords))

    return method


def bound(
    transaction: Callable[Concatenate[Connection, P], T], *args: P.args, **keywords: P.kwargs
) -> Callable[[Connection], T]:
    """Return the transaction with its arguments. `__wrapped__` is the function, so that executors know its kind."""

    @wraps(transaction)
    def run(connection: Connection) -> T:
        return transaction(connection, *args, **keywords)

    return run
