"""How full a PostgreSQL database is: its size against what it was given. Its disk cannot be seen over SQL, but for what
the server refuses."""

from sqlalchemy import Connection, text

from shared.adapters.sql.postgres import PostgresPool
from shared.adapters.sql.store import Executor
from shared.domain.watermarks import Level
from shared.ports.rationing import Gauge

_SIZE = text("SELECT pg_database_size(current_database())")


def room_of(pool: Executor, most: int) -> Gauge:
    """The size of the database of `pool`, of `most` bytes, 0: without a bound; and whether its disk was full lately.

    The server adds up the sizes of its files, so it is asked only where there is something to compare or to tell.
    """

    if not isinstance(pool, PostgresPool):
        raise TypeError(f"{pool!r} is none of a PostgreSQL server")

    async def gauge() -> Level:
        refused = pool.out_of_room()
        if not refused and not most:
            return Level(0, 0)
        return Level(await pool.read(_size), most, refused=refused)

    return gauge


def _size(connection: Connection) -> int:
    return int(connection.execute(_SIZE).scalar_one())
