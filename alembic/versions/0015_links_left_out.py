"""Losses of a crawl: per fetch why its body is truncated and which links are excluded, per crawl examples of links.

No downgrade. Code of schema 0014 runs on it: it neither reads nor writes the new columns and the new table.
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("fetches", sa.Column("truncated", sa.String(16)))
    op.add_column("fetches", sa.Column("links_found", sa.Integer()))
    op.add_column("fetches", sa.Column("left_out", sa.Text()))
    op.create_table(
        "links_left_out",
        sa.Column("crawl_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("partition", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("reason", sa.String(40), primary_key=True),
        sa.Column("url", sa.Text(), primary_key=True),
        sa.Column("host_id", sa.BigInteger(), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(16), nullable=False),
        sqlite_with_rowid=False,
    )
