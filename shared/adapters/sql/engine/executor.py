"""Turns functions into methods of adapters. Each call of a method runs its function as one transaction.

The first parameter of such a function is the Connection. The method does not have this parameter.
"""

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection

from shared.adapters.sql.engine.point_query import PointQuery

P = ParamSpec("P")
T = TypeVar("T")


class Executor(Protocol):
    """Runs each given function as one transaction.

    The transaction is committed if the function returns. Nothing is written if it raises.

    Raise ResourceFull, DiskFull, Unusable, Transient or Permanent for an error of the database. After Transient, the
    transaction may have been committed.
    """

    async def write(self, transaction: Callable[[Connection], T]) -> T:
        """Run and commit `transaction`, and return its result.

        It may run more than once, so it must change only the database.
        """

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run `query` on one snapshot of the database, and return its result.

        The snapshot has everything that was committed before this call.
        """

    async def glance(self, query: PointQuery, **keys: Any) -> Sequence[Any]:
        """Return the rows that `query` finds by these keys. It sees everything that was committed before this call."""

    async def data_version(self) -> int | None:
        """Return a number that changes with every commit to the database, by any process. None if it is unknown."""
        ...

    def disk_full(self) -> bool:
        """Return True if the database refused a transaction in the last 5 seconds because its disk is full."""

    def silent_s(self) -> float:
        """Return the number of seconds since the database last answered a transaction or query."""

    async def close(self) -> None: ...


class SqlAdapter:
    """Base class of the adapters that implement a port on a SQL database.

    The methods of such an adapter are made by the functions `read`, `polled` and `write` of this module.
    """

    def __init__(self, executor: Executor) -> None:
        self._run = executor
        self._polled: dict[Callable[..., Any], tuple[object, Any]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._run!r}>"

    async def _poll(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **keywords: P.kwargs) -> T:
        """Run `query` on one snapshot of the database, and return its result.

        If the last call for this query had the same arguments, and nothing was committed since, do not read. Return the
        result of that call instead.
        """
        # Read the number first: a commit that comes between is then read again by the next call.
        version = await self._run.data_version()
        call = version, args, keywords
        if version is not None and (last := self._polled.get(query)) is not None and last[0] == call:
            result: T = last[1]
            return result
        result = await self._run.read(bound(query, *args, **keywords))
        self._polled[query] = call, result
        return result


_Method = Callable[Concatenate[SqlAdapter, P], Coroutine[Any, Any, T]]


def read(query: Callable[Concatenate[Connection, P], T]) -> _Method[P, T]:
    """Return a method of an SqlAdapter that runs `query` on one snapshot of the database (Executor.read)."""

    @wraps(query)
    async def method(self: SqlAdapter, /, *args: P.args, **keywords: P.kwargs) -> T:
        return await self._run.read(bound(query, *args, **keywords))

    return method


def polled(query: Callable[Concatenate[Connection, P], T]) -> _Method[P, T]:
    """Return a method like that of `read`, for a query that is repeated often while its result seldom changes.

    If nothing was committed to the database since the last call, and the arguments are the same, the method returns the
    same object as before, without a read. So callers must not change the result.
    """

    @wraps(query)
    async def method(self: SqlAdapter, /, *args: P.args, **keywords: P.kwargs) -> T:
        return await self._poll(query, *args, **keywords)

    return method


def write(transaction: Callable[Concatenate[Connection, P], T]) -> _Method[P, T]:
    """Return a method of an SqlAdapter that runs and commits `transaction`."""

    @wraps(transaction)
    async def method(self: SqlAdapter, /, *args: P.args, **keywords: P.kwargs) -> T:
        return await self._run.write(bound(transaction, *args, **keywords))

    return method


def bound(
    transaction: Callable[Concatenate[Connection, P], T], *args: P.args, **keywords: P.kwargs
) -> Callable[[Connection], T]:
    """Return a function of a Connection that calls `transaction` with these arguments.

    Its attribute `__wrapped__` is `transaction`. FullDiskRefusals needs it.
    """

    @wraps(transaction)
    def run(connection: Connection) -> T:
        return transaction(connection, *args, **keywords)

    return run
