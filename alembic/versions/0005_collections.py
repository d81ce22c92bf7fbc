"""The time when a deleted crawl's rows were collected, so that an interrupted collection is found and continued.

No downgrade. Code of schema 0004 runs on it: the column may be empty, and then the crawl is checked again.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

UNCOLLECTED = "state = 'deleted' AND collected_at_ms IS NULL"


def upgrade() -> None:
    op.add_column("crawls", sa.Column("collected_at_ms", sa.BigInteger(), nullable=True))
    op.create_index(
        "crawls_uncollected",
        "crawls",
        ["crawl_id"],
        unique=False,
        sqlite_where=sa.text(UNCOLLECTED),
        postgresql_where=sa.text(UNCOLLECTED),
    )
