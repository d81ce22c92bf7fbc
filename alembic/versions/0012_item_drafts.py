"""Items of fetches whose outcome is not applied yet.

No downgrade. Code of schema 0011 runs on it: it stores items without regard to the outcome of their page. The drafts
stay here until a newer leader reads them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "item_drafts",
        sa.Column("crawl_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("host_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(length=16), nullable=False),
        sa.Column("lease_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("grants", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("items", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("crawl_id", "host_id", "fingerprint", "lease_id", "grants"),
        sqlite_with_rowid=False,
    )
