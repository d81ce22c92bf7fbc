"""An index of the URLs that no page led to, so that seeds are listed at a cost independent of the crawl's size.

No downgrade. Code of schema 0003 runs on it: the database maintains the index.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "urls_seeds",
        "urls",
        ["crawl_id", "host_id", "fingerprint"],
        unique=False,
        sqlite_where=sa.text("via_host IS NULL"),
        postgresql_where=sa.text("via_host IS NULL"),
    )
