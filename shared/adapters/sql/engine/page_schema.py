"""The tables of items, of the earlier versions of pages, and of the log of their changes.

They share one SQLAlchemy `MetaData` with the tables in the module `schema`.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, SmallInteger, String, Table, Text

from shared.adapters.sql.engine.schema import metadata as metadata

items = Table(
    "items",
    metadata,
    Column("crawl_id", BigInteger, primary_key=True, autoincrement=False),
    Column("item_id", LargeBinary(16), primary_key=True),
    Column("rule", String(63), nullable=False),
    Column("host_id", BigInteger, nullable=False),
    Column("fingerprint", LargeBinary(16), nullable=False),
    Column("data", Text, nullable=False),
    Index("items_page", "crawl_id", "fingerprint", "host_id", "item_id"),
    sqlite_with_rowid=False,
)
"""Items that rules extracted from pages. `data` is a JSON object."""

item_pages = Table(
    "item_pages",
    metadata,
    Column("crawl_id", BigInteger, primary_key=True, autoincrement=False),
    Column("host_id", BigInteger, primary_key=True, autoincrement=False),
    Column("fingerprint", LargeBinary(16), primary_key=True),
    Column("url", Text, nullable=False),
    Column("lease_id", BigInteger, nullable=False),
    Column("grants", Integer, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""For each page, the fetch from which the items of the page were extracted. A page has a row even if the fetch gave no
items."""

item_drafts = Table(
    "item_drafts",
    metadata,
    Column("crawl_id", BigInteger, primary_key=True, autoincrement=False),
    Column("host_id", BigInteger, primary_key=True, autoincrement=False),
    Column("fingerprint", LargeBinary(16), primary_key=True),
    Column("lease_id", BigInteger, primary_key=True, autoincrement=False),
    Column("grants", Integer, primary_key=True, autoincrement=False),
    Column("url", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("items", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
"""Items of fetches whose outcome the owner has not applied yet. `items` is encoded as MessagePack."""

item_writer = Table(
    "item_writer",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("term", BigInteger, nullable=False, server_default="0"),
    Column("version", BigInteger, nullable=False, server_default="0"),
    Column("stream_created_ns", BigInteger, nullable=False, server_default="0"),
    Column("sequence", BigInteger, nullable=False, server_default="0"),
    Column("timed_sequence", BigInteger, nullable=False, server_default="0"),
    Column("at_ns", BigInteger, nullable=False, server_default="0"),
)
"""One row: the term under which items are written, and how far the stream of items has been applied.

`at_ns` is the time of the message `timed_sequence`. Both are 0 if no time is known.
"""

page_versions = Table(
    "page_versions",
    metadata,
    Column("crawl_id", BigInteger, primary_key=True, autoincrement=False),
    Column("host_id", BigInteger, primary_key=True, autoincrement=False),
    Column("fingerprint", LargeBinary(16), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("mime", Text),
    Column("digest", LargeBinary(20)),
    Column("title", Text),
    Column("truncated", String(16)),
    Column("segment", Text, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("length", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""Earlier versions of pages that have changed. `version` counts from 1. The newest version is the row in `fetches`."""

page_changes = Table(
    "page_changes",
    metadata,
    Column("crawl_id", BigInteger, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("entries", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
"""The log of new, changed and gone pages. A transaction of an owner adds one row for each crawl with such pages.
`number`: the partition's version in the transaction. shared.domain.frontier.page_history encodes `entries`."""
