"""Bounds the bytes of one page of a list: the first query reads the sizes of rows, the second the rows that fit."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import Integer
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

T = TypeVar("T")

LIST_BYTES: Final = 8 << 20
"""The most bytes of stored text that one query of a list reads. A single entry may be larger: it is read alone.

- Most lists: one query reads the whole page. So a page may have fewer entries than the client requested.
- The list of crawls, if the client requests short summaries instead of specs: several queries read one page, so the
  page has as many entries as requested. Each query reads at most LIST_BYTES of specs. Only the summaries are kept.
"""


class ByteLength(FunctionElement[int]):
    """An SQL expression: the number of bytes of a text column, and 0 for NULL."""

    type = Integer()
    inherit_cache = True


@compiles(ByteLength)
def _compiled(element: ByteLength, compiler: Any, **options: Any) -> str:
    return byte_length(compiler.dialect.name, compiler.process(element.clauses, **options))


def byte_length(dialect: str, column: str) -> str:
    """Return SQL text for the number of bytes of a text column, in a dialect's syntax. The number is 0 for NULL."""
    size = f"octet_length({column})" if dialect == "postgresql" else f"length(CAST({column} AS BLOB))"
    return f"coalesce({size}, 0)"


def bounded(sized: Sequence[tuple[T, int]]) -> Iterator[list[T]]:
    """Yield the entries in order, in groups of at most LIST_BYTES bytes. `sized` has each entry with its size in bytes.

    An entry that is larger than LIST_BYTES is a group of its own.
    """
    group: list[T] = []
    total = 0
    for entry, size in sized:
        if group and total + size > LIST_BYTES:
            yield group
            group, total = [], 0
        group.append(entry)
        total += size
    if group:
        yield group


def first_page(sized: Sequence[tuple[T, int]]) -> list[T]:
    """Return the entries of the first page of a list: as many as fit into LIST_BYTES, at least one if there is any.

    `sized` has each entry with its size in bytes.
    """
    return next(bounded(sized), [])
