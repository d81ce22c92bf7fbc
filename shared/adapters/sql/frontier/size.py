"""The fill level of a PostgreSQL database: its size against the configured bound.

SQL does not show how full the server's disk is; only a refused write does.
"""

from sqlalchemy import Connection, text

from shared.adapters.sql.engine.executor import Executor
from shared.adapters.sql.engine.postgres import PostgresPool
from shared.domain.ops.watermarks import FillLevel
from shared.runtime.pressure_monitor import Gauge

_SIZE = text("SELECT pg_database_size(current_database())")


def room_of(pool: Executor, max_bytes: int) -> Gauge:
    """Return a gauge of the database's size against `max_bytes` bytes (0: no bound), and of a recently full disk.

    The server adds up the sizes of its files, so the gauge queries it only if there is a bound or a refused write.
    """

    if not isinstance(pool, PostgresPool):
        raise TypeError(f"{pool!r} is not a pool of a PostgreSQL server")

    async def gauge() -> FillLevel:
        refused = pool.disk_full()
        if not refused and not max_bytes:
            return FillLevel(0, 0)
        return FillLevel(await pool.read(_size), max_bytes, refused=refused)

    return gauge


def _size(connection: Connection) -> int:
    return int(connection.execute(_SIZE).scalar_one())
