"""An index of the URLs that no page led to, so that the seeds of a crawl are listed whatever its size.

Forward only. Code that knows 0003 alone runs on it: the database keeps the index by itself.
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
