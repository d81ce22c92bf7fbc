"""How full a PostgreSQL database is: its size against what it was given. Its disk cannot be seen over SQL."""

from sqlalchemy import Connection, text

from shared.adapters.sql.catalog import Transactions
from shared.domain.watermarks import Level
from shared.ports.rationing import Gauge

_SIZE = text("SELECT pg_database_size(current_database())")


def size_of(transactions: Transactions, most: int) -> Gauge:
    """The size of the database of `transactions`, of `most` bytes. The server adds up the sizes of its files."""

    async def gauge() -> Level:
        return Level(await transactions.read(_size), most)

    return gauge


def _size(connection: Connection) -> int:
    return int(connection.execute(_SIZE).scalar_one())
