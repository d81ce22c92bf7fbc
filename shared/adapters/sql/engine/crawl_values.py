"""SQL expressions that statements on crawls share: the number of a crawl's next change, and its active time."""

from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, literal_column

from shared.adapters.sql.engine import stored_crawls

NEXT_CHANGE: Final[ColumnElement[int]] = literal_column(
    "(SELECT coalesce(max(k.change), 0) + 1 FROM crawls k)", BigInteger
)
"""SQL for the number to store in `crawls.change` with a change of a crawl: one more than the greatest stored number.

Readers find changed crawls by these numbers. Within one statement this SQL always has the same value. So a statement
that changes several crawls must add a different offset for each crawl."""
# Concurrent transactions may store equal numbers. So readers repeat the last numbers (frontier/crawl_changes.OVERLAP).

ACTIVE_MS: Final[ColumnElement[int]] = literal_column(stored_crawls.ACTIVE_MS, BigInteger)
"""The active time of a row of `crawls` until now, in ms. `budget.max_seconds` limits it."""

STOP_TIME: Final[dict[str, Any]] = {"active_ms": ACTIVE_MS, "active_pool": None, "active_zero_ms": 0}
"""The values to set in a row of `crawls` when the active time of the crawl stops growing."""
