"""Items: the values that rules extracted from pages, the fetch of each page, and the position in their stream.

No downgrade. Code of schema 0007 runs on it: it stores no items and does not delete those of crawls that it removes.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "items",
        sa.Column("crawl_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("item_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("rule", sa.String(length=63), nullable=False),
        sa.Column("host_id", sa.BigInteger(), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(length=16), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("crawl_id", "item_id"),
        sqlite_with_rowid=False,
    )
    op.create_index("items_page", "items", ["crawl_id", "fingerprint", "host_id", "item_id"], unique=False)
    op.create_table(
        "item_pages",
        sa.Column("crawl_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("host_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(length=16), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("lease_id", sa.BigInteger(), nullable=False),
        sa.Column("grants", sa.Integer(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("crawl_id", "host_id", "fingerprint"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "item_writer",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("stream_created_ns", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("sequence", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
