"""Values that statements on crawls share: the number of a change, and the active time."""

from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, literal_column

NEXT_CHANGE: Final[ColumnElement[int]] = literal_column(
    "(SELECT coalesce(max(k.change), 0) + 1 FROM crawls k)", BigInteger
)
"""Concurrent transactions may take the same number, or a lower one than another that committed before. A statement
that changes many crawls adds to it, so that each takes a number of its own."""

ACTIVE_MS: Final[ColumnElement[int]] = literal_column(
    "coalesce((SELECT p.ms FROM pool_clocks p WHERE p.pool = crawls.active_pool) - crawls.active_zero_ms,"
    " crawls.active_ms)",
    BigInteger,
)
"""A crawl's active time now."""

STOP_TIME: Final[dict[str, Any]] = {"active_ms": ACTIVE_MS, "active_pool": None, "active_zero_ms": 0}
"""What an update of a crawl sets that no longer uses up time."""
